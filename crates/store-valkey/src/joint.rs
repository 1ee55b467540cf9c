//! Commits that share a function call.
//!
//! A call of a function costs the server several microseconds before its first command, and the function reads the
//! clock and the list of a partition's indexes. Commits that wait for the same connection therefore go as one call: of
//! any partitions on a standalone server, of one slot in a cluster. They stay independent: each has its own answer, and
//! a conflict or an error of one does not affect the others. A call that is refused as a whole has done nothing, and
//! each of its commits is tried again alone: in a moving slot the keys of a neighbour may be elsewhere, and a full
//! server takes only commits that free memory.

use std::sync::Arc;

use crate::library;
use crate::packing::{Keys, Packed, Values};
use crate::resp::Command;

/// Commits in one call. A call blocks its server until it ends; with this limit that is a millisecond or two.
const COMMITS_MAX: usize = 64;
/// Operations of all commits in one call.
const OPERATIONS_MAX: usize = 1_000;
/// Bytes of all commits in one call.
const BYTES_MAX: usize = 256 * 1024;

/// One commit, ready to be sent, by itself or with others.
#[derive(Debug)]
pub(crate) struct Part {
    slot: u16,
    /// Whether the whole commit frees memory. Alone, or in a call of such commits only, it runs on a full server.
    relief: bool,
    operations: usize,
    keys: usize,
    arguments: usize,
    /// The keys and, behind them, the arguments, as they are sent.
    wire: Vec<u8>,
    keys_end: usize,
}

/// Properties of a commit beside its contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) slot: u16,
    pub(crate) relief: bool,
    pub(crate) operations: usize,
}

impl Part {
    pub(crate) fn new(traits: Traits, keys: &Keys, request: &mut Packed, values: &Values) -> Self {
        let mut command = Command::bare(keys.bytes_len() + request.bytes_len() + values.bytes_len());
        for name in keys.names() {
            command.part(name);
        }
        let keys_end = command.len();
        command.part(request.finish());
        for [front, back] in values.iter() {
            command.parts(&[front, back]);
        }
        Self {
            slot: traits.slot,
            relief: traits.relief,
            operations: traits.operations,
            keys: keys.len(),
            arguments: 1 + values.len(),
            wire: command.into_vec(),
            keys_end,
        }
    }

    pub(crate) fn is_relief(&self) -> bool {
        self.relief
    }
}

/// Commits that go as one call, each with a value that its sender wants back with the answer.
#[derive(Debug)]
pub(crate) struct Joint<K> {
    parts: Vec<Arc<Part>>,
    kept: Vec<K>,
    operations: usize,
    bytes: usize,
}

impl<K> Joint<K> {
    /// One commit by itself.
    pub(crate) fn alone(part: Arc<Part>, kept: K) -> Self {
        let (operations, bytes) = (part.operations, part.wire.len());
        Self { parts: vec![part], kept: vec![kept], operations, bytes }
    }

    fn has_room_for(&self, part: &Part) -> bool {
        self.parts.len() < COMMITS_MAX
            && self.operations + part.operations <= OPERATIONS_MAX
            && self.bytes + part.wire.len() <= BYTES_MAX
    }

    fn add(&mut self, part: Arc<Part>, kept: K) {
        self.operations += part.operations;
        self.bytes += part.wire.len();
        self.parts.push(part);
        self.kept.push(kept);
    }

    /// Appends the call to the outbox; returns the senders' values, in the order of the answers.
    pub(crate) fn write(self, outbox: &mut Vec<u8>) -> Vec<K> {
        let sum = |of: fn(&Part) -> usize| self.parts.iter().map(|part| of(part)).sum::<usize>();
        let (keys, arguments) = (sum(|part| part.keys), sum(|part| part.arguments));
        // A commit that does not free memory must not run on a full server by sharing a call with those that do.
        let relief = self.parts.iter().all(|part| part.relief);
        let function = if relief { library::COMMIT_RELIEF } else { library::COMMIT };
        outbox.reserve(self.bytes + 64);
        let mut call = Command::behind(std::mem::take(outbox), 3 + keys + arguments);
        call.part(b"FCALL").part(function.as_bytes()).count(keys);
        self.parts.iter().for_each(|part| call.written(&part.wire[..part.keys_end]));
        self.parts.iter().for_each(|part| call.written(&part.wire[part.keys_end..]));
        *outbox = call.into_vec();
        self.kept
    }
}

/// Distributes commits over calls.
#[derive(Debug)]
pub(crate) struct Joining<K> {
    /// A call may have keys of one slot only.
    by_slot: bool,
    joints: Vec<Joint<K>>,
}

impl<K> Joining<K> {
    pub(crate) fn new(by_slot: bool) -> Self {
        Self { by_slot, joints: Vec::new() }
    }

    /// Adds a commit to the last call that it can share, or begins one.
    pub(crate) fn add(&mut self, part: Arc<Part>, kept: K) {
        let by_slot = self.by_slot;
        let mut same = self.joints.iter_mut().rev().filter(|joint| !by_slot || joint.parts[0].slot == part.slot);
        match same.next().filter(|joint| joint.has_room_for(&part)) {
            Some(joint) => joint.add(part, kept),
            None => self.joints.push(Joint::alone(part, kept)),
        }
    }

    pub(crate) fn into_joints(self) -> Vec<Joint<K>> {
        self.joints
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ff_core::{Key, Partition};

    use super::*;

    fn part(slot: u16, relief: bool, operations: usize) -> Arc<Part> {
        let mut keys = Keys::new(Partition::flow(slot));
        keys.document(&Key::from_bytes(*b"k"));
        let mut values = Values::default();
        values.add(Bytes::from_static(b"head"), Bytes::from_static(b"body"));
        Arc::new(Part::new(Traits { slot, relief, operations }, &keys, &mut Packed::new(), &values))
    }

    fn joined(by_slot: bool, parts: Vec<Arc<Part>>) -> Vec<Vec<usize>> {
        let mut joining = Joining::new(by_slot);
        parts.into_iter().enumerate().for_each(|(number, part)| joining.add(part, number));
        joining.into_joints().into_iter().map(|joint| joint.kept).collect()
    }

    #[test]
    fn commits_of_any_slot_share_a_call_on_one_server_and_those_of_one_slot_in_a_cluster() {
        let parts = || [1, 2, 1, 3, 2].map(|slot| part(slot, false, 5)).to_vec();
        assert_eq!(joined(false, parts()), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(joined(true, parts()), [vec![0, 2], vec![1, 4], vec![3]]);
    }

    #[test]
    fn a_call_has_its_limits() {
        let many = vec![part(1, false, 1); COMMITS_MAX + 1];
        assert_eq!(joined(false, many).iter().map(Vec::len).collect::<Vec<_>>(), [COMMITS_MAX, 1]);
        let large = vec![part(1, false, OPERATIONS_MAX / 2); 3];
        assert_eq!(joined(false, large), [vec![0, 1], vec![2]]);
        // One that is too large to share a call goes by itself.
        let huge = [5, 10 * OPERATIONS_MAX, 5].map(|operations| part(1, false, operations)).to_vec();
        assert_eq!(joined(false, huge), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_call_is_the_keys_of_all_and_then_the_arguments_of_all() {
        let text = |relief: [bool; 2]| {
            let mut joint = Joint::alone(part(1, relief[0], 1), ());
            joint.add(part(2, relief[1], 1), ());
            let mut outbox = b"before".to_vec();
            joint.write(&mut outbox);
            outbox
        };
        let mixed = text([true, false]);
        let front = format!("before*11\r\n$5\r\nFCALL\r\n${}\r\n{}\r\n", library::COMMIT.len(), library::COMMIT);
        let keys = "$1\r\n4\r\n$7\r\n{fp:1}r\r\n$8\r\n{fp:1}dk\r\n$7\r\n{fp:2}r\r\n$8\r\n{fp:2}dk\r\n";
        assert!(mixed.starts_with([front.as_bytes(), keys.as_bytes()].concat().as_slice()), "{mixed:?}");
        assert!(mixed.ends_with(b"$8\r\nheadbody\r\n"));
        let all_relief = text([true, true]);
        let name = library::COMMIT_RELIEF.as_bytes();
        assert!(all_relief.windows(name.len()).any(|window| window == name));
    }
}
