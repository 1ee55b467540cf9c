//! SQLite's result codes in the words of the store interface.

use ff_store::StoreError;
use rusqlite::{Error, ErrorCode};

/// The error of a statement before `COMMIT`, or of a read: nothing was applied.
pub(crate) fn before_commit(error: &Error) -> StoreError {
    let text = error.to_string();
    match error {
        Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..)
        | Error::Utf8Error(..) => StoreError::Corrupt(text),
        _ => match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full(format!("{text}; free space on the file's disk")),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                StoreError::ReadOnly(format!("{text}; check the permissions of the file and its directory"))
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Corrupt(format!("{text}; restore the file from a backup"))
            }
            _ => StoreError::Unavailable(text),
        },
    }
}

/// The error of `COMMIT` itself. SQLite has rolled the transaction back, but after an error while syncing it is not
/// known whether the frames reached the disk: after a crash right now they could still be found there.
pub(crate) fn at_commit(error: &Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::ReadOnly | ErrorCode::DatabaseBusy) => before_commit(error),
        _ => StoreError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn failure(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn each_trouble_has_its_own_answer() {
        assert!(matches!(before_commit(&failure(ffi::SQLITE_FULL)), StoreError::Full(_)));
        assert!(matches!(before_commit(&failure(ffi::SQLITE_READONLY)), StoreError::ReadOnly(_)));
        assert!(matches!(before_commit(&failure(ffi::SQLITE_CORRUPT)), StoreError::Corrupt(_)));
        assert!(matches!(before_commit(&failure(ffi::SQLITE_NOTADB)), StoreError::Corrupt(_)));
        assert!(matches!(before_commit(&failure(ffi::SQLITE_BUSY)), StoreError::Unavailable(_)));
        assert!(matches!(before_commit(&failure(ffi::SQLITE_IOERR)), StoreError::Unavailable(_)));
    }

    #[test]
    fn a_failed_sync_leaves_the_outcome_open() {
        assert!(at_commit(&failure(ffi::SQLITE_IOERR_FSYNC)).outcome_unknown());
        assert!(!at_commit(&failure(ffi::SQLITE_FULL)).outcome_unknown());
    }
}
