//! The ways to end a task: complete, fail, cancel, or give it up until something happens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ff_core::execution::FailOutcome;
use ff_core::journal::{RunNotes, StepIdentity};
use ff_core::op::{
    CancelExecution, Complete, ContinueAsNew, Delay, Fail, Operation, Park, StepQuestion, WaitChildren,
    cancel_execution, complete, continue_as_new, delay, fail, park, wait_children,
};
use ff_core::{Blob, JsonText};
use ff_engine::{Engine, Serves};
use serde::Serialize;

use super::ClaimedTask;
use super::exchanged::Ending;
use crate::error::{Result, SdkError};
use crate::task_error::category;

pub use cancel_execution::Outcome as CancelOutcome;
pub use complete::Outcome as CompleteOutcome;
pub use delay::Outcome as DelayOutcome;
pub use wait_children::Outcome as WaitChildrenOutcome;

/// An ending that is refused for its content (a result that is too large, a content type that is none, a waitpoint that
/// is not there) fails the attempt with the category [`refused`](crate::category::REFUSED), so that the policy decides
/// about another one, and answers with [`SdkError::EndingRefused`].
impl ClaimedTask {
    /// Ends the execution with a result in JSON.
    pub async fn complete(self, result: &(impl Serialize + ?Sized)) -> Result<CompleteOutcome> {
        let ended = match serde_json::to_string(result).map_err(SdkError::payload("result")) {
            Ok(result) => self.end_with_json(result, None).await,
            Err(error) => Err(error),
        };
        self.or_fail(ended).await
    }

    /// Ends the execution with bytes of some content type.
    pub async fn complete_bytes(
        self,
        result: impl Into<Bytes>,
        content_type: impl Into<String>,
    ) -> Result<CompleteOutcome> {
        let args = complete::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            result: None,
            result_base64: Some(Blob(result.into())),
            content_type: Some(content_type.into()),
            entries: Vec::new(),
            first_number: None,
            run: None,
        };
        self.or_fail(self.end::<Complete>(args).await).await
    }

    /// Ends the attempt in failure. The policy decides by the category whether there is another attempt.
    pub async fn fail(self, reason: impl Into<String>, category: impl Into<String>) -> Result<FailOutcome> {
        self.or_fail(self.end_with_failure(reason.into(), category.into(), None, RunAgain::default()).await).await
    }

    /// Fails with a wait of its own before the retry.
    pub async fn fail_and_retry_after(
        self,
        reason: impl Into<String>,
        category: impl Into<String>,
        retry_after: Duration,
    ) -> Result<FailOutcome> {
        self.or_fail(
            self.end_with_failure(reason.into(), category.into(), Some(retry_after), RunAgain::default()).await,
        )
        .await
    }

    /// Cancels the execution.
    pub async fn cancel(self, reason: impl Into<String>) -> Result<CancelOutcome> {
        self.or_fail(self.end_with_cancellation(reason.into()).await).await
    }

    /// Gives the task up; the same attempt continues after this time.
    pub async fn delay_execution(self, delay: Duration) -> Result<DelayOutcome> {
        self.or_fail(self.end_with_delay(delay).await).await
    }

    /// Gives the task up; the same attempt continues at or after this instant, in milliseconds since the epoch.
    pub async fn delay_execution_until(self, instant_ms: i64) -> Result<DelayOutcome> {
        let args = delay::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            until: Some(instant_ms),
            delay_ms: None,
            entries: Vec::new(),
            first_number: None,
        };
        self.or_fail(self.end::<Delay>(args).await).await
    }

    /// Asks a person about a step and gives the task up; the same attempt continues when the answer is recorded.
    /// `first_number` is the number of the next entry of the journal.
    pub async fn ask(self, first_number: u64, question: StepQuestion) -> Result<()> {
        let args = park::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            entries: Vec::new(),
            first_number,
            sleeps: Vec::new(),
            waitpoints: Vec::new(),
            children: Vec::new(),
            questions: vec![question],
        };
        self.or_fail(self.end_with_park(args).await).await.map(drop)
    }

    /// Gives the task up; the same attempt continues when the children it spawned have ended, whatever their outcome.
    pub async fn move_to_waiting_children(self) -> Result<WaitChildrenOutcome> {
        self.or_fail(self.end_with_children().await).await
    }
}

/// Endings by reference, for a runtime that has lent the task to a handler.
impl ClaimedTask {
    /// Ends the task and notes that it has ended, so that dropping it is no surprise. If a loop takes the worker's
    /// tasks, the next one comes with the answer.
    pub(super) async fn end<O: Ending>(&self, args: O::Args) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let ended = match self.place_to_pass_on() {
            Some(place) => self.exchange::<O>(args, place).await,
            // Boxed, because a runtime takes the other way, and each of its tasks holds such a future.
            None => Box::pin(self.core.call::<O>(args)).await,
        };
        self.ended.store(ended.is_ok(), Ordering::Relaxed);
        ended
    }

    /// The same in a call of its own.
    async fn end_alone<O: Operation>(&self, args: O::Args) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let ended = self.core.call::<O>(args).await;
        self.ended.store(ended.is_ok(), Ordering::Relaxed);
        ended
    }

    /// Hands back tasks that have not begun; they continue elsewhere in the same attempt.
    pub(crate) async fn hand_back_all(tasks: Vec<ClaimedTask>) {
        for task in tasks {
            if let Err(error) = task.end_alone::<Delay>(task.delay_args(Duration::ZERO)).await {
                tracing::warn!(execution = %task.execution_id(), %error, "a task could not be handed back");
            }
        }
    }

    /// Fails the attempt whose ending was refused for its content. Otherwise the work would be done again and again,
    /// whenever the lease has run out, and the policy would never apply.
    pub(super) async fn or_fail<T>(&self, ended: Result<T>) -> Result<T> {
        let error = match ended {
            Err(error) if error.refuses_content() => error,
            other => return other,
        };
        match self.end_with_failure(error.to_string(), category::REFUSED.into(), None, RunAgain::default()).await {
            Ok(outcome) => Err(SdkError::EndingRefused { error: Box::new(error), outcome }),
            Err(lost) if lost.is_lease_lost() => Err(lost),
            Err(_) => Err(error),
        }
    }

    pub(crate) async fn end_with_json(&self, result: String, run: Option<RunNotes>) -> Result<CompleteOutcome> {
        let args = complete::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            result: Some(JsonText(result)),
            result_base64: None,
            content_type: None,
            entries: Vec::new(),
            first_number: None,
            run,
        };
        self.end::<Complete>(args).await
    }

    pub(crate) async fn end_with_failure(
        &self,
        reason: String,
        category: String,
        retry_after: Option<Duration>,
        again: RunAgain,
    ) -> Result<FailOutcome> {
        let RunAgain { cause, undone, first_number } = again;
        let args = fail::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            reason: shorten(reason),
            category: Some(category).filter(|category| !category.is_empty()),
            retry_after_ms: retry_after.map(milliseconds),
            cause,
            entries: Vec::new(),
            first_number,
            run: None,
            undone,
        };
        self.end::<Fail>(args).await
    }

    pub(crate) async fn end_with_cancellation(&self, reason: String) -> Result<CancelOutcome> {
        let args = cancel_execution::Args {
            execution_id: self.execution_id(),
            reason: Some(reason),
            fence: Some(self.fence()),
            entries: Vec::new(),
            first_number: None,
        };
        self.end::<CancelExecution>(args).await
    }

    pub(crate) async fn end_with_delay(&self, delay: Duration) -> Result<DelayOutcome> {
        self.end::<Delay>(self.delay_args(delay)).await
    }

    fn delay_args(&self, delay: Duration) -> delay::Args {
        delay::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            until: None,
            delay_ms: Some(milliseconds(delay)),
            entries: Vec::new(),
            first_number: None,
        }
    }

    /// Gives the task up until the first of several waits is over. If one is over already, the task stays in hand.
    pub(crate) async fn end_with_park(&self, args: park::Args) -> Result<park::Outcome> {
        // The handler has nothing left to do: it is dropped as soon as the task is parked.
        let parked = match self.place() {
            Some(place) => self.exchange::<Park>(args, place).await,
            None => self.core.call::<Park>(args).await,
        };
        let let_go = matches!(parked, Ok(park::Outcome::Parked { .. } | park::Outcome::Unknown(_)));
        self.ended.store(let_go, Ordering::Relaxed);
        parked
    }

    /// Begins the function anew with another input and an empty journal.
    pub(crate) async fn end_with_continuation(&self, input: String) -> Result<continue_as_new::Outcome> {
        let args = continue_as_new::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            input: Some(JsonText(input)),
            input_base64: None,
            content_type: None,
            entries: Vec::new(),
            first_number: None,
        };
        self.end::<ContinueAsNew>(args).await
    }

    pub(crate) async fn end_with_children(&self) -> Result<WaitChildrenOutcome> {
        let args = wait_children::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            continuation: None,
            continuation_base64: None,
            continuation_content_type: None,
            entries: Vec::new(),
            first_number: None,
        };
        self.end::<WaitChildren>(args).await
    }
}

/// The step that a retry of a failed attempt runs again, and where its journal is.
#[derive(Debug, Default)]
pub(crate) struct RunAgain {
    /// The step whose failure ended the attempt.
    pub(crate) cause: Option<StepIdentity>,
    /// Steps that were undone, and their compensations.
    pub(crate) undone: Vec<StepIdentity>,
    /// The number of the next entry.
    pub(crate) first_number: Option<u64>,
}

/// Shortens a reason to its beginning, which says the most.
pub(crate) fn shorten(mut reason: String) -> String {
    reason.retain(|letter| letter != '\0');
    if reason.is_empty() {
        return "failed without a reason".into();
    }
    let mut end = reason.len().min(ff_core::limits::TEXT_MAX_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    reason
}

pub(super) fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
