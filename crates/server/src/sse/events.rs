//! The events of a deployment, as a subscriber gets them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::op::ListEvents;
use ff_core::op::list_events::{Args, Outcome};
use ff_core::{Error, Result};
use ff_engine::{Caller, EventWatch};
use hyper::{HeaderMap, Response};
use tokio::time::Instant;

use super::{PING, last_event_id, ping, respond, trouble};
use crate::answer::Body;
use crate::app::App;
use crate::arguments;
use crate::auth::Credential;
use crate::feeds::event;
use crate::route::Route;
use crate::shares::Place;

/// A hint may be lost, so a subscriber that was told nothing reads all the same, this seldom: viewers that wait must not
/// be a load on the store.
const LOOK: Duration = Duration::from_secs(120);

/// Shows events from a cursor on. Last-Event-ID is a cursor, too, and the stronger one: it is where the reader was cut.
pub(crate) async fn events(
    app: &Arc<App>,
    route: &Route,
    caller: Caller,
    credential: Credential,
    text: &str,
    after: Option<String>,
    headers: &HeaderMap,
) -> Result<Response<Body>> {
    let mut args = arguments::parse::<ListEvents>(&route.shape, text)?;
    args.cursor = args.cursor.or(after);
    if let Some(cursor) = last_event_id(headers)? {
        args.cursor = Some(cursor.to_owned());
    }
    let place = app.pools.sse.enter(&caller)?;
    args.wait_ms = Some(0);
    let watch = app.engine.watch_events();
    // A refusal belongs into the status of the answer, so the first look comes before its head.
    let first = app.engine.call::<ListEvents>(&caller, args.clone()).await?;
    let mut subscriber = Subscriber {
        app: app.clone(),
        caller,
        credential,
        args,
        watch,
        caught_up: false,
        look_at: Instant::now() + LOOK,
        waiting: VecDeque::new(),
        ended: false,
        _place: place,
    };
    subscriber.take(first)?;
    Ok(respond(futures_util::stream::unfold(subscriber, |mut subscriber| async move {
        let event = subscriber.next().await?;
        Some((event, subscriber))
    })))
}

struct Subscriber {
    app: Arc<App>,
    caller: Caller,
    credential: Credential,
    args: Args,
    watch: EventWatch,
    /// Nothing is left to read until the watch tells of more.
    caught_up: bool,
    /// When the logs are read again although nothing was told.
    look_at: Instant,
    waiting: VecDeque<Bytes>,
    ended: bool,
    _place: Place<String>,
}

impl Subscriber {
    async fn next(&mut self) -> Option<Bytes> {
        let app = self.app.clone();
        loop {
            if self.credential.is_stale() && self.credential.renew(&app).await.is_err() {
                return None;
            }
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if self.caught_up {
                let now = Instant::now();
                let (until, looks) =
                    if self.look_at <= now + PING { (self.look_at, true) } else { (now + PING, false) };
                tokio::select! {
                    biased;
                    () = app.stopped() => return None,
                    _ = self.credential.ended(&app) => return None,
                    () = self.watch.changed() => self.caught_up = false,
                    () = tokio::time::sleep_until(until) => {
                        self.caught_up = !looks;
                        return Some(ping());
                    }
                }
            }
            let read = tokio::select! {
                biased;
                () = app.stopped() => return None,
                read = app.engine.call::<ListEvents>(&self.caller, self.args.clone()) => read,
            };
            match read.and_then(|outcome| self.take(outcome)) {
                Ok(()) => self.look_at = Instant::now() + LOOK,
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Renders a page. Its cursor goes with its last event: a subscriber that is cut before it gets the page again, as
    /// subscribers must expect; every event has an id of its own to drop repeats by.
    fn take(&mut self, outcome: Outcome) -> Result<()> {
        if outcome.gap {
            self.waiting.push_back(event("gap", None, &serde_json::json!({}))?);
        }
        let last = outcome.items.len().saturating_sub(1);
        for (number, item) in outcome.items.iter().enumerate() {
            let id = (number == last).then_some(outcome.next_cursor.as_str());
            self.waiting.push_back(event(item.event.event_type.kind().as_str(), id, item)?);
        }
        // A cursor that stood still has passed over nothing: there is nothing behind it.
        self.caught_up = outcome.items.is_empty() && self.args.cursor.as_ref() == Some(&outcome.next_cursor);
        self.args.cursor = Some(outcome.next_cursor);
        Ok(())
    }

    fn fail(&mut self, error: &Error) {
        self.ended = true;
        self.waiting.extend(trouble(error));
    }
}
