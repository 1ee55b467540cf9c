//! An execution's stream while it grows.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use ff_core::ExecutionId;
use ff_core::stream::FrameId;
use futures_util::Stream;
use futures_util::stream::BoxStream;

use crate::client::Client;
use crate::error::Result;
use crate::retry::Retries;
use crate::transport::{Failure, Follower, StreamEvent};

/// The events of a stream, from [`Execution::tail`](crate::Execution::tail). It reconnects by itself and goes on
/// after the last frame it showed: no frame is missed, none comes twice.
pub struct Tail(BoxStream<'static, Result<StreamEvent>>);

impl Tail {
    pub(crate) fn new(client: Client, id: ExecutionId, after: FrameId) -> Self {
        let state = Following { client, id, after, paused: false, follower: None, waiting: VecDeque::new() };
        Self(Box::pin(futures_util::stream::unfold(Some(state), |state| async move {
            let mut state = state?;
            match state.next().await {
                Ok(event) => {
                    let last = matches!(event, StreamEvent::End { .. });
                    Some((Ok(event), (!last).then_some(state)))
                }
                Err(failure) => Some((Err(failure.into()), None)),
            }
        })))
    }

    /// The next event; `None` after the end, or after an error.
    pub async fn next(&mut self) -> Option<Result<StreamEvent>> {
        futures_util::StreamExt::next(&mut self.0).await
    }
}

impl Stream for Tail {
    type Item = Result<StreamEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tail")
    }
}

struct Following {
    client: Client,
    id: ExecutionId,
    after: FrameId,
    /// That the attempt is paused was shown; a new connection says it again.
    paused: bool,
    follower: Option<Follower>,
    waiting: VecDeque<StreamEvent>,
}

impl Following {
    async fn next(&mut self) -> Result<StreamEvent, Failure> {
        let client = self.client.clone();
        let mut retries = Retries::new(client.retry_policy());
        loop {
            while let Some(event) = self.waiting.pop_front() {
                if self.is_news(&event) {
                    return Ok(event);
                }
            }
            let read = match &mut self.follower {
                Some(follower) => follower.next().await,
                None => client.connection().follow(self.id, self.after).await.map(|follower| {
                    self.follower = Some(follower);
                    Some(Vec::new())
                }),
            };
            let failure = match read {
                Ok(Some(events)) => {
                    self.waiting.extend(events);
                    continue;
                }
                Ok(None) => Failure::Unreachable("the stream was cut".into()),
                Err(failure) => failure,
            };
            self.follower = None;
            retries.after(failure).await?;
        }
    }

    fn is_news(&mut self, event: &StreamEvent) -> bool {
        match event {
            StreamEvent::Frame(frame) => {
                self.paused = false;
                self.after = frame.id;
            }
            StreamEvent::Attempt { attempt } => {
                self.paused = false;
                self.after = FrameId { attempt: *attempt, sequence: 0 };
            }
            StreamEvent::Paused { .. } => return !std::mem::replace(&mut self.paused, true),
            StreamEvent::End { .. } => {}
        }
        true
    }
}
