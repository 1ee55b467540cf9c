//! Encodes batches as the arguments of a function call, and decodes its answer into outcomes.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{IndexName, LeaseEpoch, LeaseId, Partition, limits};
use ff_store::{
    AppliedBatch, Batch, Conflict, ConflictReason, EntryChange, Fence, Guard, Hint, LeaseChange, Outcome, Put, Result,
    StoreError,
};
use uuid::Uuid;

use crate::joint::{Part, Traits};
use crate::library;
use crate::packing::{Keys, Packed, Space, Values, function_call};
use crate::read::parse_names;
use crate::resp::Frame;
use crate::topology::slot_of;

/// Operations in one call. A call blocks its node until it ends, so a larger commit is split into several calls,
/// between which other calls get their turn.
const CALL_OPERATIONS_MAX: usize = 10_000;
/// Bytes in one call, for the same reason.
const CALL_BYTES_MAX: usize = 48 * 1024 * 1024;

/// With fewer entries than this, a batch is not searched for entries of the same index.
const SHARING_MIN: usize = 8;
/// Entries in one command, so that Lua's stack holds its arguments.
const ENTRIES_MAX: usize = 100;

/// Facts about the deployment that decide how a commit is encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Hints go to the channel of the slot (a cluster).
    pub(crate) sharded: bool,
    /// The tier waits for replicas, so an answer that wrote nothing needs a write behind it that they confirm.
    pub(crate) barrier: bool,
    /// Another process listens to hints.
    pub(crate) hints: bool,
}

/// A commit that is ready to be sent.
pub(crate) struct CommitCall {
    pub(crate) part: Arc<Part>,
    keys: Keys,
    batches: usize,
}

/// Splits the batches of a commit into calls that do not take too long.
pub(crate) fn split(batches: &[Batch]) -> Vec<&[Batch]> {
    let mut parts = Vec::new();
    let (mut start, mut operations, mut bytes) = (0, 0, 0);
    for (at, batch) in batches.iter().enumerate() {
        let (more_operations, more_bytes) = (batch.operations(), batch.bytes());
        if at > start && (operations + more_operations > CALL_OPERATIONS_MAX || bytes + more_bytes > CALL_BYTES_MAX) {
            parts.push(&batches[start..at]);
            (start, operations, bytes) = (at, 0, 0);
        }
        operations += more_operations;
        bytes += more_bytes;
    }
    parts.push(&batches[start..]);
    parts
}

/// Encodes batches, which have been validated, as one function call.
pub(crate) fn encode(partition: Partition, batches: &[Batch], style: Style) -> Result<CommitCall> {
    let mut keys = Keys::new(partition);
    let mut request = Packed::new();
    let mut values = Values::default();
    let (key_count, value_count) = (request.reserve_number(), request.reserve_number());
    let barrier = if style.barrier { keys.position(Space::Barrier, b"") } else { 0 };
    request.count(barrier);
    // The request says how to publish hints only if there are some.
    match style.hints && batches.iter().any(|batch| !batch.hints.is_empty()) {
        true if style.sharded => request.string(b"SPUBLISH").string(&slot_channel(partition)),
        true => request.string(b"PUBLISH").string(CHANNEL),
        false => request.nothing().nothing(),
    };
    request.count(batches.len());
    for batch in batches {
        let next = request.reserve_number();
        encode_batch(&mut request, &mut keys, &mut values, batch)?;
        encode_hints(&mut request, if style.hints { &batch.hints } else { &[] });
        // Where the next batch begins, so that a conflict can skip this one: two items stand before the request's
        // own, and Lua counts from 1.
        request.fill(next, request.len() + 3);
    }
    // A batch that frees memory runs on a full server; one that does not must not slip in with it.
    let relief = !batches.is_empty() && batches.iter().all(|batch| batch.relief);
    if style.sharded && batches.iter().any(may_empty_a_key) {
        keys.position(Space::Never, b"");
    }
    request.fill(key_count, keys.len());
    request.fill(value_count, values.len());
    let operations = batches.iter().map(Batch::operations).sum();
    let traits = Traits { slot: slot_of(partition), relief, operations };
    let part = Arc::new(Part::new(traits, &keys, &mut request, &values));
    Ok(CommitCall { part, keys, batches: batches.len() })
}

/// Whether a key may have ceased to exist when the batch has been applied: on a node that gives its slot away, the
/// function could not touch it again.
fn may_empty_a_key(batch: &Batch) -> bool {
    !batch.deletes.is_empty()
        || batch.entries.iter().any(|entry| matches!(entry, EntryChange::Remove { .. }))
        || batch.leases.iter().any(|lease| lease.ttl_ms.is_none())
        || batch.trims.iter().any(|trim| trim.before == u64::MAX)
        || batch.blobs.iter().any(|blob| blob.bytes.is_none())
        || batch.puts.iter().any(|put| expiry(put).is_some())
}

/// A call that checks indexes that may be empty, and takes those that are off the list.
pub(crate) fn encode_tidying(partition: Partition, indexes: &[IndexName]) -> Bytes {
    let mut keys = Keys::new(partition);
    for index in indexes {
        keys.index(index);
    }
    function_call("FCALL", library::TIDY, &keys, &mut Packed::new())
}

/// The channel of all hints on a standalone server. Programs of every protocol share it, because the content of hints
/// is the same.
pub(crate) const CHANNEL: &[u8] = b"flowfabric_1";

/// The channel of a partition in a cluster; it hashes to the partition's slot.
pub(crate) fn slot_channel(partition: Partition) -> Vec<u8> {
    format!("flowfabric_1{partition}").into_bytes()
}

fn encode_batch(p: &mut Packed, keys: &mut Keys, values: &mut Values, batch: &Batch) -> Result<()> {
    let created = created(batch);
    encode_looks(p, keys, batch);
    match created {
        Some(put) => {
            p.number(1).number(8).count(keys.document(&put.key));
            p.count(values.add(header(batch, put), put.body.clone()));
        }
        None => encode_guards(p, keys, batch),
    }
    encode_opened(p, keys, batch);
    encode_entries(p, keys, &batch.entries);
    let mut merged = vec![false; batch.leases.len()];
    p.count(batch.puts.len() - usize::from(created.is_some()));
    for put in batch.puts.iter().filter(|put| !created.is_some_and(|created| std::ptr::eq(*put, created))) {
        p.count(keys.document(&put.key)).count(values.add(header(batch, put), put.body.clone()));
        match expiry(put) {
            Some(at) => p.decimal(at),
            None => p.nothing(),
        };
        p.number(lease_of(put, batch, &mut merged)?);
    }
    p.count(batch.deletes.len());
    for key in &batch.deletes {
        p.count(keys.document(key));
    }
    p.count(batch.leases.len());
    for (lease, merged) in batch.leases.iter().zip(merged) {
        let document = if merged { 0 } else { keys.document(&lease.key) };
        p.count(document).number(ttl(lease)?).count(keys.index(&lease.index)).string(lease.member.as_bytes());
    }
    encode_left(p, keys, batch);
    p.count(batch.appends.len());
    for append in &batch.appends {
        let mut positions = append.records.iter().map(|record| values.add(record.clone(), Bytes::new()));
        let first = positions.next().unwrap_or(0);
        let last = positions.last().unwrap_or(first);
        p.count(keys.log(&append.log)).number(exact(append.cap)).count(first).count(last);
    }
    p.count(batch.trims.len());
    for trim in &batch.trims {
        p.count(keys.log(&trim.log));
        match trim.before {
            u64::MAX => p.nothing(),
            before => p.string(before.to_string().as_bytes()),
        };
    }
    p.count(batch.blobs.len());
    for blob in &batch.blobs {
        let value = blob.bytes.as_ref().map_or(0, |bytes| values.add(bytes.clone(), Bytes::new()));
        p.count(keys.blob(&blob.key)).count(value);
    }
    Ok(())
}

/// Entries of one index are one command if there are several; a batch with few entries has seldom two of one index.
fn encode_entries(p: &mut Packed, keys: &mut Keys, entries: &[EntryChange]) {
    if entries.len() < SHARING_MIN {
        p.count(entries.len());
        entries.iter().for_each(|entry| encode_entry(p, keys.index(index_of(entry)), entry));
        return;
    }
    let placed = |entry| (keys.index(index_of(entry)), matches!(entry, EntryChange::Set { .. }), entry);
    let mut placed: Vec<(usize, bool, &EntryChange)> = entries.iter().map(placed).collect();
    placed.sort_by_key(|(index, sets, _)| (*index, *sets));
    let runs = || placed.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).flat_map(|run| run.chunks(ENTRIES_MAX));
    p.count(runs().count());
    for run in runs() {
        let (index, sets, first) = run[0];
        if run.len() == 1 {
            encode_entry(p, index, first);
            continue;
        }
        let count = i64::try_from(run.len()).expect("a run is bounded");
        p.count(0).count(index).number(if sets { count } else { -count });
        for (_, _, entry) in run {
            match entry {
                EntryChange::Set { member, score, .. } => p.decimal(*score).string(member.as_bytes()),
                EntryChange::Remove { member, .. } => p.string(member.as_bytes()),
            };
        }
    }
}

fn encode_entry(p: &mut Packed, index: usize, entry: &EntryChange) {
    match entry {
        EntryChange::Set { member, score, .. } => p.count(index).string(member.as_bytes()).decimal(*score),
        EntryChange::Remove { member, .. } => p.count(index).string(member.as_bytes()).nothing(),
    };
}

fn index_of(entry: &EntryChange) -> &IndexName {
    let (EntryChange::Set { index, .. } | EntryChange::Remove { index, .. }) = entry;
    index
}

fn encode_hints(p: &mut Packed, hints: &[Hint]) {
    p.count(hints.len());
    for hint in hints {
        p.string(&[&hint.partition.ordinal().to_be_bytes()[..], &hint.payload].concat());
    }
}

/// The document of a batch whose only guard is the absence of the document that it puts: one command checks and writes
/// it. Such creations are the most frequent small commits.
fn created(batch: &Batch) -> Option<&Put> {
    let ([Guard::Absent(key)], [put]) = (batch.guards.as_slice(), batch.puts.as_slice()) else { return None };
    let plain = put.key == *key
        && expiry(put).is_none()
        && batch.deletes.is_empty()
        && batch.leases.is_empty()
        && batch.appends.iter().all(|append| append.expected.is_none());
    plain.then_some(put)
}

/// The guards of the batch and, in the same form, the numbers its appends expect.
fn encode_guards(p: &mut Packed, keys: &mut Keys, batch: &Batch) {
    let expecting = batch.appends.iter().filter(|append| append.expected.is_some()).count();
    p.count(batch.guards.len() + expecting);
    for guard in &batch.guards {
        match guard {
            Guard::Absent(key) => p.number(1).count(keys.document(key)),
            Guard::Version(key, version) => p.number(2).count(keys.document(key)).string(version.as_bytes()),
            Guard::Fence(key, fence) => p.number(3).count(keys.document(key)).string(&fence_bytes(fence)),
            Guard::Live(key) => p.number(4).count(keys.document(key)),
            Guard::Expired(key) => p.number(5).count(keys.document(key)),
            Guard::NotAfter(instant) => p.number(6).number((*instant).clamp(-limits::SCORE_MAX, limits::SCORE_MAX)),
        };
    }
    for (at, append) in batch.appends.iter().enumerate() {
        let Some(expected) = append.expected else { continue };
        let before = batch.appends[..at].iter().filter(|earlier| earlier.log == append.log);
        let before: usize = before.map(|earlier| earlier.records.len()).sum();
        p.number(7).count(keys.log(&append.log)).number(exact(expected)).count(before);
    }
}

/// The logs that the batch writes to: the function must know their ends before its first write. The headers of
/// documents it knows by then, because every change of a document is guarded.
fn encode_looks(p: &mut Packed, keys: &mut Keys, batch: &Batch) {
    let logs = batch.appends.iter().map(|append| &append.log).chain(batch.trims.iter().map(|trim| &trim.log));
    encode_positions(p, logs.map(|log| keys.log(log)).collect());
}

/// The indexes that may become non-empty by the batch.
fn encode_opened(p: &mut Packed, keys: &mut Keys, batch: &Batch) {
    let of_entries = batch.entries.iter().filter_map(|entry| match entry {
        EntryChange::Set { index, .. } => Some(index),
        EntryChange::Remove { .. } => None,
    });
    let of_leases = batch.leases.iter().filter(|lease| lease.ttl_ms.is_some()).map(|lease| &lease.index);
    encode_indexes(p, keys, of_entries.chain(of_leases));
}

/// The indexes that may be empty once the batch is done.
fn encode_left(p: &mut Packed, keys: &mut Keys, batch: &Batch) {
    let of_entries = batch.entries.iter().filter_map(|entry| match entry {
        EntryChange::Remove { index, .. } => Some(index),
        EntryChange::Set { .. } => None,
    });
    let of_leases = batch.leases.iter().filter(|lease| lease.ttl_ms.is_none()).map(|lease| &lease.index);
    encode_indexes(p, keys, of_entries.chain(of_leases));
}

/// The positions of those indexes that are listed at all.
fn encode_indexes<'b>(p: &mut Packed, keys: &mut Keys, indexes: impl Iterator<Item = &'b IndexName>) {
    let listed = indexes.filter(|index| index.is_listed());
    encode_positions(p, listed.map(|index| keys.index(index)).collect());
}

/// Writes each position once.
fn encode_positions(p: &mut Packed, mut positions: Vec<usize>) {
    positions.sort_unstable();
    positions.dedup();
    p.count(positions.len());
    for position in positions {
        p.count(position);
    }
}

/// When a document expires. An instant past what a double holds exactly is never reached.
fn expiry(put: &Put) -> Option<i64> {
    put.expires_at.filter(|at| *at <= limits::SCORE_MAX).map(|at| at.max(1))
}

/// The header in front of the body of a stored document; the function writes the end of a lease into it.
fn header(batch: &Batch, put: &Put) -> Bytes {
    let lease_until = [0; 8];
    let expires_at = expiry(put).unwrap_or(0).to_be_bytes();
    [batch.command.as_bytes().as_slice(), &fence_bytes(&put.fence), &lease_until, &expires_at].concat().into()
}

/// The lease change that can travel with a put of the same document: its TTL, 0 to clear, -1 for none.
fn lease_of(put: &Put, batch: &Batch, merged: &mut [bool]) -> Result<i64> {
    // Only the last put of a key is followed by the lease change, and a delete in between takes the document away.
    let last = batch.puts.iter().rfind(|other| other.key == put.key);
    if last.is_none_or(|last| !std::ptr::eq(last, put)) || batch.deletes.contains(&put.key) {
        return Ok(-1);
    }
    match batch.leases.iter().position(|lease| lease.key == put.key) {
        Some(at) => {
            merged[at] = true;
            ttl(&batch.leases[at])
        }
        None => Ok(-1),
    }
}

fn ttl(lease: &LeaseChange) -> Result<i64> {
    match lease.ttl_ms {
        None => Ok(0),
        Some(ttl) if ttl <= limits::SCORE_MAX / 2 => Ok(ttl),
        Some(ttl) => Err(StoreError::Invalid(format!("a lease TTL of {ttl} ms is too long"))),
    }
}

fn exact(number: u64) -> i64 {
    i64::try_from(number).map_or(limits::SCORE_MAX, |number| number.min(limits::SCORE_MAX))
}

fn fence_bytes(fence: &Fence) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&fence.epoch.0.to_be_bytes());
    bytes[8..].copy_from_slice(fence.lease.as_bytes());
    bytes
}

/// A fence from its 24 bytes.
pub(crate) fn parse_fence(bytes: &[u8]) -> Option<Fence> {
    let (epoch, lease) = bytes.split_at_checked(8)?;
    let epoch = LeaseEpoch(u64::from_be_bytes(epoch.try_into().ok()?));
    Some(Fence { epoch, lease: LeaseId(Uuid::from_slice(lease).ok()?) })
}

/// The outcomes in the function's answer, and the indexes that should be tidied because they may be empty.
pub(crate) fn decode(call: &CommitCall, frame: Frame) -> Result<(Vec<Outcome>, Vec<IndexName>)> {
    let odd = || StoreError::Corrupt("the commit function gave an answer of another shape".into());
    let mut items = frame.into_array().ok_or_else(odd)?.into_iter();
    let at = items.next().and_then(|frame| frame.integer()).ok_or_else(odd)?;
    let batches = items.by_ref().take(call.batches);
    let outcomes: Vec<Outcome> =
        batches.map(|item| decode_outcome(call, at, item)).collect::<Option<_>>().ok_or_else(odd)?;
    let left = items.next().map_or(Some(Vec::new()), parse_names).ok_or_else(odd)?;
    if outcomes.len() == call.batches { Ok((outcomes, left)) } else { Err(odd()) }
}

fn decode_outcome(call: &CommitCall, at: i64, item: Frame) -> Option<Outcome> {
    let items = item.into_array()?;
    if let [Frame::Bulk(word), position, evidence] = items.as_slice() {
        let key = call.keys.key_at(usize::try_from(position.integer()?).ok()?);
        let why = conflict_reason(word, evidence)?;
        let key = if matches!(why, ConflictReason::TooLate(_)) { None } else { key };
        return Some(Outcome::Conflict(Conflict { key, why }));
    }
    let sequences = items.iter().map(|item| u64::try_from(item.integer()?).ok()).collect::<Option<_>>()?;
    Some(Outcome::Applied(AppliedBatch { at, sequences }))
}

fn conflict_reason(word: &[u8], evidence: &Frame) -> Option<ConflictReason> {
    let version = || match evidence {
        Frame::Bulk(bytes) => Some(ff_core::CommandId(Uuid::from_slice(bytes).ok()?)),
        _ => None,
    };
    Some(match word {
        b"exists" => ConflictReason::Exists(version()?),
        b"missing" => ConflictReason::Missing,
        b"version" => ConflictReason::Version(version()?),
        b"fence" => match evidence {
            Frame::Bulk(bytes) => ConflictReason::Fence(parse_fence(bytes)?),
            _ => return None,
        },
        b"over" => ConflictReason::LeaseOver(evidence.integer()?),
        b"holds" => ConflictReason::LeaseHolds(evidence.integer()?),
        b"late" => ConflictReason::TooLate(evidence.integer()?),
        b"sequence" => ConflictReason::Sequence(u64::try_from(evidence.integer()?).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ff_core::Key;

    use super::*;

    #[test]
    fn large_commits_are_cut_between_batches() {
        let many = |n: usize| Batch { deletes: vec![Key::from_bytes(*b"x"); n], ..Batch::default() };
        let batches = [many(4_000), many(4_000), many(4_000), many(1)];
        let parts: Vec<usize> = split(&batches).into_iter().map(<[Batch]>::len).collect();
        assert_eq!(parts, [2, 2]);
        assert_eq!(split(&[]).len(), 1);
    }
}
