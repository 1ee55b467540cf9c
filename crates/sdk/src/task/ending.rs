//! The ways out of a task.

use std::time::Duration;

use bytes::Bytes;
use ff_core::execution::FailOutcome;
use ff_core::op::wait_children;
use ff_core::op::{CancelExecution, Complete, Delay, Fail, WaitChildren, cancel_execution, complete, delay, fail};
use ff_core::{Blob, JsonText};
use serde::Serialize;

use super::{ClaimedTask, Core};
use crate::error::{Result, SdkError};

pub use cancel_execution::Outcome as CancelOutcome;
pub use complete::Outcome as CompleteOutcome;
pub use delay::Outcome as DelayOutcome;
pub use wait_children::Outcome as WaitChildrenOutcome;

impl ClaimedTask {
    /// Ends the execution with a result in JSON.
    pub async fn complete(mut self, result: &(impl Serialize + ?Sized)) -> Result<CompleteOutcome> {
        let result = serde_json::to_string(result).map_err(SdkError::payload("result"))?;
        let ended = self.core.complete_json(result).await;
        self.end(ended)
    }

    /// Ends the execution with bytes of some content type.
    pub async fn complete_bytes(
        mut self,
        result: impl Into<Bytes>,
        content_type: impl Into<String>,
    ) -> Result<CompleteOutcome> {
        let args = complete::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            result: None,
            result_base64: Some(Blob(result.into())),
            content_type: Some(content_type.into()),
        };
        let ended = self.core.call::<Complete>(args).await;
        self.end(ended)
    }

    /// Ends the attempt in failure. The policy decides by the category whether there is another.
    pub async fn fail(mut self, reason: impl Into<String>, category: impl Into<String>) -> Result<FailOutcome> {
        let ended = self.core.fail(reason.into(), category.into(), None).await;
        self.end(ended)
    }

    /// The same with a wait of its own before the retry.
    pub async fn fail_and_retry_after(
        mut self,
        reason: impl Into<String>,
        category: impl Into<String>,
        retry_after: Duration,
    ) -> Result<FailOutcome> {
        let ended = self.core.fail(reason.into(), category.into(), Some(retry_after)).await;
        self.end(ended)
    }

    /// Cancels the execution.
    pub async fn cancel(mut self, reason: impl Into<String>) -> Result<CancelOutcome> {
        let args = cancel_execution::Args {
            execution_id: self.execution_id(),
            reason: Some(reason.into()),
            fence: Some(self.fence()),
        };
        let ended = self.core.call::<CancelExecution>(args).await;
        self.end(ended)
    }

    /// Lets go; the same attempt continues after this time.
    pub async fn delay_execution(mut self, delay: Duration) -> Result<DelayOutcome> {
        let ended = self.core.delay(delay).await;
        self.end(ended)
    }

    /// Lets go; the same attempt continues at or after this instant, in milliseconds since the epoch.
    pub async fn delay_execution_until(mut self, instant_ms: i64) -> Result<DelayOutcome> {
        let args = delay::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            until: Some(instant_ms),
            delay_ms: None,
        };
        let ended = self.core.call::<Delay>(args).await;
        self.end(ended)
    }

    /// Lets go; the same attempt continues when the children it spawned have ended, whatever their outcome.
    pub async fn move_to_waiting_children(mut self) -> Result<WaitChildrenOutcome> {
        let ended = self.core.wait_children().await;
        self.end(ended)
    }

    /// Takes note of an ending, so that the drop of the task is no surprise.
    pub(super) fn end<T>(&mut self, ended: Result<T>) -> Result<T> {
        self.ended = ended.is_ok();
        ended
    }
}

impl Core {
    pub(crate) async fn complete_json(&self, result: String) -> Result<CompleteOutcome> {
        let args = complete::Args {
            execution_id: self.task.execution_id,
            fence: self.task.fence,
            result: Some(JsonText(result)),
            result_base64: None,
            content_type: None,
        };
        self.call::<Complete>(args).await
    }

    pub(crate) async fn fail(
        &self,
        reason: String,
        category: String,
        retry_after: Option<Duration>,
    ) -> Result<FailOutcome> {
        let args = fail::Args {
            execution_id: self.task.execution_id,
            fence: self.task.fence,
            reason,
            category: Some(category).filter(|category| !category.is_empty()),
            retry_after_ms: retry_after.map(milliseconds),
        };
        self.call::<Fail>(args).await
    }

    pub(crate) async fn delay(&self, delay: Duration) -> Result<DelayOutcome> {
        let args = delay::Args {
            execution_id: self.task.execution_id,
            fence: self.task.fence,
            until: None,
            delay_ms: Some(milliseconds(delay)),
        };
        self.call::<Delay>(args).await
    }

    pub(crate) async fn wait_children(&self) -> Result<WaitChildrenOutcome> {
        let args = wait_children::Args { execution_id: self.task.execution_id, fence: self.task.fence };
        self.call::<WaitChildren>(args).await
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
