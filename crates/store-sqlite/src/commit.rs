//! One batch inside the writer's transaction: all guards, then all effects.

use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId};
use ff_store::{
    AppliedBatch, Batch, BlobChange, Conflict, ConflictReason, EntryChange, Fence, Guard, LeaseChange, Outcome, Put,
};
use rusqlite::{Connection, OptionalExtension, Statement};
use uuid::Uuid;

use crate::logs::Logs;

// A document is the row without a name beside those of its entries.
const HEADER: &str = "SELECT version, epoch, lease, lease_until, expires_at FROM documents_and_entries \
     WHERE p = ?1 AND k = ?2 AND name = x''";
const PUT: &str = "INSERT INTO documents_and_entries \
         (p, k, name, version, epoch, lease, lease_until, expires_at, body) \
     VALUES (?1, ?2, x'', ?3, ?4, ?5, coalesce(?9, 0), ?6, ?7) \
     ON CONFLICT DO UPDATE SET version = ?3, epoch = ?4, lease = ?5, body = ?7, lease_until = \
         CASE WHEN ?9 IS NOT NULL THEN ?9 WHEN expires_at <= ?8 THEN 0 ELSE lease_until END, expires_at = ?6";
const DELETE: &str = "DELETE FROM documents_and_entries WHERE p = ?1 AND k = ?2 AND name = x''";
const LEASE: &str = "UPDATE documents_and_entries SET lease_until = ?3 WHERE p = ?1 AND k = ?2 AND name = x''";
const SET_ENTRY: &str = "INSERT INTO documents_and_entries (p, name, k, score) VALUES (?1, ?2, ?3, ?4) \
     ON CONFLICT DO UPDATE SET score = ?4 WHERE score <> ?4";
const REMOVE_ENTRY: &str = "DELETE FROM documents_and_entries WHERE p = ?1 AND name = ?2 AND k = ?3";
const SET_BLOB: &str = "INSERT INTO blobs (p, k, bytes) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET bytes = ?3";
const REMOVE_BLOB: &str = "DELETE FROM blobs WHERE p = ?1 AND k = ?2";

/// The statements a batch needs, prepared once for the life of the writer.
pub(crate) struct Commits<'c> {
    header: Statement<'c>,
    put: Statement<'c>,
    delete: Statement<'c>,
    lease: Statement<'c>,
    set_entry: Statement<'c>,
    remove_entry: Statement<'c>,
    set_blob: Statement<'c>,
    remove_blob: Statement<'c>,
    logs: Logs<'c>,
}

/// The part of a document that guards compare.
#[derive(Debug, Clone, Copy)]
struct Header {
    version: CommandId,
    fence: Fence,
    lease_until: i64,
}

impl<'c> Commits<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            header: connection.prepare(HEADER)?,
            put: connection.prepare(PUT)?,
            delete: connection.prepare(DELETE)?,
            lease: connection.prepare(LEASE)?,
            set_entry: connection.prepare(SET_ENTRY)?,
            remove_entry: connection.prepare(REMOVE_ENTRY)?,
            set_blob: connection.prepare(SET_BLOB)?,
            remove_blob: connection.prepare(REMOVE_BLOB)?,
            logs: Logs::prepare(connection)?,
        })
    }

    /// Applies a batch, or names the guard that does not hold. An error may leave it half written: the transaction must
    /// be rolled back then.
    pub(crate) fn apply(&mut self, partition: i64, batch: &Batch, now: i64) -> rusqlite::Result<Outcome> {
        if let Some(conflict) = self.check(partition, batch, now)? {
            return Ok(Outcome::Conflict(conflict));
        }
        for put in &batch.puts {
            // The put writes the lease change of its document, too, so that the row is written once.
            let lease = batch.leases.iter().find(|change| change.key == put.key);
            self.put(partition, put, lease.map(|change| lease_until(change, now)), batch.command, now)?;
        }
        for key in &batch.deletes {
            self.delete.execute((partition, key.as_bytes()))?;
        }
        for change in &batch.entries {
            match change {
                EntryChange::Set { index, member, score } => self.set_entry(partition, index, member, *score)?,
                EntryChange::Remove { index, member } => self.remove_entry(partition, index, member)?,
            }
        }
        for change in &batch.leases {
            let put = batch.puts.iter().any(|put| put.key == change.key);
            self.lease(partition, change, put, now)?;
        }
        let mut sequences = Vec::with_capacity(batch.appends.len());
        for append in &batch.appends {
            sequences.push(self.logs.append(partition, append, now)?);
        }
        for trim in &batch.trims {
            self.logs.trim(partition, trim)?;
        }
        for BlobChange { key, bytes } in &batch.blobs {
            match bytes {
                Some(bytes) => self.set_blob.execute((partition, key.as_bytes(), &bytes[..]))?,
                None => self.remove_blob.execute((partition, key.as_bytes()))?,
            };
        }
        Ok(Outcome::Applied(AppliedBatch { at: now, sequences }))
    }

    fn check(&mut self, partition: i64, batch: &Batch, now: i64) -> rusqlite::Result<Option<Conflict>> {
        // The guards on one document usually stand side by side: its header is read once for all of them.
        let mut last: Option<(&Key, Option<Header>)> = None;
        for guard in &batch.guards {
            let header = match (guard.key(), last) {
                (None, _) => None,
                (Some(key), Some((known, header))) if known == key => header,
                (Some(key), _) => {
                    let header = self.header(partition, key, now)?;
                    last = Some((key, header));
                    header
                }
            };
            if let Some(why) = judge(guard, header, now) {
                return Ok(Some(Conflict { key: guard.key().cloned(), why }));
            }
        }
        self.logs.check(partition, &batch.appends)
    }

    /// The header of a document; `None` if the document is absent or has expired.
    fn header(&mut self, partition: i64, key: &Key, now: i64) -> rusqlite::Result<Option<Header>> {
        let header = self.header.query_row((partition, key.as_bytes()), |row| {
            let expires_at: Option<i64> = row.get(4)?;
            let header = Header {
                version: CommandId(Uuid::from_bytes(row.get(0)?)),
                fence: Fence {
                    epoch: LeaseEpoch(row.get::<_, i64>(1)?.cast_unsigned()),
                    lease: LeaseId(Uuid::from_bytes(row.get(2)?)),
                },
                lease_until: row.get(3)?,
            };
            Ok(expires_at.is_none_or(|at| at > now).then_some(header))
        });
        header.optional().map(Option::flatten)
    }

    fn put(
        &mut self,
        partition: i64,
        put: &Put,
        lease_until: Option<i64>,
        command: CommandId,
        now: i64,
    ) -> rusqlite::Result<()> {
        self.put.execute((
            partition,
            put.key.as_bytes(),
            command.as_bytes(),
            put.fence.epoch.0.cast_signed(),
            put.fence.lease.as_bytes(),
            put.expires_at,
            &put.body[..],
            now,
            lease_until,
        ))?;
        Ok(())
    }

    /// A renewal, which puts nothing, never moves the end of a lease back. A put has written the end already.
    fn lease(&mut self, partition: i64, change: &LeaseChange, put: bool, now: i64) -> rusqlite::Result<()> {
        let mut until = lease_until(change, now);
        if !put {
            if until != 0 {
                until = until.max(self.header(partition, &change.key, now)?.map_or(0, |header| header.lease_until));
            }
            self.lease.execute((partition, change.key.as_bytes(), until))?;
        }
        match change.ttl_ms {
            Some(_) => self.set_entry(partition, &change.index, &change.member, until),
            None => self.remove_entry(partition, &change.index, &change.member),
        }
    }

    fn set_entry(&mut self, partition: i64, index: &IndexName, member: &Key, score: i64) -> rusqlite::Result<()> {
        self.set_entry.execute((partition, index.as_bytes(), member.as_bytes(), score))?;
        Ok(())
    }

    fn remove_entry(&mut self, partition: i64, index: &IndexName, member: &Key) -> rusqlite::Result<()> {
        self.remove_entry.execute((partition, index.as_bytes(), member.as_bytes()))?;
        Ok(())
    }

    /// Writes the rows that are written once at the end of a transaction.
    pub(crate) fn finish(&mut self) -> rusqlite::Result<()> {
        self.logs.finish()
    }

    /// Forgets what was remembered from a transaction that was rolled back.
    pub(crate) fn forget(&mut self) {
        self.logs.forget();
    }

    /// Whether trimmed records wait to be removed.
    pub(crate) fn left_garbage(&mut self) -> bool {
        self.logs.left_garbage()
    }
}

/// When a lease ends that begins now; 0 when it is cleared.
fn lease_until(change: &LeaseChange, now: i64) -> i64 {
    change.ttl_ms.map_or(0, |ttl| now.saturating_add(ttl))
}

fn judge(guard: &Guard, header: Option<Header>, now: i64) -> Option<ConflictReason> {
    let found = match (guard, header) {
        (Guard::NotAfter(instant), _) => return (now > *instant).then_some(ConflictReason::TooLate(now)),
        (Guard::Absent(_), found) => return found.map(|header| ConflictReason::Exists(header.version)),
        (_, None) => return Some(ConflictReason::Missing),
        (_, Some(header)) => header,
    };
    match guard {
        Guard::Version(_, wanted) => (found.version != *wanted).then_some(ConflictReason::Version(found.version)),
        Guard::Fence(_, wanted) => (found.fence != *wanted).then_some(ConflictReason::Fence(found.fence)),
        Guard::Live(_) => (found.lease_until <= now).then_some(ConflictReason::LeaseOver(found.lease_until)),
        Guard::Expired(_) => (found.lease_until > now).then_some(ConflictReason::LeaseHolds(found.lease_until)),
        Guard::Absent(_) | Guard::NotAfter(_) => None,
    }
}
