//! Errors between a program and the engine.

use ff_core::execution::FailOutcome;
use ff_core::op::view::FailureView;
use ff_core::{Class, Code, Error, ExecutionId, PublicState};

/// The result of everything in this crate.
pub type Result<T, E = SdkError> = std::result::Result<T, E>;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SdkError {
    /// The engine refused; the code says why, and [`Code::advice`] what to do about it.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The worker runs as many tasks as it may. Nothing was claimed, and a grant is untouched.
    #[error("the worker runs all of its {max_concurrent_tasks} tasks")]
    WorkerAtCapacity {
        /// How many it may run at once.
        max_concurrent_tasks: usize,
    },
    /// The program's configuration makes no sense.
    #[error("{context}: {field} {message}")]
    Config {
        /// The part that was being set up.
        context: &'static str,
        /// The setting.
        field: &'static str,
        /// The fault in it.
        message: String,
    },
    /// The server could not be reached, or its answers were lost, for as long as the retries lasted.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// A newer server refused with a code that this version does not know.
    #[error(transparent)]
    UnknownRefusal(Box<UnknownRefusal>),
    /// The server's answer is not one that this version understands.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
    /// A value could not be turned into bytes, or bytes into a value.
    #[error("{what}: {source}")]
    Payload {
        /// Which value.
        what: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The ending of a task was refused for its content. The attempt has failed with the category `refused` instead,
    /// and the execution's policy decides whether there is another.
    #[error("the ending was refused, and the attempt has failed: {error}")]
    EndingRefused {
        /// Why it was refused.
        error: Box<SdkError>,
        /// The outcome of the attempt.
        outcome: FailOutcome,
    },
    /// A result was asked for, but the execution ended without success.
    #[error("execution {execution_id} is {public_state}{}", .failure.as_ref().map(|failure| format!(": {}", failure.reason)).unwrap_or_default())]
    NotCompleted {
        /// The execution.
        execution_id: ExecutionId,
        /// How it ended.
        public_state: PublicState,
        /// The failure, if there was one.
        failure: Option<Box<FailureView>>,
    },
}

/// Whether a call that was refused so may succeed when it is repeated.
pub(crate) fn may_pass(error: &Error) -> bool {
    let passing = error.code.class() == Class::Unavailable || error.code == Code::ConcurrencyLimitExceeded;
    passing && error.code.retryable()
}

/// A refusal whose code this version does not know, as the server wrote it.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct UnknownRefusal {
    /// The code.
    pub code: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The particular circumstances, for people.
    #[serde(default)]
    pub detail: String,
    /// The circumstances for programs.
    #[serde(default)]
    pub details: serde_json::Map<String, serde_json::Value>,
    /// Whether the same call may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// When repeating makes sense.
    #[serde(default)]
    pub retry_after_ms: Option<i64>,
}

impl SdkError {
    /// Whether the same call may succeed later without any change by the caller. Repeating it is safe: a call has its
    /// identity from its first try on.
    pub fn is_retryable(&self) -> bool {
        match self {
            SdkError::Refused(error) => error.code.retryable(),
            SdkError::UnknownRefusal(refusal) => refusal.retryable,
            SdkError::WorkerAtCapacity { .. } | SdkError::Unreachable(_) => true,
            SdkError::EndingRefused { .. }
            | SdkError::Config { .. }
            | SdkError::Unreadable(_)
            | SdkError::Payload { .. }
            | SdkError::NotCompleted { .. } => false,
        }
    }

    /// The engine's code, if the engine refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            SdkError::Refused(error) => Some(error.code),
            SdkError::WorkerAtCapacity { .. } => Some(Code::WorkerAtCapacity),
            SdkError::EndingRefused { error, .. } => error.code(),
            _ => None,
        }
    }

    /// Whether the lease behind a task is lost, so that another worker has its work by now.
    pub fn is_lease_lost(&self) -> bool {
        let lost = |code| {
            matches!(
                code,
                Code::StaleLease
                    | Code::LeaseExpired
                    | Code::LeaseRevoked
                    | Code::ExecutionNotActive
                    | Code::ExecutionNotFound
            )
        };
        self.code().is_some_and(lost)
    }

    /// Whether a call was refused for what it says, so that saying it again would be refused again. The lease is still
    /// held then.
    pub(crate) fn refuses_content(&self) -> bool {
        match self {
            SdkError::Payload { .. } => true,
            SdkError::Refused(error) => {
                let by_content =
                    matches!(error.code.class(), Class::Invalid | Class::Limit | Class::NotFound | Class::Conflict);
                by_content && !error.code.retryable() && !self.is_lease_lost()
            }
            _ => false,
        }
    }

    pub(crate) fn config(context: &'static str, field: &'static str, message: impl Into<String>) -> Self {
        SdkError::Config { context, field, message: message.into() }
    }

    pub(crate) fn payload(what: &'static str) -> impl FnOnce(serde_json::Error) -> Self {
        move |source| SdkError::Payload { what, source }
    }
}
