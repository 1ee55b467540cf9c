//! Logs inside the writer's transaction. Numbers have no holes here, whether or not the caller expects one.

use std::collections::HashMap;

use ff_core::Key;
use ff_store::{Append, Conflict, ConflictReason, Trim};
use rusqlite::{Connection, OptionalExtension, Statement};

/// A trim of more records than this leaves them to the sweep, so that no commit takes long.
const REMOVED_AT_ONCE_MAX: i64 = 1_000;

/// A capped log is trimmed when it is this much too long (an eighth of its cap, within these bounds), not at every
/// append.
const TRIM_CHUNK_MIN: i64 = 16;
const TRIM_CHUNK_MAX: i64 = 500;

const HEAD: &str = "SELECT id, first, next FROM logs WHERE p = ?1 AND name = ?2";
const CREATE: &str = "INSERT INTO logs (p, name, first, next) VALUES (?1, ?2, 1, 1)";
const WRITE_HEAD: &str = "UPDATE logs SET first = ?2, next = ?3 WHERE id = ?1";
const DELETE: &str = "DELETE FROM logs WHERE id = ?1";
const APPEND: &str = "INSERT INTO records (log, sequence, at, record) VALUES (?1, ?2, ?3, ?4)";
const REMOVE: &str = "DELETE FROM records WHERE log = ?1 AND sequence < ?2";
const DISCARD: &str =
    "INSERT INTO garbage (log, below) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET below = max(below, ?2)";

/// The statements logs need.
pub(crate) struct Logs<'c> {
    connection: &'c Connection,
    head: Statement<'c>,
    create: Statement<'c>,
    write_head: Statement<'c>,
    delete: Statement<'c>,
    append: Statement<'c>,
    remove: Statement<'c>,
    discard: Statement<'c>,
    /// The heads that this transaction has read. Many callers append to the same log, and so its head is read once and
    /// written once.
    heads: HashMap<(i64, Key), Option<Head>>,
    garbage: bool,
}

/// The first and the next sequence number of a log.
#[derive(Debug, Clone, Copy)]
struct Head {
    id: i64,
    first: i64,
    next: i64,
    moved: bool,
}

impl<'c> Logs<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            head: connection.prepare(HEAD)?,
            create: connection.prepare(CREATE)?,
            write_head: connection.prepare(WRITE_HEAD)?,
            delete: connection.prepare(DELETE)?,
            append: connection.prepare(APPEND)?,
            remove: connection.prepare(REMOVE)?,
            discard: connection.prepare(DISCARD)?,
            heads: HashMap::new(),
            // The last run may have left some; the first sweep finds out.
            garbage: true,
        })
    }

    /// Whether every append gets the number it expects.
    pub(crate) fn check(&mut self, partition: i64, appends: &[Append]) -> rusqlite::Result<Option<Conflict>> {
        for append in appends {
            let Some(expected) = append.expected else {
                continue;
            };
            let next = self.head(partition, &append.log)?.map_or(1, |head| head.next.cast_unsigned());
            if expected != next {
                let why = ConflictReason::Sequence(next);
                return Ok(Some(Conflict { key: Some(append.log.clone()), why }));
            }
        }
        Ok(None)
    }

    /// Appends records and returns the number of the first.
    pub(crate) fn append(&mut self, partition: i64, append: &Append, now: i64) -> rusqlite::Result<u64> {
        let mut head = match self.head(partition, &append.log)? {
            Some(head) => head,
            None => {
                self.create.execute((partition, append.log.as_bytes()))?;
                Head { id: self.connection.last_insert_rowid(), first: 1, next: 1, moved: false }
            }
        };
        let sequence = head.next;
        for record in &append.records {
            self.append.execute((head.id, head.next, now, &record[..]))?;
            head.next += 1;
        }
        let cap = i64::try_from(append.cap).unwrap_or(i64::MAX);
        let chunk = (cap / 8).clamp(TRIM_CHUNK_MIN, TRIM_CHUNK_MAX);
        if cap > 0 && head.next - head.first >= cap.saturating_add(chunk) {
            self.remove(head, head.next - cap)?;
            head.first = head.next - cap;
        }
        self.move_head(partition, &append.log, head);
        Ok(sequence.cast_unsigned())
    }

    /// Removes the oldest records, or the whole log with its numbering.
    pub(crate) fn trim(&mut self, partition: i64, trim: &Trim) -> rusqlite::Result<()> {
        let Some(mut head) = self.head(partition, &trim.log)? else {
            return Ok(());
        };
        if trim.before == u64::MAX {
            self.remove(head, head.next)?;
            self.delete.execute((head.id,))?;
            self.heads.insert((partition, trim.log.clone()), None);
            return Ok(());
        }
        let before = i64::try_from(trim.before).unwrap_or(i64::MAX).min(head.next);
        if before > head.first {
            self.remove(head, before)?;
            head.first = before;
            self.move_head(partition, &trim.log, head);
        }
        Ok(())
    }

    /// Writes the heads that moved. Must be called at the end of every transaction that is to be committed.
    pub(crate) fn finish(&mut self) -> rusqlite::Result<()> {
        for head in self.heads.drain().filter_map(|(_, head)| head).filter(|head| head.moved) {
            self.write_head.execute((head.id, head.first, head.next))?;
        }
        Ok(())
    }

    /// Must be called after every transaction that was rolled back.
    pub(crate) fn forget(&mut self) {
        self.heads.clear();
    }

    /// Whether trims since the last call have left records to be removed.
    pub(crate) fn left_garbage(&mut self) -> bool {
        std::mem::take(&mut self.garbage)
    }

    fn head(&mut self, partition: i64, log: &Key) -> rusqlite::Result<Option<Head>> {
        let name = (partition, log.clone());
        if let Some(head) = self.heads.get(&name) {
            return Ok(*head);
        }
        let columns =
            |row: &rusqlite::Row<'_>| Ok(Head { id: row.get(0)?, first: row.get(1)?, next: row.get(2)?, moved: false });
        let head = self.head.query_row((partition, log.as_bytes()), columns).optional()?;
        self.heads.insert(name, head);
        Ok(head)
    }

    fn move_head(&mut self, partition: i64, log: &Key, head: Head) {
        self.heads.insert((partition, log.clone()), Some(Head { moved: true, ..head }));
    }

    fn remove(&mut self, head: Head, below: i64) -> rusqlite::Result<()> {
        if below - head.first <= REMOVED_AT_ONCE_MAX {
            self.remove.execute((head.id, below))?;
        } else {
            self.discard.execute((head.id, below))?;
            self.garbage = true;
        }
        Ok(())
    }
}
