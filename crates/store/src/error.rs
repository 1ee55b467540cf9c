//! Why a store could not answer. Conflicts are not errors: they are outcomes of a batch.

use ff_core::{Code, Error};

/// The detail that marks an error after which the commit may have been applied.
const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Why a call to the database failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, or not in time. A commit may or may not have been applied.
    #[error("the store did not answer: {0}; the outcome is unknown")]
    Unknown(String),
    /// The database cannot be reached or refuses to work now. Nothing was applied.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// No room left on disk or in memory. Nothing was applied.
    #[error("the store is full: {0}")]
    Full(String),
    /// The database takes no writes. Nothing was applied.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    /// Another process owns the database.
    #[error("the store is in use: {0}")]
    Locked(String),
    /// Stored bytes cannot be read.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The database was written by a newer version of this program.
    #[error("the store has schema {found}, this version knows up to {known}")]
    Newer {
        /// The version that the database has.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// The database itself is too old.
    #[error("the store has version {found}, at least {required} is required")]
    TooOld {
        /// The version that runs there.
        found: String,
        /// The version that is needed.
        required: String,
    },
    /// The store carries a function library of a newer protocol.
    #[error("the store's function library is {found}, this version speaks {known}")]
    LibraryMismatch {
        /// The version that the database has.
        found: String,
        /// The version that this program knows.
        known: String,
    },
    /// The address, the options or the credentials are wrong.
    #[error("the store cannot be opened: {0}")]
    Config(String),
    /// The request itself breaks a rule of the store; a defect of the caller.
    #[error("the store refuses the request: {0}")]
    Invalid(String),
    /// The request is larger than a commit may be.
    #[error("the commit is too large: {0}")]
    TooLarge(String),
}

impl StoreError {
    /// Whether a commit that ended this way may have been applied.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, StoreError::Unknown(_))
    }

    /// Whether a commit may have been applied although it ended in this error, which was made from a store's error.
    pub fn may_be_applied(error: &Error) -> bool {
        error.details.contains_key(OUTCOME_UNKNOWN)
    }

    /// Whether the same call may succeed later.
    pub fn retryable(&self) -> bool {
        matches!(
            self,
            StoreError::Unknown(_) | StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::ReadOnly(_)
        )
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        let code = match &error {
            StoreError::Unknown(_) | StoreError::Unavailable(_) => Code::Unavailable,
            StoreError::Full(_) => Code::StoreFull,
            StoreError::ReadOnly(_) => Code::StoreReadOnly,
            StoreError::Locked(_) => Code::StoreLocked,
            StoreError::Corrupt(_) => Code::CorruptDocument,
            StoreError::Newer { .. } => Code::StoreNewer,
            StoreError::TooOld { .. } => Code::StoreVersionTooLow,
            StoreError::LibraryMismatch { .. } => Code::LibraryVersionMismatch,
            StoreError::TooLarge(_) => Code::CommitTooLarge,
            StoreError::Config(_) => Code::Invalid,
            StoreError::Invalid(_) => Code::Internal,
        };
        let answer = Error::new(code, error.to_string());
        match error {
            StoreError::TooOld { found, required } => answer.with("found", found).with("required", required),
            StoreError::LibraryMismatch { found, known } => answer.with("found", found).with("known", known),
            StoreError::Newer { found, known } => answer.with("found", found).with("known", known),
            StoreError::Unknown(_) => answer.retry_after(1_000).with(OUTCOME_UNKNOWN, true),
            StoreError::Full(_) | StoreError::Unavailable(_) => answer.retry_after(1_000),
            _ => answer,
        }
    }
}
