//! Encodes commits as one call of the commit function, whose request `lua/flowfabric.lua` describes.
//!
//! A call of a function costs the server several microseconds before its first command, and an entry of an index costs a
//! command if it comes alone. So the batches of all commits in a call are laid out one behind the other, each key is named
//! once, and the entries of an index are gathered in commands behind the batches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use ff_core::{Key, Partition, limits};
use ff_store::{Batch, EntryChange, Fence, Guard, Put};

use crate::commit::{Part, ttl};
use crate::library;
use crate::packing::{Keys, Packed, Reserved, Space, Tag};
use crate::resp::Command;

/// Entries in one command, so that Lua's stack holds its arguments.
const ENTRIES_MAX: usize = 500;
/// Among this few members a linear search is faster than hashing.
const FEW: usize = 16;

/// Facts about the deployment that decide how a commit is encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Hints go to the channel of the slot (a cluster).
    pub(crate) sharded: bool,
    /// The tier waits for replicas, so an answer that wrote nothing needs a write behind it that they confirm.
    pub(crate) barrier: bool,
}

/// The channel of all hints on a standalone server. Programs of every protocol share it, because the content of hints
/// is the same.
pub(crate) const CHANNEL: &[u8] = b"flowfabric_1";

/// The channel of a partition in a cluster; it hashes to the partition's slot.
pub(crate) fn slot_channel(partition: Partition) -> Vec<u8> {
    format!("flowfabric_1{partition}").into_bytes()
}

/// The partitions of a call, in the order in which they are met: their answers are in this order, too.
pub(crate) fn partitions(parts: &[Arc<Part>]) -> Vec<Partition> {
    let mut partitions = Vec::with_capacity(4);
    for part in parts {
        if !partitions.contains(&part.partition) {
            partitions.push(part.partition);
        }
    }
    partitions
}

/// Appends a call with these commits to the outbox.
pub(crate) fn write(parts: &[Arc<Part>], style: Style, outbox: &mut Vec<u8>) {
    let partitions = partitions(parts);
    let tags: Vec<Tag> = partitions.iter().map(|partition| Tag::of(*partition)).collect();
    let mut call =
        Call { keys: Keys::new(), request: Packed::new(), values: Vec::new(), commands: Commands::default(), batch: 0 };
    let start = call.request.reserve_number();
    let count = call.request.reserve_number();
    let barrier = if style.barrier { call.keys.position(&tags[0], Space::Barrier, b"") } else { 0 };
    call.request.count(barrier);
    // The request says how to publish hints only if there are some.
    let hints = |part: &Arc<Part>| part.hints && part.batches().iter().any(|batch| !batch.hints.is_empty());
    let hints = parts.iter().any(hints);
    match hints {
        true => call.request.string(if style.sharded { b"SPUBLISH" } else { b"PUBLISH" }),
        false => call.request.nothing(),
    };
    call.request.count(parts.iter().map(|part| part.batches().len()).sum());
    call.request.count(partitions.len());
    for (partition, tag) in partitions.iter().zip(&tags) {
        call.request.count(call.keys.registry(tag));
        match hints {
            true if style.sharded => call.request.string(&slot_channel(*partition)),
            true => call.request.string(CHANNEL),
            false => call.request.nothing(),
        };
    }
    for part in parts {
        let space = partitions.iter().position(|one| *one == part.partition).expect("each partition was listed above");
        for batch in part.batches() {
            call.encode(Scope { space, tag: &tags[space], hints: part.hints }, batch);
            if style.sharded && may_empty_a_key(batch) {
                call.keys.position(&tags[space], Space::Never, b"");
            }
        }
    }
    let first = call.request.next();
    call.request.fill(start, first);
    call.request.fill(count, call.commands.all.len());
    std::mem::take(&mut call.commands).encode(&mut call.request);
    // A commit that does not free memory must not run on a full server by sharing a call with those that do.
    let relief = parts.iter().all(|part| part.relief);
    call.send(if relief { library::COMMIT_RELIEF } else { library::COMMIT }, outbox);
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

/// Where a batch belongs.
#[derive(Clone, Copy)]
struct Scope<'t> {
    /// The place of its partition among those of the call.
    space: usize,
    tag: &'t Tag,
    hints: bool,
}

/// A value: an argument of its own, behind the request.
enum Value<'b> {
    Document([u8; HEADER], &'b Bytes),
    /// A document whose lease begins now: without what stands up to the end of the lease.
    Leased([u8; HEADER], &'b Bytes),
    Plain(&'b Bytes),
}

/// The length of a document's header.
const HEADER: usize = 56;
/// Where the end of the lease stands in it.
const LEASE: std::ops::Range<usize> = 40..48;

/// A call that is being put together.
struct Call<'b> {
    keys: Keys,
    request: Packed,
    values: Vec<Value<'b>>,
    commands: Commands<'b>,
    /// The number of the batch that is being encoded.
    batch: usize,
}

impl<'b> Call<'b> {
    fn encode(&mut self, scope: Scope<'_>, batch: &'b Batch) {
        self.batch += 1;
        let behind = self.request.reserve_number();
        self.request.count(scope.space + 1);
        let created = created(batch);
        self.encode_looks(scope, batch);
        match created {
            Some(put) => {
                let value = self.add(Value::Document(header(batch, put), &put.body));
                let document = self.keys.document(scope.tag, &put.key);
                self.request.number(1).number(8).count(document).count(value);
            }
            None => self.encode_guards(scope, batch),
        }
        let merged = self.encode_puts(scope, batch, created);
        self.encode_entries(scope, batch);
        self.encode_leases(scope, batch, &merged);
        self.encode_appends(scope, batch);
        self.encode_the_rest(scope, batch);
        let next = self.request.next();
        self.request.fill(behind, next);
    }

    /// The logs that the batch writes to: the function must know their ends before its first write. The headers of
    /// documents it knows by then, because every change of a document is guarded.
    fn encode_looks(&mut self, scope: Scope<'_>, batch: &Batch) {
        let logs = batch.appends.iter().map(|append| &append.log).chain(batch.trims.iter().map(|trim| &trim.log));
        let mut positions: Vec<usize> = logs.map(|log| self.keys.log(scope.tag, log)).collect();
        positions.sort_unstable();
        positions.dedup();
        self.request.count(positions.len());
        for position in positions {
            self.request.count(position);
        }
    }

    /// The guards of the batch and, in the same form, the numbers its appends expect.
    fn encode_guards(&mut self, scope: Scope<'_>, batch: &Batch) {
        let (p, keys, tag) = (&mut self.request, &mut self.keys, scope.tag);
        let expecting = batch.appends.iter().filter(|append| append.expected.is_some()).count();
        p.count(batch.guards.len() + expecting);
        for guard in &batch.guards {
            match guard {
                Guard::Absent(key) => p.number(1).count(keys.document(tag, key)),
                Guard::Version(key, version) => p.number(2).count(keys.document(tag, key)).string(version.as_bytes()),
                Guard::Fence(key, fence) => p.number(3).count(keys.document(tag, key)).string(&fence_bytes(fence)),
                Guard::Live(key) => p.number(4).count(keys.document(tag, key)),
                Guard::Expired(key) => p.number(5).count(keys.document(tag, key)),
                Guard::NotAfter(instant) => p.number(6).number((*instant).clamp(-limits::SCORE_MAX, limits::SCORE_MAX)),
            };
        }
        for (at, append) in batch.appends.iter().enumerate() {
            let Some(expected) = append.expected else { continue };
            let before = batch.appends[..at].iter().filter(|earlier| earlier.log == append.log);
            let before: usize = before.map(|earlier| earlier.records.len()).sum();
            p.number(7).count(keys.log(tag, &append.log)).number(exact(expected)).count(before);
        }
    }

    /// The puts that are not their own guard. Says which of the batch's leases travel with one.
    fn encode_puts(&mut self, scope: Scope<'_>, batch: &'b Batch, created: Option<&Put>) -> Vec<bool> {
        let mut merged = vec![false; batch.leases.len()];
        self.request.count(batch.puts.len() - usize::from(created.is_some()));
        for put in batch.puts.iter().filter(|put| !created.is_some_and(|created| std::ptr::eq(*put, created))) {
            let ttl_ms = lease_of(put, batch, &mut merged);
            let header = header(batch, put);
            let value = if ttl_ms > 0 { Value::Leased(header, &put.body) } else { Value::Document(header, &put.body) };
            let (document, value) = (self.keys.document(scope.tag, &put.key), self.add(value));
            self.request.count(document).count(value);
            match expiry(put) {
                Some(at) => self.request.decimal(at),
                None => self.request.nothing(),
            };
            self.request.number(ttl_ms);
            if ttl_ms > 0 {
                self.request.string(&header[..LEASE.start]);
            }
        }
        merged
    }

    fn encode_entries(&mut self, scope: Scope<'_>, batch: &'b Batch) {
        for entry in &batch.entries {
            let (EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member }) = entry;
            let score = match entry {
                EntryChange::Set { score, .. } => Score::Known(*score),
                EntryChange::Remove { .. } => Score::Gone,
            };
            let position = self.keys.index(scope.tag, index);
            let index = Index { space: scope.space, position, listed: index.is_listed() };
            self.commands.add(index, Entry { member, score, batch: self.batch });
        }
    }

    fn encode_leases(&mut self, scope: Scope<'_>, batch: &'b Batch, merged: &[bool]) {
        self.request.count(batch.leases.len());
        for (lease, merged) in batch.leases.iter().zip(merged) {
            let document = if *merged { 0 } else { self.keys.document(scope.tag, &lease.key) };
            // A part with a TTL that cannot be is refused when it is made.
            let ttl_ms = ttl(lease).unwrap_or_default();
            self.request.count(document).number(ttl_ms);
            let score = self.request.reserve_number();
            let position = self.keys.index(scope.tag, &lease.index);
            let index = Index { space: scope.space, position, listed: lease.index.is_listed() };
            let score = if ttl_ms > 0 { Score::FilledIn(score) } else { Score::Gone };
            self.commands.add(index, Entry { member: &lease.member, score, batch: self.batch });
        }
    }

    fn encode_appends(&mut self, scope: Scope<'_>, batch: &'b Batch) {
        self.request.count(batch.appends.len());
        for append in &batch.appends {
            let first = self.values.len() + FIRST_VALUE;
            self.values.extend(append.records.iter().map(Value::Plain));
            let last = self.values.len() + FIRST_VALUE - 1;
            let log = self.keys.log(scope.tag, &append.log);
            self.request.count(log).number(exact(append.cap)).count(first).count(last);
        }
    }

    /// The effects that most batches have none of, behind a number that says whether there are any.
    fn encode_the_rest(&mut self, scope: Scope<'_>, batch: &'b Batch) {
        let hints = if scope.hints { batch.hints.as_slice() } else { &[] };
        if batch.deletes.is_empty() && batch.trims.is_empty() && batch.blobs.is_empty() && hints.is_empty() {
            self.request.number(0);
            return;
        }
        self.request.number(1).count(batch.deletes.len());
        for key in &batch.deletes {
            self.request.count(self.keys.document(scope.tag, key));
        }
        self.request.count(batch.trims.len());
        for trim in &batch.trims {
            self.request.count(self.keys.log(scope.tag, &trim.log));
            match trim.before {
                u64::MAX => self.request.nothing(),
                before => self.request.string(before.to_string().as_bytes()),
            };
        }
        self.request.count(batch.blobs.len());
        for blob in &batch.blobs {
            let value = blob.bytes.as_ref().map_or(0, |bytes| self.add(Value::Plain(bytes)));
            let blob = self.keys.blob(scope.tag, &blob.key);
            self.request.count(blob).count(value);
        }
        self.request.count(hints.len());
        for hint in hints {
            self.request.string(&[&hint.partition.ordinal().to_be_bytes()[..], &hint.payload].concat());
        }
    }

    /// Says which argument the value is.
    fn add(&mut self, value: Value<'b>) -> usize {
        self.values.push(value);
        self.values.len() + FIRST_VALUE - 1
    }

    fn send(mut self, function: &str, outbox: &mut Vec<u8>) {
        let bytes = self.values.iter().map(|value| match value {
            Value::Document(_, body) | Value::Leased(_, body) => HEADER + body.len() + 16,
            Value::Plain(bytes) => bytes.len() + 16,
        });
        outbox.reserve(self.keys.bytes_len() + self.request.bytes_len() + bytes.sum::<usize>() + 64);
        let mut call = Command::behind(std::mem::take(outbox), 4 + self.keys.len() + self.values.len());
        call.part(b"FCALL").part(function.as_bytes()).count(self.keys.len());
        for name in self.keys.names() {
            call.part(name);
        }
        call.part(self.request.finish());
        for value in &self.values {
            match value {
                Value::Document(header, body) => call.parts(&[header, body]),
                Value::Leased(header, body) => call.parts(&[&header[LEASE.end..], body]),
                Value::Plain(bytes) => call.part(bytes),
            };
        }
        *outbox = call.into_vec();
    }
}

/// The argument of the first value, as Lua counts: the request stands before it.
const FIRST_VALUE: usize = 2;

/// An index of the call.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Index {
    space: usize,
    position: usize,
    listed: bool,
}

/// What a batch does to one member of an index.
struct Entry<'b> {
    member: &'b Key,
    score: Score,
    /// The number of the batch.
    batch: usize,
}

enum Score {
    Known(i64),
    /// The function knows it: the instant at which a lease ends. The place is where the request says which item it is.
    FilledIn(Reserved),
    /// The member leaves the index.
    Gone,
}

/// The entries of all batches, gathered.
#[derive(Default)]
struct Commands<'b> {
    all: Vec<Gathered<'b>>,
    /// What is gathered of an index now, by its position.
    open: HashMap<usize, Open<'b>>,
}

/// A command: entries that enter an index, or entries that leave it.
struct Gathered<'b> {
    index: Index,
    leave: bool,
    entries: Vec<Entry<'b>>,
}

/// The commands that take further entries of an index.
#[derive(Default)]
struct Open<'b> {
    enter: Option<usize>,
    leave: Option<usize>,
    members: Vec<&'b Key>,
    /// The same, where there are many.
    many: HashSet<&'b Key>,
}

impl<'b> Open<'b> {
    /// Notes a member; says whether it had been met.
    fn has_met(&mut self, member: &'b Key) -> bool {
        if self.members.len() < FEW {
            let met = self.members.contains(&member);
            self.members.push(member);
            return met;
        }
        if self.many.is_empty() {
            self.many.extend(&self.members);
        }
        !self.many.insert(member)
    }
}

impl<'b> Commands<'b> {
    fn add(&mut self, index: Index, entry: Entry<'b>) {
        let open = self.open.entry(index.position).or_default();
        if open.has_met(entry.member) {
            // What comes later has its way: commands run in the order in which they begin.
            *open = Open { members: vec![entry.member], ..Open::default() };
        }
        let leave = matches!(entry.score, Score::Gone);
        let slot = if leave { &mut open.leave } else { &mut open.enter };
        let command = match *slot {
            Some(command) if self.all[command].entries.len() < ENTRIES_MAX => command,
            _ => {
                self.all.push(Gathered { index, leave, entries: Vec::with_capacity(4) });
                *slot.insert(self.all.len() - 1)
            }
        };
        self.all[command].entries.push(entry);
    }

    fn encode(self, p: &mut Packed) {
        let start = p.next();
        for Gathered { index, leave, entries } in self.all {
            let position = i64::try_from(index.position).expect("a position among keys in memory");
            p.count(index.space + 1).number(if index.listed { position } else { -position });
            let count = i64::try_from(entries.len()).expect("a command has a bounded number of entries");
            p.number(if leave { -count } else { 2 * count });
            let batches: Vec<usize> = entries.iter().map(|entry| entry.batch).collect();
            for entry in entries {
                match entry.score {
                    Score::Known(score) => _ = p.decimal(score),
                    Score::FilledIn(place) => {
                        let at = p.next() - start;
                        p.nothing().fill(place, at);
                    }
                    Score::Gone => {}
                }
                p.string(entry.member.as_bytes());
            }
            for batch in batches {
                p.count(batch);
            }
        }
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

/// When a document expires. An instant past what a double holds exactly is never reached.
fn expiry(put: &Put) -> Option<i64> {
    put.expires_at.filter(|at| *at <= limits::SCORE_MAX).map(|at| at.max(1))
}

/// The header in front of the body of a stored document. The end of a lease is for the function to write.
fn header(batch: &Batch, put: &Put) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(batch.command.as_bytes());
    header[16..40].copy_from_slice(&fence_bytes(&put.fence));
    header[48..].copy_from_slice(&expiry(put).unwrap_or(0).to_be_bytes());
    header
}

/// The lease change that can travel with a put of the same document: its TTL, 0 to clear, -1 for none.
fn lease_of(put: &Put, batch: &Batch, merged: &mut [bool]) -> i64 {
    // Commits with very many puts have no leases, and are not searched for them.
    if batch.leases.is_empty() {
        return -1;
    }
    // Only the last put of a key is followed by the lease change, and a delete in between takes the document away.
    let last = batch.puts.iter().rfind(|other| other.key == put.key);
    if last.is_none_or(|last| !std::ptr::eq(last, put)) || batch.deletes.contains(&put.key) {
        return -1;
    }
    match batch.leases.iter().position(|lease| lease.key == put.key) {
        Some(at) => {
            merged[at] = true;
            // A part with a TTL that cannot be is refused when it is made.
            ttl(&batch.leases[at]).unwrap_or_default()
        }
        None => -1,
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
