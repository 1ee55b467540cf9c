//! One execution, as its submitter or an operator sees it.

use std::time::Duration;

use ff_core::op::parts::Content;
use ff_core::op::view::{AttemptView, ExecutionView, UpstreamView};
use ff_core::op::{
    CancelExecution, ChangePriority, ExplainExecution, Explanation, GetExecution, GetInput, GetResult, GetState,
    HoldExecution, ListAttempts, ListPendingWaitpoints, ListUpstreams, ReadStream, ReadSummary, ReleaseExecution,
    RemoveExecution, ReplayExecution, ResumeExecution, RevokeLease, SetTags, TailStream, WaitExecution,
    cancel_execution, change_priority, explain_execution, get_execution, get_input, get_result, get_state,
    hold_execution, list_attempts, list_pending_waitpoints, list_upstreams, read_stream, read_summary,
    release_execution, remove_execution, replay_execution, resume_execution, revoke_lease, set_tags, tail_stream,
    wait_execution,
};
use ff_core::stream::{FrameBound, FrameId, StreamFrames};
use ff_core::text::Tags;
use ff_core::waitpoint::PendingWaitpointInfo;
use ff_core::{AttemptIndex, ExecutionId, PublicState, SignalOutcome, limits};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Result, SdkError};
use crate::signal::{Signal, Signaling};
use crate::tail::Tail;

impl Client {
    /// An execution that is there already.
    pub fn execution(&self, id: ExecutionId) -> Execution {
        Execution::new(self.clone(), id)
    }
}

/// An execution, from [`Submission::send`](crate::Submission::send) or [`Client::execution`].
#[derive(Debug, Clone)]
pub struct Execution {
    client: Client,
    id: ExecutionId,
}

impl Execution {
    pub(crate) fn new(client: Client, id: ExecutionId) -> Self {
        Self { client, id }
    }

    /// Its id.
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// Everything about it but its bytes.
    pub async fn get(&self) -> Result<ExecutionView> {
        self.client.call::<GetExecution>(get_execution::Args { execution_id: self.id }).await
    }

    /// Its state now.
    pub async fn state(&self) -> Result<PublicState> {
        Ok(self.client.call::<GetState>(get_state::Args { execution_id: self.id }).await?.public_state)
    }

    /// Waits until it has ended, however long that takes.
    pub async fn wait(&self) -> Result<ExecutionView> {
        loop {
            let waited = self.wait_once(limits::WAIT_MAX_MS).await?;
            if waited.terminal {
                return Ok(waited.execution);
            }
        }
    }

    /// Waits until it has ended, but not longer than this; `None` when the time is up.
    pub async fn wait_for(&self, time: Duration) -> Result<Option<ExecutionView>> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).min(limits::WAIT_MAX_MS);
            let waited = self.wait_once(wait_ms).await?;
            if waited.terminal {
                return Ok(Some(waited.execution));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    async fn wait_once(&self, wait_ms: i64) -> Result<wait_execution::Outcome> {
        self.client
            .call::<WaitExecution>(wait_execution::Args {
                execution_id: self.id,
                wait_ms: Some(wait_ms),
                changed_after: None,
            })
            .await
    }

    /// Waits for its end and reads its result from JSON. [`SdkError::NotCompleted`] when it ended otherwise.
    ///
    /// ```
    /// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
    /// let sum: i64 = client.submit("add").input(&[1, 2]).send().await?.result().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T> {
        let content = self.result_content().await?;
        // A worker that returned nothing left no bytes; in JSON that is null.
        let bytes: &[u8] = if content.bytes.is_empty() { b"null" } else { &content.bytes };
        serde_json::from_slice(bytes).map_err(SdkError::payload("result"))
    }

    /// Waits for its end and fetches the bytes of its result.
    pub async fn result_content(&self) -> Result<Content> {
        let ended = self.wait().await?;
        if ended.public_state != PublicState::Completed {
            return Err(SdkError::NotCompleted {
                execution_id: self.id,
                public_state: ended.public_state,
                failure: ended.last_failure.map(Box::new),
            });
        }
        self.client.call::<GetResult>(get_result::Args { execution_id: self.id }).await
    }

    /// The input it was submitted with.
    pub async fn input<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.input_content().await?.bytes).map_err(SdkError::payload("input"))
    }

    /// The bytes it was submitted with; `no_input` when there were none.
    pub async fn input_content(&self) -> Result<Content> {
        self.client.call::<GetInput>(get_input::Args { execution_id: self.id }).await
    }

    /// Its stream from the beginning, over all attempts, until it ends.
    pub fn tail(&self) -> Tail {
        self.tail_after(FrameId::START)
    }

    /// Its stream after a frame.
    pub fn tail_after(&self, after: FrameId) -> Tail {
        Tail::new(self.client.clone(), self.id, after)
    }

    /// Frames of one attempt, both ends included, at most `count` of them: 1 to 10,000, over HTTP 1,000.
    ///
    /// ```
    /// # async fn example(execution: flowfabric::Execution) -> flowfabric::Result<()> {
    /// use flowfabric::{AttemptIndex, FrameBound};
    /// let all = execution.read_stream(AttemptIndex(0), FrameBound::First, FrameBound::Last, 1_000).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_stream(
        &self,
        attempt: AttemptIndex,
        from: FrameBound,
        to: FrameBound,
        count: usize,
    ) -> Result<StreamFrames> {
        let (from, to) = (Some(from.as_text()), Some(to.as_text()));
        let args = read_stream::Args { execution_id: self.id, attempt, from, to, limit: Some(count) };
        self.client.call::<ReadStream>(args).await
    }

    /// Frames of one attempt after a certain one, at most `count` of them, waiting for the first. A wait of more than 30
    /// seconds is refused (`invalid`); [`tail`](Execution::tail) follows a stream for as long as it grows.
    pub async fn tail_stream(&self, after: FrameId, wait: Duration, count: usize) -> Result<StreamFrames> {
        let args = tail_stream::Args {
            execution_id: self.id,
            attempt: after.attempt,
            after: Some(after),
            wait_ms: Some(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
            limit: Some(count),
        };
        self.client.call::<TailStream>(args).await
    }

    /// The summary of an attempt, merged from its `summary` frames.
    pub async fn summary<T: DeserializeOwned>(&self, attempt: AttemptIndex) -> Result<T> {
        let summary = self.client.call::<ReadSummary>(read_summary::Args { execution_id: self.id, attempt }).await?;
        serde_json::from_str(&summary.document.0).map_err(SdkError::payload("summary"))
    }

    /// Its attempts with their leases.
    pub async fn attempts(&self) -> Result<Vec<AttemptView>> {
        Ok(self.client.call::<ListAttempts>(list_attempts::Args { execution_id: self.id }).await?.items)
    }

    /// Why it is not running.
    pub async fn explain(&self) -> Result<Explanation> {
        self.client.call::<ExplainExecution>(explain_execution::Args { execution_id: self.id }).await
    }

    /// The executions it depends on, with outcomes and results.
    pub async fn upstreams(&self) -> Result<Vec<UpstreamView>> {
        let mut args = list_upstreams::Args {
            execution_id: self.id,
            node: None,
            edge_id: None,
            results: true,
            cursor: None,
            limit: None,
        };
        let mut upstreams = Vec::new();
        loop {
            let page = self.client.call::<ListUpstreams>(args.clone()).await?;
            upstreams.extend(page.items);
            match page.next_cursor {
                Some(cursor) => args.cursor = Some(cursor),
                None => return Ok(upstreams),
            }
        }
    }

    /// Cancels it. One that has ended keeps its outcome.
    pub async fn cancel(&self, reason: impl Into<String>) -> Result<cancel_execution::Outcome> {
        let args = cancel_execution::Args::from_outside(self.id, Some(reason.into()));
        self.client.call::<CancelExecution>(args).await
    }

    /// Runs it again after its end.
    pub async fn replay(&self) -> Result<replay_execution::Outcome> {
        let args = replay_execution::Args { execution_id: self.id, from_step: None, command_id: None };
        self.client.call::<ReplayExecution>(args).await
    }

    /// Removes it, with everything it has. It must have ended; a member of a flow goes with its flow.
    pub async fn remove(&self) -> Result<()> {
        self.client.call::<RemoveExecution>(remove_execution::Args { execution_id: self.id }).await.map(drop)
    }

    /// Takes the lease away from its worker.
    pub async fn revoke_lease(&self, reason: impl Into<String>) -> Result<revoke_lease::Outcome> {
        let args = revoke_lease::Args {
            execution_id: self.id,
            expected_lease_id: None,
            reason: Some(reason.into()),
            command_id: None,
        };
        self.client.call::<RevokeLease>(args).await
    }

    /// Sends it a signal: `execution.signal("approve").waitpoint(id, token).send().await?`.
    pub fn signal(&self, name: impl Into<String>) -> Signaling {
        Signaling::new(self.client.clone(), self.id, name.into())
    }

    /// Agrees to what it asks; `.payload(..)` is the answer.
    pub fn approve(&self) -> Signaling {
        self.signal(ff_core::suspension::APPROVE)
    }

    /// Refuses what it asks, which ends the question even if others agreed before.
    pub fn reject(&self) -> Signaling {
        self.signal(ff_core::suspension::REJECT)
    }

    /// Sends it a signal that is a type of its own: see [`Signal`].
    pub async fn send<T: Signal>(&self, signal: &T) -> Result<SignalOutcome> {
        self.signal(T::NAME).payload(signal).send().await
    }

    /// The waitpoints that take signals for it.
    pub async fn pending_waitpoints(&self) -> Result<Vec<PendingWaitpointInfo>> {
        let args = list_pending_waitpoints::Args { execution_id: self.id };
        Ok(self.client.call::<ListPendingWaitpoints>(args).await?.items)
    }

    /// Ends its suspension as an operator.
    pub async fn resume(&self, reason: impl Into<String>) -> Result<resume_execution::Outcome> {
        let args = resume_execution::Args { execution_id: self.id, reason: Some(reason.into()), command_id: None };
        self.client.call::<ResumeExecution>(args).await
    }

    /// Keeps it from running until it is released.
    pub async fn hold(&self, reason: impl Into<String>) -> Result<hold_execution::Outcome> {
        let args = hold_execution::Args { execution_id: self.id, reason: Some(reason.into()) };
        self.client.call::<HoldExecution>(args).await
    }

    /// Lets it run again.
    pub async fn release(&self) -> Result<release_execution::Outcome> {
        self.client.call::<ReleaseExecution>(release_execution::Args { execution_id: self.id }).await
    }

    /// Changes its priority.
    pub async fn change_priority(&self, priority: i64) -> Result<i64> {
        let args = change_priority::Args { execution_id: self.id, priority };
        Ok(self.client.call::<ChangePriority>(args).await?.priority)
    }

    /// Replaces its tags.
    pub async fn set_tags(&self, tags: Tags) -> Result<Tags> {
        Ok(self.client.call::<SetTags>(set_tags::Args { execution_id: self.id, tags }).await?.tags)
    }
}
