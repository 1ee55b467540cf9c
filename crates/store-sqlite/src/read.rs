//! Threads that read. One call is one read transaction: all its answers show the same moment.

use std::sync::PoisonError;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition, limits};
use ff_store::{
    Answer, Answers, Fence, IndexEntry, LogPage, LogRecord, LogStart, Query, Result, Scan, ScanPage, StoredDocument,
};
use rusqlite::{Connection, OptionalExtension, Row, Statement};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::Clock;
use crate::error;
use crate::queue::Queue;
use crate::wal::Quiet;

const DOCUMENT: &str = "SELECT version, epoch, lease, lease_until, body, expires_at FROM documents_and_entries \
     WHERE p = ?1 AND k = ?2 AND name = x''";
const BLOB: &str = "SELECT bytes FROM blobs WHERE p = ?1 AND k = ?2";
// An entry is a row with a score. Each statement says so, because the order is an index of those rows alone.
const ASCENDING: &str = "SELECT score, k FROM documents_and_entries WHERE score IS NOT NULL \
     AND p = ?1 AND name = ?2 AND (score, k) >= (?3, ?4) AND score <= ?5 ORDER BY score, k LIMIT ?6";
const DESCENDING: &str = "SELECT score, k FROM documents_and_entries WHERE score IS NOT NULL \
     AND p = ?1 AND name = ?2 AND (score, k) < (?3, ?4) AND score >= ?5 ORDER BY score DESC, k DESC LIMIT ?6";
const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM documents_and_entries WHERE score IS NOT NULL \
     AND p = ?1 AND name = ?2 AND score BETWEEN ?3 AND ?4 LIMIT ?5)";
const NEXT_NAME: &str = "SELECT name FROM documents_and_entries WHERE score IS NOT NULL \
     AND p = ?1 AND name >= ?2 ORDER BY name LIMIT 1";
const HEAD: &str = "SELECT id, first, next FROM logs WHERE p = ?1 AND name = ?2";
const RECORD_AT: &str = "SELECT at FROM records WHERE log = ?1 AND sequence = ?2";
const FORWARDS: &str = "SELECT sequence, at, record FROM records \
     WHERE log = ?1 AND sequence >= ?2 AND sequence < ?3 ORDER BY sequence LIMIT ?4";
const BACKWARDS: &str = "SELECT sequence, at, record FROM records \
     WHERE log = ?1 AND sequence >= ?2 AND sequence < ?3 ORDER BY sequence DESC LIMIT ?4";

/// One call of `read`, waiting for its answers.
#[derive(Debug)]
pub(crate) struct Job {
    partition: Partition,
    queries: Vec<Query>,
    answer: oneshot::Sender<Result<Answers>>,
}

impl Job {
    pub(crate) fn new(partition: Partition, queries: Vec<Query>) -> (Self, oneshot::Receiver<Result<Answers>>) {
        let (answer, answered) = oneshot::channel();
        (Self { partition, queries, answer }, answered)
    }
}

/// The parts that a reading thread owns.
pub(crate) struct Reader<'c> {
    begin: Statement<'c>,
    /// The transaction's snapshot is taken at its first read. This statement is that read, so that the snapshot is
    /// taken before the clock is read.
    settle: Statement<'c>,
    end: Statement<'c>,
    document: Statement<'c>,
    blob: Statement<'c>,
    ascending: Statement<'c>,
    descending: Statement<'c>,
    count: Statement<'c>,
    next_name: Statement<'c>,
    head: Statement<'c>,
    record_at: Statement<'c>,
    forwards: Statement<'c>,
    backwards: Statement<'c>,
}

impl<'c> Reader<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            begin: connection.prepare("BEGIN")?,
            settle: connection.prepare("SELECT last FROM clock")?,
            end: connection.prepare("ROLLBACK")?,
            document: connection.prepare(DOCUMENT)?,
            blob: connection.prepare(BLOB)?,
            ascending: connection.prepare(ASCENDING)?,
            descending: connection.prepare(DESCENDING)?,
            count: connection.prepare(COUNT)?,
            next_name: connection.prepare(NEXT_NAME)?,
            head: connection.prepare(HEAD)?,
            record_at: connection.prepare(RECORD_AT)?,
            forwards: connection.prepare(FORWARDS)?,
            backwards: connection.prepare(BACKWARDS)?,
        })
    }

    /// Serves until the queue is closed and empty.
    pub(crate) fn run(mut self, queue: &Queue<Job>, clock: &Clock, quiet: &Quiet) {
        while let Some(job) = queue.pop() {
            let _reading = quiet.read().unwrap_or_else(PoisonError::into_inner);
            let answers = self.transact(&job, clock).map_err(|why| error::before_commit(&why));
            // A caller that went away needs no answer.
            let _ = job.answer.send(answers);
        }
    }

    fn transact(&mut self, job: &Job, clock: &Clock) -> rusqlite::Result<Answers> {
        self.begin.execute(())?;
        let answers = self.answers(job, clock);
        let ended = self.end.execute(());
        let answers = answers?;
        ended?;
        Ok(answers)
    }

    fn answers(&mut self, job: &Job, clock: &Clock) -> rusqlite::Result<Answers> {
        self.settle.query_row((), |_| Ok(()))?;
        let at = clock.now();
        let partition = job.partition.ordinal();
        let mut answers = Vec::with_capacity(job.queries.len());
        for query in &job.queries {
            answers.push(self.answer(partition, query, at)?);
        }
        Ok(Answers { at, answers })
    }

    fn answer(&mut self, partition: i64, query: &Query, now: i64) -> rusqlite::Result<Answer> {
        Ok(match query {
            Query::Documents(keys) => {
                let mut documents = Vec::with_capacity(keys.len());
                for key in keys {
                    documents.push(self.document(partition, key, now)?);
                }
                Answer::Documents(documents)
            }
            Query::Blobs(keys) => {
                let mut blobs = Vec::with_capacity(keys.len());
                for key in keys {
                    blobs.push(self.blob.query_row((partition, key.as_bytes()), |row| bytes(row, 0)).optional()?);
                }
                Answer::Blobs(blobs)
            }
            Query::Scan(scan) => Answer::Scan(self.scan(partition, scan, now)?),
            Query::Count { index, min, max, at_most } => {
                let at_most = i64::try_from(*at_most).unwrap_or(i64::MAX);
                let asked = (partition, index.as_bytes(), min, max, at_most);
                let count: i64 = self.count.query_row(asked, |row| row.get(0))?;
                Answer::Count(count.cast_unsigned())
            }
            Query::Indexes { prefix, after, limit } => {
                Answer::Indexes(self.indexes(partition, prefix, after.as_ref(), *limit)?)
            }
            Query::Log { log, start, limit } => Answer::Log(self.log(partition, log, *start, *limit)?),
        })
    }

    fn document(&mut self, partition: i64, key: &Key, now: i64) -> rusqlite::Result<Option<StoredDocument>> {
        let document = self.document.query_row((partition, key.as_bytes()), |row| {
            if row.get::<_, Option<i64>>(5)?.is_some_and(|expires_at| expires_at <= now) {
                return Ok(None);
            }
            Ok(Some(StoredDocument {
                key: key.clone(),
                body: bytes(row, 4)?,
                version: CommandId(Uuid::from_bytes(row.get(0)?)),
                fence: Fence {
                    epoch: LeaseEpoch(row.get::<_, i64>(1)?.cast_unsigned()),
                    lease: LeaseId(Uuid::from_bytes(row.get(2)?)),
                },
                lease_until: row.get(3)?,
            }))
        });
        document.optional().map(Option::flatten)
    }

    fn scan(&mut self, partition: i64, scan: &Scan, now: i64) -> rusqlite::Result<ScanPage> {
        let name = scan.index.as_bytes();
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
        let entry = |row: &Row<'_>| {
            Ok(IndexEntry { score: row.get(0)?, member: Key::from_bytes(row.get_ref(1)?.as_blob()?), document: None })
        };
        let rows = if scan.descending {
            let (score, member) = upper_bound(scan);
            self.descending.query_map((partition, name, score, member, scan.min, limit), entry)?
        } else {
            let (score, member) = lower_bound(scan);
            self.ascending.query_map((partition, name, score, member, scan.max, limit), entry)?
        };
        let mut entries = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        if scan.documents {
            for entry in &mut entries {
                entry.document = self.document(partition, &entry.member, now)?;
            }
        }
        Ok(ScanPage { entries })
    }

    /// Jumps from one name to the next, so that the cost does not grow with the entries of the indexes.
    fn indexes(
        &mut self,
        partition: i64,
        prefix: &[u8],
        after: Option<&IndexName>,
        limit: usize,
    ) -> rusqlite::Result<Vec<IndexName>> {
        let mut names = Vec::new();
        let mut from = prefix.to_vec();
        if let Some(after) = after.map(IndexName::as_bytes).filter(|after| *after >= prefix) {
            from = [after, &[0]].concat();
        }
        while names.len() < limit {
            let name: Option<Vec<u8>> = self.next_name.query_row((partition, &from), |row| row.get(0)).optional()?;
            let Some(name) = name.filter(|name| name.starts_with(prefix)) else {
                break;
            };
            from.clone_from(&name);
            from.push(0);
            names.push(IndexName::from_bytes(name));
        }
        Ok(names)
    }

    fn log(&mut self, partition: i64, log: &Key, start: LogStart, limit: usize) -> rusqlite::Result<LogPage> {
        let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let head = self.head.query_row((partition, log.as_bytes()), columns).optional()?;
        let Some((id, first, next)): Option<(i64, i64, i64)> = head else {
            return Ok(LogPage { records: Vec::new(), first: 1, removed_up_to: 0, next: 1 });
        };
        let number = |sequence: u64| i64::try_from(sequence).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let record = |row: &Row<'_>| {
            Ok(LogRecord { sequence: row.get::<_, i64>(0)?.cast_unsigned(), at: row.get(1)?, record: bytes(row, 2)? })
        };
        let rows = match start {
            LogStart::After(sequence) => {
                let from = number(sequence).saturating_add(1).max(first);
                self.forwards.query_map((id, from, next, limit), record)?
            }
            LogStart::Since(instant) => {
                let from = self.first_since(id, instant, first, next)?;
                self.forwards.query_map((id, from, next, limit), record)?
            }
            LogStart::Before(sequence) => {
                self.backwards.query_map((id, first, number(sequence).min(next), limit), record)?
            }
        };
        let records = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        // Numbers have no gaps in this store, so all records below the first were removed.
        let (first, next) = (first.cast_unsigned(), next.cast_unsigned());
        Ok(LogPage { records, first, removed_up_to: first.saturating_sub(1), next })
    }

    /// The first record at or after an instant. Numbers have no gaps and instants only grow, so a binary search finds
    /// it without an index.
    fn first_since(&mut self, id: i64, instant: i64, first: i64, next: i64) -> rusqlite::Result<i64> {
        let (mut low, mut high) = (first, next);
        while low < high {
            let middle = low + (high - low) / 2;
            let at: i64 = self.record_at.query_row((id, middle), |row| row.get(0))?;
            if at < instant {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// The entry an ascending scan begins at, included. Nothing sorts between a member and the same member with a zero
/// byte behind it, so "behind" needs no statement of its own.
fn lower_bound(scan: &Scan) -> (i64, Vec<u8>) {
    match &scan.after {
        Some((score, member)) if *score >= scan.min => {
            let mut behind = member.as_bytes().to_vec();
            behind.push(0);
            (*score, behind)
        }
        _ => (scan.min, Vec::new()),
    }
}

/// The entry a descending scan begins below. No member is empty, so the empty one stands before all of its score.
fn upper_bound(scan: &Scan) -> (i64, Vec<u8>) {
    match &scan.after {
        Some((score, member)) if *score <= scan.max => (*score, member.as_bytes().to_vec()),
        _ => (scan.max.min(limits::SCORE_MAX) + 1, Vec::new()),
    }
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}
