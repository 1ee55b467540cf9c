//! The events of a deployment, as they happen.

use std::collections::VecDeque;

use ff_core::FlowId;
use ff_core::event::EventKind;
use ff_core::limits;
use ff_core::op::ListEvents;
use ff_core::op::list_events::Args;
use ff_core::op::view::EventView;
use futures_util::Stream;

use crate::client::Client;
use crate::error::Result;

/// An event as a subscriber sees it, or a gap.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Happening {
    /// Something happened. At least once: a repeat has the same `event_id`.
    Event(Box<EventView>),
    /// The log no longer reaches back to where the subscriber was: events are missing here.
    Gap,
}

impl Client {
    /// The events of the deployment, from the oldest one there is, or from where an earlier subscription was.
    pub fn events(&self) -> Events {
        Events::new(self.clone())
    }
}

/// A subscription, from [`Client::events`]. It goes on through lost connections, and a later one goes on from its
/// [`cursor`](Events::cursor).
#[derive(Debug)]
pub struct Events {
    client: Client,
    args: Args,
    waiting: VecDeque<Happening>,
    /// Where the page that is being read out ends.
    page_end: Option<String>,
}

impl Events {
    pub(crate) fn new(client: Client) -> Self {
        let args = Args { wait_ms: Some(limits::WAIT_MAX_MS), ..Args::default() };
        Self { client, args, waiting: VecDeque::new(), page_end: None }
    }

    /// Only events of these kinds.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        self.args.kinds = kinds.into_iter().collect();
        self
    }

    /// Only events of this flow.
    #[must_use]
    pub fn flow(mut self, flow_id: FlowId) -> Self {
        self.args.flow_id = Some(flow_id);
        self
    }

    /// Only events of executions with this tag.
    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.args.tag = Some(format!("{key}={value}"));
        self
    }

    /// Begins where an earlier subscription was; without a cursor, with the oldest event there is.
    #[must_use]
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.args.cursor = Some(cursor.into());
        self
    }

    /// Where a later subscription goes on without missing anything. Events since the last full page come again.
    pub fn cursor(&self) -> Option<&str> {
        let read_out = self.page_end.as_deref().filter(|_| self.waiting.is_empty());
        read_out.or(self.args.cursor.as_deref())
    }

    /// The next event, whenever it happens.
    pub async fn next(&mut self) -> Result<Happening> {
        loop {
            if let Some(happening) = self.waiting.pop_front() {
                return Ok(happening);
            }
            if let Some(end) = self.page_end.take() {
                self.args.cursor = Some(end);
            }
            let page = self.client.call::<ListEvents>(self.args.clone()).await?;
            self.waiting.extend(page.gap.then_some(Happening::Gap));
            self.waiting.extend(page.items.into_iter().map(|event| Happening::Event(Box::new(event))));
            self.page_end = Some(page.next_cursor);
        }
    }

    /// The events as a stream, which ends with the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Happening>> + Send {
        futures_util::stream::unfold(Some(self), |events| async move {
            let mut events = events?;
            match events.next().await {
                Ok(happening) => Some((Ok(happening), Some(events))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}
