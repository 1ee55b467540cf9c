//! The events of a deployment, as a subscriber gets them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::op::ListEvents;
use ff_core::op::list_events::{Args, Outcome};
use ff_core::{Error, Result};
use ff_engine::Caller;
use hyper::{HeaderMap, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::{PING, event, last_event_id, ping, respond, trouble};
use crate::app::App;
use crate::auth::Credential;
use crate::http::answer::Body;
use crate::http::arguments;
use crate::http::route::Route;

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
    let place = app.pools.sse.enter()?;
    args.wait_ms = Some(0);
    // A refusal belongs into the status of the answer, so the first look comes before its head.
    let first = app.engine.call::<ListEvents>(&caller, args.clone()).await?;
    args.wait_ms = Some(i64::try_from(PING.as_millis()).unwrap_or(i64::MAX));
    let mut subscriber = Subscriber {
        app: app.clone(),
        caller,
        credential,
        args,
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
    waiting: VecDeque<Bytes>,
    ended: bool,
    _place: OwnedSemaphorePermit,
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
            let read = tokio::select! {
                biased;
                () = app.stopped() => return None,
                read = app.engine.call::<ListEvents>(&self.caller, self.args.clone()) => read,
            };
            match read.and_then(|outcome| self.take(outcome)) {
                Ok(()) if self.waiting.is_empty() => return Some(ping()),
                Ok(()) => {}
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Renders a page. Its cursor goes with its last event: who is cut before it gets the page again, as subscribers
    /// must expect; every event has an id of its own to drop repeats by.
    fn take(&mut self, outcome: Outcome) -> Result<()> {
        if outcome.gap {
            self.waiting.push_back(event("gap", None, &serde_json::json!({}))?);
        }
        let last = outcome.items.len().saturating_sub(1);
        for (number, item) in outcome.items.iter().enumerate() {
            let id = (number == last).then_some(outcome.next_cursor.as_str());
            self.waiting.push_back(event(item.event.event_type.kind().as_str(), id, item)?);
        }
        self.args.cursor = Some(outcome.next_cursor);
        Ok(())
    }

    fn fail(&mut self, error: &Error) {
        self.ended = true;
        self.waiting.extend(trouble(error));
    }
}
