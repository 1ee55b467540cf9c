//! The parts of a commit: guards, then effects, all as data.

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId};

use crate::Hint;

/// The command that wrote a document. Compared for equality only: a counter would repeat after a failover that lost a
/// write, and a cached version would then overwrite another caller's change.
pub type Version = CommandId;

/// The epoch AND the lease id of a lease, which keep an old holder out: a failover can take an epoch back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fence {
    /// Counts the leases of the document.
    pub epoch: LeaseEpoch,
    /// The lease itself.
    pub lease: LeaseId,
}

/// A condition a batch is applied under. All are checked before its first write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// No document lives under the key (an expired one counts as none).
    Absent(Key),
    /// The document is the one this command wrote.
    Version(Key, Version),
    /// The document carries this fence.
    Fence(Key, Fence),
    /// The document's lease has not run out: `lease_until > now`.
    Live(Key),
    /// The document's lease has run out: `lease_until <= now`.
    Expired(Key),
    /// The store's time is not past this instant.
    NotAfter(i64),
}

impl Guard {
    /// The document the guard speaks of.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Guard::Absent(key)
            | Guard::Version(key, _)
            | Guard::Fence(key, _)
            | Guard::Live(key)
            | Guard::Expired(key) => Some(key),
            Guard::NotAfter(_) => None,
        }
    }
}

/// Writes a document. Its `lease_until` stays as it is unless a [`LeaseChange`] says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Where.
    pub key: Key,
    /// The encoded document.
    pub body: Bytes,
    /// The fence that future guards compare with.
    pub fence: Fence,
    /// From this instant on the document reads as absent.
    pub expires_at: Option<i64>,
}

/// Adds, moves or removes an index entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryChange {
    /// The member stands at this score, whether it was there or not.
    Set {
        /// The index.
        index: IndexName,
        /// The member.
        member: Key,
        /// Its score, within ±[`ff_core::limits::SCORE_MAX`].
        score: i64,
    },
    /// The member is not in the index.
    Remove {
        /// The index.
        index: IndexName,
        /// The member.
        member: Key,
    },
}

/// Changes the instant beside a document, and the index entry that stands at that instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    /// The document.
    pub key: Key,
    /// `Some(ttl)`: `lease_until = now + ttl`, by the store's time. `None`: no lease (0).
    ///
    /// A batch that puts the document as well decides: the lease ends exactly then. Without a put it is a renewal, and
    /// a renewal never takes back what an earlier one promised: the lease ends at the later of the two instants.
    pub ttl_ms: Option<i64>,
    /// The entry whose score is `lease_until`; removed when there is no lease.
    pub index: IndexName,
    /// Its member.
    pub member: Key,
}

/// Appends records to a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The log, by name.
    pub log: Key,
    /// The records, in order.
    pub records: Vec<Bytes>,
    /// The batch conflicts unless the first record gets this sequence number (numbers begin at 1).
    /// Such a log has no holes. Without it numbers only grow.
    pub expected: Option<u64>,
    /// Keep at least the newest `cap` records; older ones may go (0 = keep all).
    pub cap: u64,
    /// Only one batch at a time appends to this log; the caller makes sure of that, for example by the version guard of
    /// a document. Readers then see a record as soon as it is committed. Without this promise a store may hold records
    /// back until those with smaller numbers are committed.
    pub in_turn: bool,
}

/// Removes records of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trim {
    /// The log.
    pub log: Key,
    /// Records with smaller numbers go; `u64::MAX` removes the log and its numbering.
    pub before: u64,
}

/// Writes or removes a blob: raw bytes under a key of their own, without version or fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobChange {
    /// Where; blobs and documents have separate key spaces.
    pub key: Key,
    /// The bytes, or `None` to remove them.
    pub bytes: Option<Bytes>,
}

/// One change of a batch, for code that walks over all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// See [`Put`].
    Put(&'a Put),
    /// Removes a document.
    Delete(&'a Key),
    /// See [`EntryChange`].
    Entry(&'a EntryChange),
    /// See [`LeaseChange`].
    Lease(&'a LeaseChange),
    /// See [`Append`].
    Append(&'a Append),
    /// See [`Trim`].
    Trim(&'a Trim),
    /// See [`BlobChange`].
    Blob(&'a BlobChange),
}

/// A guarded change of one partition, all or nothing.
///
/// Effects are applied in the order of the fields: puts, deletes, entries, leases, appends, trims, blobs. Within one
/// field each document, entry, log or blob is named once, so that a store may apply a field as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The command that makes this change; becomes the version of every document put.
    pub command: CommandId,
    /// Conditions that must all hold.
    pub guards: Vec<Guard>,
    /// Documents to write; each needs an `Absent` or `Version` guard of its own.
    pub puts: Vec<Put>,
    /// Documents to remove, under at least one `Absent` or `Version` guard on any document.
    pub deletes: Vec<Key>,
    /// Index entries to change, under the same rule as deletes.
    pub entries: Vec<EntryChange>,
    /// Leases to set or clear, under a `Fence` guard or a `Version` or `Absent` guard on that document. A lease that is
    /// set needs a document that is there when the batch is done; a clear beside a delete removes the entry.
    pub leases: Vec<LeaseChange>,
    /// Records to append.
    pub appends: Vec<Append>,
    /// Logs to trim.
    pub trims: Vec<Trim>,
    /// Blobs to write or remove, under the same rule as deletes.
    pub blobs: Vec<BlobChange>,
    /// Messages to all watchers, sent after the batch was applied.
    pub hints: Vec<Hint>,
    /// The batch frees memory (endings, deletes, trims), so a full store accepts it all the same.
    pub relief: bool,
}

/// Why a batch was not applied: the first guard that did not hold, in the order of the batch, then the first append
/// whose `expected` did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The document or log, unless the guard was about time.
    pub key: Option<Key>,
    /// The reason why the guard does not hold.
    pub why: ConflictReason,
}

/// The state that a guard found instead of the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictReason {
    /// `Absent`: a document is there, with this version.
    Exists(Version),
    /// `Version`, `Fence`, `Live` or `Expired`: there is no document.
    Missing,
    /// `Version`: the document has this one.
    Version(Version),
    /// `Fence`: the document has this one.
    Fence(Fence),
    /// `Live`: the lease ran out at this instant.
    LeaseOver(i64),
    /// `Expired`: the lease holds until this instant.
    LeaseHolds(i64),
    /// `NotAfter`: it is already this time.
    TooLate(i64),
    /// `expected`: the log's next record would get this number.
    Sequence(u64),
}

/// The effects of an applied batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedBatch {
    /// The store's time of the commit; leases set in the batch run until this plus their TTL.
    pub at: i64,
    /// The sequence number of the first record of each append, in order.
    pub sequences: Vec<u64>,
}

/// The outcome of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Applied(AppliedBatch),
    /// None of it was done.
    Conflict(Conflict),
}

impl Outcome {
    /// The effects of an applied batch; `None` after a conflict.
    pub fn applied(self) -> Option<AppliedBatch> {
        match self {
            Outcome::Applied(applied) => Some(applied),
            Outcome::Conflict(_) => None,
        }
    }
}

impl Batch {
    /// An empty batch of a command.
    pub fn new(command: CommandId) -> Self {
        Self { command, ..Self::default() }
    }

    /// Every change of the batch in the order of application.
    pub fn effects(&self) -> impl Iterator<Item = Effect<'_>> {
        let puts = self.puts.iter().map(Effect::Put);
        let deletes = self.deletes.iter().map(Effect::Delete);
        let entries = self.entries.iter().map(Effect::Entry);
        let leases = self.leases.iter().map(Effect::Lease);
        let appends = self.appends.iter().map(Effect::Append);
        let trims = self.trims.iter().map(Effect::Trim);
        let blobs = self.blobs.iter().map(Effect::Blob);
        puts.chain(deletes).chain(entries).chain(leases).chain(appends).chain(trims).chain(blobs)
    }

    /// How many operations the batch is made of, guards included.
    pub fn operations(&self) -> usize {
        let records: usize = self.appends.iter().map(|append| append.records.len()).sum();
        self.guards.len() + self.effects().count() + records
    }

    /// Roughly how many bytes the batch carries, names and hints included.
    pub fn bytes(&self) -> usize {
        let guards = self.guards.iter().map(|guard| guard.key().map_or(0, |key| key.as_bytes().len()) + 32);
        let hints = self.hints.iter().map(|hint| hint.payload.len() + 16);
        let effects = self.effects().map(|effect| match effect {
            Effect::Put(put) => put.key.as_bytes().len() + put.body.len() + 64,
            Effect::Delete(key) => key.as_bytes().len(),
            Effect::Entry(EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member }) => {
                index.as_bytes().len() + member.as_bytes().len() + 8
            }
            Effect::Lease(lease) => {
                lease.key.as_bytes().len() + lease.index.as_bytes().len() + lease.member.as_bytes().len() + 16
            }
            Effect::Append(append) => {
                append.log.as_bytes().len() + append.records.iter().map(|record| record.len() + 16).sum::<usize>()
            }
            Effect::Trim(trim) => trim.log.as_bytes().len() + 16,
            Effect::Blob(blob) => blob.key.as_bytes().len() + blob.bytes.as_ref().map_or(0, |bytes| bytes.len()),
        });
        guards.chain(hints).chain(effects).sum()
    }
}
