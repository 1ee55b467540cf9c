//! Commits that share a function call.
//!
//! Commits that wait for the same connection go as one call: of any partitions on a standalone server, of one slot in a
//! cluster. They stay independent: each has its own answer, and a conflict or an error of one does not affect the others. A call that is refused as a whole has done nothing, and
//! each of its commits is tried again alone: in a moving slot the keys of a neighbour may be elsewhere, and a full
//! server takes only commits that free memory.

use std::sync::Arc;

use crate::call::{self, Style};
use crate::commit::Part;

/// Commits in one call. A call blocks its server until it ends; with this limit that is a millisecond or two.
const COMMITS_MAX: usize = 64;
/// Operations of all commits in one call.
const OPERATIONS_MAX: usize = 1_000;
/// Bytes of all commits in one call.
const BYTES_MAX: usize = 256 * 1024;

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
        let (operations, bytes) = (part.operations, part.bytes);
        Self { parts: vec![part], kept: vec![kept], operations, bytes }
    }

    fn has_room_for(&self, part: &Part) -> bool {
        self.parts.len() < COMMITS_MAX
            && self.operations + part.operations <= OPERATIONS_MAX
            && self.bytes + part.bytes <= BYTES_MAX
    }

    fn add(&mut self, part: Arc<Part>, kept: K) {
        self.operations += part.operations;
        self.bytes += part.bytes;
        self.parts.push(part);
        self.kept.push(kept);
    }

    /// Appends the call to the outbox; returns its commits, each with its sender's value, in the order of the answers.
    pub(crate) fn write(self, style: Style, outbox: &mut Vec<u8>) -> (Vec<Arc<Part>>, Vec<K>) {
        call::write(&self.parts, style, outbox);
        (self.parts, self.kept)
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
    use ff_core::{Key, Partition};
    use ff_store::Batch;

    use super::*;
    use crate::library;

    fn part(partition: u16, relief: bool, operations: usize) -> Arc<Part> {
        let deletes = vec![Key::from_bytes(*b"k"); operations];
        let batch = Batch { deletes, relief, ..Batch::default() };
        Arc::new(Part::new(Partition::flow(partition), [batch].into(), 0..1, false).unwrap())
    }

    fn joined(by_slot: bool, parts: Vec<Arc<Part>>) -> Vec<Vec<usize>> {
        let mut joining = Joining::new(by_slot);
        parts.into_iter().enumerate().for_each(|(number, part)| joining.add(part, number));
        joining.into_joints().into_iter().map(|joint| joint.kept).collect()
    }

    #[test]
    fn commits_of_any_slot_share_a_call_on_one_server_and_those_of_one_slot_in_a_cluster() {
        let parts = || [1, 2, 1, 3, 2].map(|partition| part(partition, false, 5)).to_vec();
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
    fn only_commits_that_all_free_memory_may_run_on_a_full_server() {
        let written = |relief: [bool; 2]| {
            let mut joint = Joint::alone(part(1, relief[0], 1), ());
            joint.add(part(2, relief[1], 1), ());
            let mut outbox = b"before".to_vec();
            joint.write(Style { sharded: false, barrier: false }, &mut outbox);
            String::from_utf8_lossy(&outbox).into_owned()
        };
        let front = |name: &str| format!("before*8\r\n$5\r\nFCALL\r\n${}\r\n{name}\r\n", name.len());
        let keys = "$1\r\n4\r\n$7\r\n{fp:1}r\r\n$7\r\n{fp:2}r\r\n$8\r\n{fp:1}dk\r\n$8\r\n{fp:2}dk\r\n";
        assert!(written([true, false]).starts_with(&(front(library::COMMIT) + keys)));
        assert!(written([true, true]).starts_with(&(front(library::COMMIT_RELIEF) + keys)));
    }
}
