//! One viewer of an execution's stream.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::journal::StepView;
use ff_core::{ExecutionId, Result};
use ff_engine::{Caller, JournalSeen, Seen, StreamUpdate};
use futures_util::Stream;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::{PING, ping, trouble};
use crate::app::App;
use crate::auth::Credential;
use crate::feeds::{News, PAGE, Shown, event, render};
use crate::shares::Place;

/// A viewer of a journal looks again after this long, whatever it heard.
const JOURNAL_WAIT_MS: i64 = 15_000;

/// Where a viewer is, and what it waits for.
pub(super) struct Viewer {
    app: Arc<App>,
    caller: Caller,
    credential: Credential,
    id: ExecutionId,
    seen: Seen,
    /// How far it has come in the journal, if it wants to see it at all.
    journal: Option<JournalSeen>,
    /// The end of the stream, while the rest of the journal is read before it.
    end: Option<Bytes>,
    /// Parts that are rendered and not yet sent.
    waiting: VecDeque<Bytes>,
    feed: Option<broadcast::Receiver<Arc<News>>>,
    /// Everything up to the joining of the feed was read from the store.
    caught_up: bool,
    ended: bool,
    ping_at: Instant,
    _place: Place<String>,
}

impl Viewer {
    pub(super) fn new(
        app: Arc<App>,
        (caller, credential): (Caller, Credential),
        id: ExecutionId,
        (seen, journal): (Seen, Option<JournalSeen>),
        place: Place<String>,
    ) -> Self {
        Self {
            app,
            caller,
            credential,
            id,
            seen,
            journal,
            end: None,
            waiting: VecDeque::new(),
            feed: None,
            caught_up: false,
            ended: false,
            ping_at: Instant::now() + PING,
            _place: place,
        }
    }

    /// Takes the first look.
    pub(super) fn begin(mut self, first: StreamUpdate) -> Self {
        if let Err(error) = self.take(first) {
            self.fail(&error);
        }
        self
    }

    /// The events, as they come.
    pub(super) fn stream(self) -> impl Stream<Item = Bytes> + Send {
        futures_util::stream::unfold(self, |mut viewer| async move {
            let event = viewer.next().await?;
            Some((event, viewer))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let app = self.app.clone();
        loop {
            // A token that was revoked sees nothing more, however long ago the stream was opened.
            if self.credential.is_stale() && self.credential.renew(&app).await.is_err() {
                return None;
            }
            if let Some(event) = self.waiting.pop_front() {
                self.ping_at = Instant::now() + PING;
                return Some(event);
            }
            if self.ended {
                return None;
            }
            if self.end.is_some() {
                if let Err(error) = self.see_rest_of_journal().await {
                    self.fail(&error);
                }
                continue;
            }
            let ping_at = self.ping_at;
            let (caller, id, journal) = (self.caller.clone(), self.id, self.journal);
            let news = async {
                match journal {
                    Some(seen) => app.engine.follow_journal(&caller, &id, seen, PAGE, JOURNAL_WAIT_MS).await,
                    None => std::future::pending().await,
                }
            };
            let revoked = self.credential.ended(&app);
            let stepped = tokio::select! {
                biased;
                () = app.stopped() => return None,
                _ = revoked => return None,
                news = news => news.and_then(|news| self.see_journal(news)),
                stepped = self.step() => stepped,
                () = tokio::time::sleep_until(ping_at) => {
                    self.ping_at = Instant::now() + PING;
                    return Some(ping());
                }
            };
            if let Err(error) = stepped {
                self.fail(&error);
            }
        }
    }

    fn see_journal(&mut self, (seen, entries): (JournalSeen, Vec<StepView>)) -> Result<()> {
        for entry in &entries {
            self.waiting.push_back(event("step", None, &json!({ "generation": seen.generation, "step": entry }))?);
        }
        self.journal = Some(seen);
        Ok(())
    }

    /// A page of what the journal has before the end of the stream; the end itself when there is no more.
    async fn see_rest_of_journal(&mut self) -> Result<()> {
        if let Some(seen) = self.journal {
            let app = self.app.clone();
            let news = app.engine.follow_journal(&self.caller, &self.id, seen, PAGE, 0).await?;
            if !news.1.is_empty() {
                return self.see_journal(news);
            }
        }
        self.waiting.extend(self.end.take());
        self.ended = true;
        Ok(())
    }

    /// Reads from the store until there is nothing more, then listens to the feed. Safe to cancel.
    async fn step(&mut self) -> Result<()> {
        if let (Some(feed), true) = (self.feed.as_mut(), self.caught_up) {
            match feed.recv().await {
                Ok(news) => self.hear(&news),
                Err(broadcast::error::RecvError::Lagged(_)) => self.caught_up = false,
                Err(broadcast::error::RecvError::Closed) => self.feed = None,
            }
            return Ok(());
        }
        if self.feed.is_none() {
            self.caught_up = false;
            // Not where this viewer is, which is what a client says: the feed is for all viewers.
            let end = self.app.engine.stream_end(&self.id).await?;
            self.feed = Some(self.app.feeds.join(&self.app.engine, self.id, end));
        }
        let update = self.app.engine.follow(&self.caller, &self.id, self.seen, PAGE, 0).await?;
        self.caught_up = update == StreamUpdate::Nothing;
        self.take(update)
    }

    fn take(&mut self, update: StreamUpdate) -> Result<()> {
        for shown in render(update, self.seen)? {
            self.see(&shown);
        }
        Ok(())
    }

    /// Sends what was not seen yet of what the feed brings.
    fn hear(&mut self, news: &News) {
        match (&news.text, news.shown.as_slice()) {
            (Some(text), [first, .., last] | [last @ first]) if first.seen.after > self.seen.after => {
                self.seen = last.seen;
                self.waiting.push_back(text.clone());
            }
            (_, shown) => shown.iter().for_each(|one| self.see(one)),
        }
    }

    /// Sends what was not seen yet.
    fn see(&mut self, shown: &Shown) {
        let news = if shown.last {
            // A viewer that has not seen everything before the end reads it, and then the end, from the store.
            self.caught_up &= shown.seen.after == self.seen.after;
            shown.seen.after == self.seen.after
        } else if shown.pause {
            !self.seen.paused && shown.seen.after == self.seen.after
        } else {
            shown.seen.after > self.seen.after
        };
        if news {
            self.seen = shown.seen;
            match shown.last {
                true => self.end = Some(shown.text.clone()),
                false => self.waiting.push_back(shown.text.clone()),
            }
        }
    }

    fn fail(&mut self, error: &ff_core::Error) {
        self.ended = true;
        self.end = None;
        self.waiting.extend(trouble(error));
    }
}
