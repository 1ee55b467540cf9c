//! The meaning of PostgreSQL's errors for the store's callers.

use std::error::Error as _;

use deadpool_postgres::PoolError;
use ff_store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The way to go on after a call that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A serialization failure or a deadlock: nothing was applied, and the same call may pass now.
    Again(StoreError),
    /// The server has no room for so many locks: nothing was applied, one lock for all may pass.
    Locks(StoreError),
    /// Something in the request is at fault: nothing was applied, and only the request that has it fails again.
    Data(StoreError),
    /// Anything else.
    Store(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Again(error) | Failure::Locks(error) | Failure::Data(error) | Failure::Store(error) => error,
        }
    }
}

/// Everything the error knows, in one line.
pub(crate) fn text(error: &Error) -> String {
    if let Some(database) = error.as_db_error() {
        let mut text = format!("{} ({})", database.message(), database.code().code());
        for more in [database.detail(), database.hint()].into_iter().flatten() {
            text.push_str("; ");
            text.push_str(more);
        }
        return text;
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Why a connection could not be had.
pub(crate) fn connecting(error: &Error) -> StoreError {
    match error.as_db_error() {
        Some(database) => refusal(database, text(error)),
        None if read_only(error) => takes_only_reads(),
        // Wrong words to the server, a certificate that does not fit: trying again cannot help.
        None if configuration(error) => StoreError::Config(text(error)),
        None => StoreError::Unavailable(text(error)),
    }
}

/// Why the pool gave no connection. Nothing was sent.
pub(crate) fn pool(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => connecting(&error),
        PoolError::Timeout(_) => StoreError::Unavailable("no connection became free in time".into()),
        PoolError::Closed => StoreError::Unavailable("the store is closed".into()),
        other => StoreError::Unavailable(other.to_string()),
    }
}

/// Why a read failed.
pub(crate) fn reading(error: &Error) -> StoreError {
    match error.as_db_error() {
        Some(database) => refusal(database, text(error)),
        None => StoreError::Unavailable(text(error)),
    }
}

/// Why a commit failed.
pub(crate) fn committing(error: &Error) -> Failure {
    let Some(database) = error.as_db_error() else {
        // The request was handed to the connection: it may have arrived.
        return Failure::Store(StoreError::Unknown(text(error)));
    };
    // An ERROR ends the transaction; a FATAL may also strike between the commit and its answer.
    if database.parsed_severity() != Some(Severity::Error) {
        return Failure::Store(StoreError::Unknown(text(error)));
    }
    let code = database.code();
    let text = text(error);
    if *code == SqlState::T_R_SERIALIZATION_FAILURE
        || *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::LOCK_NOT_AVAILABLE
    {
        Failure::Again(StoreError::Unavailable(text))
    } else if *code == SqlState::OUT_OF_MEMORY {
        Failure::Locks(StoreError::Unavailable(text))
    } else if matches!(code.code().get(..2), Some("21" | "22" | "23" | "54")) {
        Failure::Data(StoreError::Invalid(text))
    } else {
        Failure::Store(refusal(database, text))
    }
}

/// The refusal of the server as an error of the store.
fn refusal(database: &DbError, text: String) -> StoreError {
    let code = database.code();
    if *code == SqlState::DISK_FULL {
        StoreError::Full(text)
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        StoreError::ReadOnly(text)
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE
        || *code == SqlState::INVALID_CATALOG_NAME
        || *code == SqlState::INVALID_SCHEMA_NAME
        || *code == SqlState::UNDEFINED_TABLE
        || *code == SqlState::UNDEFINED_FUNCTION
        || code.code().starts_with("28")
    {
        StoreError::Config(text)
    } else if matches!(code.code(), "XX001" | "XX002") {
        StoreError::Corrupt(text)
    } else {
        StoreError::Unavailable(text)
    }
}

/// Said of a server that cannot be written to.
pub(crate) fn takes_only_reads() -> StoreError {
    StoreError::ReadOnly("the server is a standby or takes only reads".into())
}

/// Whether a server was passed over because it takes only reads. The driver says so by the kind of the cause.
fn read_only(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied && cause.raw_os_error().is_none())
}

/// Whether an error without an answer of the server comes from how we were told to connect.
fn configuration(error: &Error) -> bool {
    let text = error.to_string();
    let ours = ["invalid configuration", "authentication error", "error performing TLS handshake"];
    ours.iter().any(|own| text.starts_with(own))
}
