//! A commit on its way to a server: the batches of one call, ready to share it with others.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::{IndexName, Partition, limits};
use ff_store::{Batch, LeaseChange, Result, StoreError};

use crate::library;
use crate::packing::{Keys, Packed, Tag, function_call};
use crate::topology::slot_of;

/// Operations in one call. A call blocks its node until it ends, so a larger commit is split into several calls,
/// between which other calls get their turn.
const CALL_OPERATIONS_MAX: usize = 10_000;
/// Bytes in one call, for the same reason.
const CALL_BYTES_MAX: usize = 48 * 1024 * 1024;

/// Batches of one caller that go as one call, by itself or with others.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) partition: Partition,
    pub(crate) slot: u16,
    all: Arc<[Batch]>,
    range: Range<usize>,
    /// Another process listens to hints.
    pub(crate) hints: bool,
    /// Whether all of it frees memory. Alone, or in a call of such commits only, it runs on a full server.
    pub(crate) relief: bool,
    pub(crate) operations: usize,
    /// Roughly how many bytes it takes when it is sent.
    pub(crate) bytes: usize,
}

impl Part {
    /// Refuses what no call can carry; the batches have been validated otherwise.
    pub(crate) fn new(partition: Partition, all: Arc<[Batch]>, range: Range<usize>, hints: bool) -> Result<Self> {
        let batches = &all[range.clone()];
        batches.iter().flat_map(|batch| &batch.leases).try_for_each(|lease| ttl(lease).map(drop))?;
        let relief = !batches.is_empty() && batches.iter().all(|batch| batch.relief);
        let operations = batches.iter().map(Batch::operations).sum();
        let bytes = batches.iter().map(Batch::bytes).sum();
        Ok(Self { partition, slot: slot_of(partition), all, range, hints, relief, operations, bytes })
    }

    pub(crate) fn batches(&self) -> &[Batch] {
        &self.all[self.range.clone()]
    }
}

/// Splits the batches of a commit into calls that do not take too long.
pub(crate) fn split(batches: &[Batch]) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut operations, mut bytes) = (0, 0, 0);
    for (at, batch) in batches.iter().enumerate() {
        let (more_operations, more_bytes) = (batch.operations(), batch.bytes());
        if at > start && (operations + more_operations > CALL_OPERATIONS_MAX || bytes + more_bytes > CALL_BYTES_MAX) {
            parts.push(start..at);
            (start, operations, bytes) = (at, 0, 0);
        }
        operations += more_operations;
        bytes += more_bytes;
    }
    parts.push(start..batches.len());
    parts
}

/// The TTL of a lease, 0 if it ends now.
pub(crate) fn ttl(lease: &LeaseChange) -> Result<i64> {
    match lease.ttl_ms {
        None => Ok(0),
        Some(ttl) if ttl <= limits::SCORE_MAX / 2 => Ok(ttl),
        Some(ttl) => Err(StoreError::Invalid(format!("a lease TTL of {ttl} ms is too long"))),
    }
}

/// A call that checks indexes that may be empty, and takes those that are off the list.
pub(crate) fn encode_tidying(partition: Partition, indexes: &[IndexName]) -> Bytes {
    let (mut keys, tag) = (Keys::new(), Tag::of(partition));
    keys.registry(&tag);
    for index in indexes {
        keys.index(&tag, index);
    }
    function_call("FCALL", library::TIDY, &keys, &mut Packed::new())
}

#[cfg(test)]
mod tests {
    use ff_core::Key;

    use super::*;

    #[test]
    fn large_commits_are_cut_between_batches() {
        let many = |n: usize| Batch { deletes: vec![Key::from_bytes(*b"x"); n], ..Batch::default() };
        let batches = [many(4_000), many(4_000), many(4_000), many(1)];
        assert_eq!(split(&batches), [0..2, 2..4]);
        assert_eq!(split(&[]).len(), 1);
    }
}
