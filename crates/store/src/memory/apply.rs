//! How a batch changes a partition: every guard is judged before the first effect happens.

use bytes::Bytes;

use crate::{AppliedBatch, Batch, Conflict, ConflictReason, EntryChange, Guard, LeaseChange, Outcome, Trim, Version};
use ff_core::planted::{Bug, planted};
use ff_core::{CommandId, IndexName, Key, Mint};

use super::contents::{PartitionContents, RawDocument};

impl PartitionContents {
    /// Applies a batch that passed [`Batch::validate`], or says which guard did not hold.
    pub(super) fn apply(&mut self, batch: &Batch, now: i64) -> Outcome {
        let guards = batch.guards.iter().map(|guard| self.judge(guard, now));
        if let Some(conflict) = guards
            .chain(batch.appends.iter().map(|append| {
                let next = self.logs.get(&append.log).map_or(1, |log| log.next());
                let wrong = append.expected.is_some_and(|expected| expected != next);
                wrong.then(|| Conflict { key: Some(append.log.clone()), why: ConflictReason::Sequence(next) })
            }))
            .flatten()
            .next()
        {
            return Outcome::Conflict(conflict);
        }
        Outcome::Applied(self.write(batch, now))
    }

    /// Gives the document another version, as a writer that had nothing else to change would.
    pub(super) fn overtake(&mut self, key: &Key, expected: Version, by: Version, now: i64) {
        if let Some(document) = self.documents.get_mut(key)
            && document.present(now)
            && document.version == expected
        {
            document.version = by;
        }
    }

    fn judge(&self, guard: &Guard, now: i64) -> Option<Conflict> {
        let why = match guard {
            Guard::NotAfter(limit) => (now > *limit).then_some(ConflictReason::TooLate(now)),
            Guard::Absent(key) => self.present(key, now).map(|document| ConflictReason::Exists(document.version)),
            Guard::Version(key, _) | Guard::Fence(key, _) | Guard::Live(key) | Guard::Expired(key) => {
                match self.present(key, now) {
                    None => Some(ConflictReason::Missing),
                    Some(document) => against(guard, document, now),
                }
            }
        };
        why.map(|why| Conflict { key: guard.key().cloned(), why })
    }

    fn write(&mut self, batch: &Batch, now: i64) -> AppliedBatch {
        for put in &batch.puts {
            // An expired document is gone: its lease does not pass on to a new document under the same key.
            let lease_until = self.present(&put.key, now).map_or(0, |document| document.lease_until);
            let document = RawDocument {
                // A copy of its own: the bytes of a batch may be parts of something larger.
                body: Bytes::copy_from_slice(&put.body),
                version: if planted(Bug::CountedVersions) { self.counted(&put.key) } else { batch.command },
                fence: put.fence,
                lease_until,
                expires_at: put.expires_at,
            };
            self.documents.insert(put.key.clone(), document);
        }
        for key in &batch.deletes {
            self.documents.remove(key);
        }
        for entry in &batch.entries {
            match entry {
                EntryChange::Set { index, member, score } => self.set_entry(index, member, *score),
                EntryChange::Remove { index, member } => self.remove_entry(index, member),
            }
        }
        for lease in &batch.leases {
            let put = batch.puts.iter().any(|put| put.key == lease.key);
            self.change_lease(lease, put, now);
        }
        let sequences = batch
            .appends
            .iter()
            .map(|append| self.logs.entry(append.log.clone()).or_default().append(now, &append.records, append.cap));
        let sequences = sequences.collect();
        for trim in &batch.trims {
            self.trim(trim);
        }
        for blob in &batch.blobs {
            match &blob.bytes {
                Some(bytes) => self.blobs.insert(blob.key.clone(), bytes.clone()),
                None => self.blobs.remove(&blob.key),
            };
        }
        AppliedBatch { at: now, sequences }
    }

    /// The next number of a document, as a store that counts would give it.
    fn counted(&self, key: &Key) -> Version {
        let last = self.documents.get(key).map(|document| document.version);
        let number =
            last.map_or(0, |last| last.as_bytes()[..6].iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte)));
        CommandId::mint(&Mint { now_ms: number + 1, random: [0; 10] })
    }

    fn change_lease(&mut self, lease: &LeaseChange, put: bool, now: i64) {
        let mut until = lease.ttl_ms.map_or(0, |ttl| now.saturating_add(ttl));
        if let Some(document) = self.documents.get_mut(&lease.key) {
            if !put && until != 0 {
                until = until.max(document.lease_until);
            }
            document.lease_until = until;
        }
        match lease.ttl_ms {
            Some(_) => self.set_entry(&lease.index, &lease.member, until),
            None => self.remove_entry(&lease.index, &lease.member),
        }
    }

    fn trim(&mut self, trim: &Trim) {
        if trim.before == u64::MAX {
            self.logs.remove(&trim.log);
        } else if let Some(log) = self.logs.get_mut(&trim.log) {
            log.trim(trim.before);
        }
    }

    fn set_entry(&mut self, index: &IndexName, member: &Key, score: i64) {
        self.indexes.entry(index.clone()).or_default().set(member, score);
    }

    fn remove_entry(&mut self, name: &IndexName, member: &Key) {
        if let Some(index) = self.indexes.get_mut(name) {
            index.remove(member);
            if index.is_empty() {
                self.indexes.remove(name);
            }
        }
    }
}

/// The reason why a guard does not hold for a document that is there.
fn against(guard: &Guard, document: &RawDocument, now: i64) -> Option<ConflictReason> {
    let live = document.lease_until > now;
    match guard {
        Guard::Version(_, version) => {
            (document.version != *version).then_some(ConflictReason::Version(document.version))
        }
        Guard::Fence(_, fence) => (document.fence != *fence).then_some(ConflictReason::Fence(document.fence)),
        Guard::Live(_) => (!live).then_some(ConflictReason::LeaseOver(document.lease_until)),
        Guard::Expired(_) => live.then_some(ConflictReason::LeaseHolds(document.lease_until)),
        Guard::Absent(_) | Guard::NotAfter(_) => None,
    }
}
