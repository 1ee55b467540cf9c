//! Removes rows that no read shows any more: expired documents and trimmed records. It runs inside the transaction of a
//! commit, in bounded steps, so an idle store writes nothing.

use rusqlite::{Connection, OptionalExtension, Statement};

/// Rows removed in one step.
const CHUNK: u16 = 200;
/// How long the sweep rests when it found less than a whole step of work.
const PAUSE_MS: i64 = 1_000;

const REMOVE_EXPIRED: &str = "DELETE FROM documents_and_entries WHERE (k, p, name) IN \
     (SELECT k, p, name FROM documents_and_entries WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
const FIND_GARBAGE: &str = "SELECT log, below FROM garbage LIMIT 1";
const REMOVE_RECORDS: &str = "DELETE FROM records WHERE log = ?1 AND sequence IN \
     (SELECT sequence FROM records WHERE log = ?1 AND sequence < ?2 ORDER BY sequence LIMIT ?3)";
const FORGET_GARBAGE: &str = "DELETE FROM garbage WHERE log = ?1";

/// The statements of the sweep, and whether there may be work left.
pub(crate) struct Sweep<'c> {
    remove_expired: Statement<'c>,
    find_garbage: Statement<'c>,
    remove_records: Statement<'c>,
    forget_garbage: Statement<'c>,
    expired_again_at: i64,
    garbage: bool,
}

impl<'c> Sweep<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            remove_expired: connection.prepare(REMOVE_EXPIRED)?,
            find_garbage: connection.prepare(FIND_GARBAGE)?,
            remove_records: connection.prepare(REMOVE_RECORDS)?,
            forget_garbage: connection.prepare(FORGET_GARBAGE)?,
            expired_again_at: 0,
            garbage: false,
        })
    }

    /// Removes a bounded number of documents and records.
    pub(crate) fn step(&mut self, now: i64, more_garbage: bool) -> rusqlite::Result<()> {
        if now >= self.expired_again_at {
            let removed = self.remove_expired.execute((now, CHUNK))?;
            self.expired_again_at = if removed < usize::from(CHUNK) { now + PAUSE_MS } else { now };
        }
        self.garbage |= more_garbage;
        if self.garbage {
            self.garbage = self.remove_garbage()?;
        }
        Ok(())
    }

    /// Removes one step of trimmed records; returns whether there may be more.
    fn remove_garbage(&mut self) -> rusqlite::Result<bool> {
        let columns = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let Some((log, below)) = self.find_garbage.query_row((), columns).optional()? else {
            return Ok(false);
        };
        if self.remove_records.execute((log, below, CHUNK))? < usize::from(CHUNK) {
            self.forget_garbage.execute((log,))?;
        }
        Ok(true)
    }
}
