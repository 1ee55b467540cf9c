//! How a handler ends without a result.

use std::any::Any;
use std::time::Duration;

use ff_core::journal::StepIdentity;

use crate::error::SdkError;

/// The categories of failures that the runtime itself reports. A policy names the categories that are not retried.
pub mod category {
    /// An error that says nothing about its category.
    pub const ERROR: &str = "error";
    /// The handler panicked.
    pub const PANIC: &str = "panic";
    /// The input is not what the handler takes.
    pub const INVALID_INPUT: &str = "invalid_input";
    /// The result cannot be written as JSON.
    pub const INVALID_RESULT: &str = "invalid_result";
    /// The body of a `once` step says that nothing happened.
    pub const NOT_DONE: &str = "not_done";
    /// The ending of the task was refused for its content: a result that is too large or too deep, a content type that
    /// is none, a suspension on a waitpoint that is not there.
    pub const REFUSED: &str = "refused";
    /// The hard limit of a budget forbids what was reported.
    pub const BUDGET_EXCEEDED: &str = "budget_exceeded";
    /// A budget had no room for what was to be spent.
    pub const BUDGET_REFUSED: &str = "budget_refused";
    /// A provider said that there were too many calls.
    pub const THROTTLED: &str = "throttled";
    /// The stream could not be written.
    pub const STREAM: &str = "stream";
}

/// Why a handler did not end with a result. Any error becomes one by `?`, with the category `error`.
///
/// ```
/// use flowfabric::TaskError;
/// fn parse(text: &str) -> Result<u32, TaskError> {
///     let number: u32 = text.parse()?;
///     if number == 0 {
///         return Err(TaskError::new("zero is not allowed").category("bad_request"));
///     }
///     Ok(number)
/// }
/// assert!(parse("x").is_err());
/// ```
#[derive(Debug)]
pub struct TaskError(pub(crate) End);

/// The ending that the runtime has to bring about.
#[derive(Debug)]
pub(crate) enum End {
    /// Report a failure.
    Failed { reason: String, category: String, retry_after: Option<Duration>, cause: Option<StepIdentity> },
    /// Nothing: the task was suspended, delayed, cancelled, or left to its children.
    Released,
    /// Nothing: the lease is lost.
    Lost,
    /// Hand the task back: the journal moved, and the function starts over with what is there.
    StartOver,
}

impl TaskError {
    /// A failure.
    pub fn new(reason: impl Into<String>) -> Self {
        let category = category::ERROR.into();
        Self(End::Failed { reason: reason.into(), category, retry_after: None, cause: None })
    }

    /// The category of the failure; the policy decides by it whether the attempt is retried.
    #[must_use]
    pub fn category(mut self, name: impl Into<String>) -> Self {
        if let End::Failed { category, .. } = &mut self.0 {
            *category = name.into();
        }
        self
    }

    /// Whether this is a failure of a category.
    pub fn has_category(&self, name: &str) -> bool {
        matches!(&self.0, End::Failed { category, .. } if category == name)
    }

    /// How long to wait before a retry, instead of the policy's backoff.
    #[must_use]
    pub fn retry_after(mut self, time: Duration) -> Self {
        if let End::Failed { retry_after, .. } = &mut self.0 {
            *retry_after = Some(time);
        }
        self
    }

    /// The body of a `once` step says for certain that nothing happened; only then is it tried again by itself.
    pub fn not_done(reason: impl Into<String>) -> Self {
        Self::new(reason).category(category::NOT_DONE)
    }

    /// A provider said that there were too many calls (429), and perhaps for how long it wants to be left alone. A call that
    /// [`Acquire::step`](crate::Acquire::step) makes then waits for its next turn.
    pub fn throttled(retry_after: Option<Duration>) -> Self {
        let throttled = Self::new("the provider said that there were too many calls").category(category::THROTTLED);
        match retry_after {
            Some(time) => throttled.retry_after(time),
            None => throttled,
        }
    }

    /// For how long a provider wants to be left alone, where this is what it said.
    pub(crate) fn throttled_for(&self) -> Option<Option<Duration>> {
        match &self.0 {
            End::Failed { category, retry_after, .. } if category == category::THROTTLED => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether something went wrong; otherwise the function was interrupted.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.0, End::Failed { .. })
    }

    pub(crate) fn is_not_done(&self) -> bool {
        matches!(&self.0, End::Failed { category, .. } if category == category::NOT_DONE)
    }

    /// The step whose failure this is: a retry of the attempt runs it again.
    pub(crate) fn caused_by(mut self, step: StepIdentity) -> Self {
        if let End::Failed { cause, .. } = &mut self.0 {
            *cause = Some(step);
        }
        self
    }

    /// Category and reason, for the journal.
    pub(crate) fn in_words(&self) -> (String, String) {
        match &self.0 {
            End::Failed { reason, category, .. } => (category.clone(), reason.clone()),
            End::Released | End::Lost | End::StartOver => (String::new(), "the step was interrupted".into()),
        }
    }

    /// A mistake of the program that the engine's own rules name.
    pub(crate) fn refused(error: ff_core::Error) -> Self {
        Self::new(error.to_string()).category(error.code.as_str())
    }

    /// A way out of the task was refused. For its content it would be refused again, which the category says.
    pub(crate) fn of_ending(error: SdkError) -> Self {
        let refused = error.refuses_content();
        let ended = Self::from(error);
        if refused { ended.category(category::REFUSED) } else { ended }
    }

    pub(crate) fn released() -> Self {
        Self(End::Released)
    }

    pub(crate) fn lost() -> Self {
        Self(End::Lost)
    }

    pub(crate) fn start_over() -> Self {
        Self(End::StartOver)
    }

    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::new(format!("panicked: {}", words.unwrap_or_default())).category(category::PANIC)
    }
}

impl<E: std::error::Error + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        // A handler that has lost the lease has nothing to report.
        let any: &dyn Any = &error;
        if any.downcast_ref::<SdkError>().is_some_and(SdkError::is_lease_lost) {
            return Self(End::Lost);
        }
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            reason.push_str(": ");
            reason.push_str(&deeper.to_string());
            cause = deeper.source();
        }
        Self::new(reason)
    }
}
