//! The tables, and the migrations that give them to older files.

use ff_store::{Result, StoreError};
use rusqlite::{Connection, Transaction, TransactionBehavior, ffi};

use crate::error;

/// One step for each version of the schema, oldest first. Steps that were released never change.
const MIGRATIONS: &[&str] = &[include_str!("../migrations/0001.sql"), include_str!("../migrations/0002.sql")];

/// Marks a file as ours in its header: "FLOW" in ASCII.
const APPLICATION_ID: i32 = 0x464c_4f57;

/// The schema this program knows.
pub(crate) fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("the steps are listed above, and few")
}

/// Refuses a file that is not ours or too new for us, before anything is changed.
pub(crate) fn recognise(connection: &Connection) -> Result<u32> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let found = number("PRAGMA user_version").map_err(|why| error::before_commit(&why))?;
    let application = number("PRAGMA application_id").map_err(|why| error::before_commit(&why))?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(|why| error::before_commit(&why))?;
    if tables > 0 && application != i64::from(APPLICATION_ID) {
        return Err(StoreError::Config("the file is a SQLite database of another program; use another file".into()));
    }
    let found = u32::try_from(found).map_err(|_| StoreError::Corrupt(format!("the schema has version {found}")))?;
    if found > known() {
        return Err(StoreError::Newer { found, known: known() });
    }
    Ok(found)
}

/// Brings the file to the schema this program knows: all missing steps or none.
pub(crate) fn migrate(connection: &mut Connection, found: u32) -> rusqlite::Result<()> {
    if found == known() {
        return Ok(());
    }
    // A step may sort all that is in the file, which memory need not hold.
    connection.pragma_update(None, "temp_store", "FILE")?;
    let migrated = run_steps(connection, found);
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    match migrated {
        // A container that can write nowhere but beside the file has no directory for others, and no other way.
        Err(why) if is_without_directory(&why) => run_steps(connection, found),
        migrated => migrated,
    }
}

/// Whether SQLite found no directory for temporary files.
fn is_without_directory(why: &rusqlite::Error) -> bool {
    why.sqlite_error().is_some_and(|why| why.extended_code == ffi::SQLITE_IOERR_GETTEMPPATH)
}

fn run_steps(connection: &mut Connection, found: u32) -> rusqlite::Result<()> {
    let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", known())?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_told_from_a_full_disk() {
        let failed = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        assert!(is_without_directory(&failed(ffi::SQLITE_IOERR_GETTEMPPATH)));
        assert!(!is_without_directory(&failed(ffi::SQLITE_FULL)));
        assert!(!is_without_directory(&failed(ffi::SQLITE_IOERR_WRITE)));
    }
}
