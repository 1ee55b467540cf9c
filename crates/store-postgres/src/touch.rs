//! The documents and logs that a batch touches. Batches that touch nothing in common may share a call of `ff_commit_2`,
//! in any order.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use ff_core::{IndexName, Key, Partition};
use ff_store::{Append, Batch, EntryChange, Guard};

use crate::locks::{Locks, Protects};

/// Whether an append takes the next number of its own log, rather than the next one of all events.
pub(crate) fn is_counted(append: &Append, counted: &HashSet<Key>) -> bool {
    append.expected.is_some() || append.in_turn || counted.contains(&append.log)
}

/// Everything a batch looks at or changes, as lock numbers.
#[derive(Debug, Default, Clone)]
pub(crate) struct Touches {
    looks: Vec<i64>,
    changes: Vec<i64>,
    /// Entries and blobs, which other processes keep apart by the documents they belong to.
    inside: Vec<i64>,
}

impl Touches {
    /// Records of logs without expected numbers may be appended side by side; only a trim of their log is not to be
    /// overtaken, nor to overtake.
    pub(crate) fn of(batch: &Batch, partition: Partition, locks: Locks, counted: &HashSet<Key>) -> Self {
        let document = |key: &Key| locks.named(partition, Protects::Document, &[key.as_bytes()]);
        let log = |key: &Key| locks.named(partition, Protects::Log, &[key.as_bytes()]);
        let mut changes: Vec<i64> = batch.puts.iter().map(|put| document(&put.key)).collect();
        changes.extend(batch.deletes.iter().map(document));
        changes.extend(batch.leases.iter().map(|lease| document(&lease.key)));
        let mut looks: Vec<i64> = batch.guards.iter().filter_map(Guard::key).map(document).collect();
        for append in &batch.appends {
            if is_counted(append, counted) { &mut changes } else { &mut looks }.push(log(&append.log));
        }
        changes.extend(batch.trims.iter().map(|trim| log(&trim.log)));
        let entries = batch.entries.iter().map(|entry| match entry {
            EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member } => (index, member),
        });
        let leases = batch.leases.iter().map(|lease| (&lease.index, &lease.member));
        let entry = |(index, member): (&IndexName, &Key)| {
            locks.named(partition, Protects::Entry, &[index.as_bytes(), member.as_bytes()])
        };
        let mut inside: Vec<i64> = entries.chain(leases).map(entry).collect();
        inside.extend(batch.blobs.iter().map(|blob| locks.named(partition, Protects::Blob, &[blob.key.as_bytes()])));
        Self { looks, changes, inside }
    }

    /// The locks to take in the database, each with whether it may be shared: what is only looked at need not be alone.
    pub(crate) fn locks(&self) -> impl Iterator<Item = (i64, bool)> {
        self.looks.iter().map(|id| (*id, true)).chain(self.changes.iter().map(|id| (*id, false)))
    }

    fn changes(&self) -> impl Iterator<Item = &i64> {
        self.changes.iter().chain(&self.inside)
    }
}

/// The locks that batches under way touch, each with its number of batches.
#[derive(Debug, Default)]
pub(crate) struct Touched(HashMap<i64, State, BuildHasherDefault<AlreadyHashed>>);

#[derive(Debug, Default)]
struct State {
    looks: u32,
    changes: u32,
}

/// Lock numbers are hashes.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_i64(&mut self, number: i64) {
        self.0 = number.cast_unsigned();
    }
}

impl Touched {
    /// Whether a batch under way would notice, or be noticed.
    pub(crate) fn overlaps(&self, touches: &Touches) -> bool {
        touches.changes().any(|touch| self.0.contains_key(touch))
            || touches.looks.iter().any(|touch| self.0.get(touch).is_some_and(|state| state.changes > 0))
    }

    /// Adds what a batch touches.
    pub(crate) fn add(&mut self, touches: &Touches) {
        for touch in touches.changes() {
            self.0.entry(*touch).or_default().changes += 1;
        }
        for touch in &touches.looks {
            self.0.entry(*touch).or_default().looks += 1;
        }
    }

    /// Removes what was added.
    pub(crate) fn remove(&mut self, touches: &Touches) {
        for (touch, changes) in
            touches.changes().map(|touch| (touch, 1)).chain(touches.looks.iter().map(|touch| (touch, 0)))
        {
            if let Some(state) = self.0.get_mut(touch) {
                state.changes -= changes;
                state.looks -= 1 - changes;
                if state.changes == 0 && state.looks == 0 {
                    self.0.remove(touch);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ff_core::CommandId;
    use ff_store::{Fence, Put, Trim};

    use super::*;

    fn touches(batch: &Batch) -> Touches {
        Touches::of(batch, Partition::flow(0), Locks::of_schema("s"), &HashSet::new())
    }

    fn key(name: &str) -> Key {
        Key::from_bytes(name.as_bytes())
    }

    fn looking(name: &str) -> Batch {
        Batch { guards: vec![Guard::Version(key(name), CommandId::default())], ..Batch::default() }
    }

    fn writing(name: &str) -> Batch {
        let put = Put { key: key(name), body: "".into(), fence: Fence::default(), expires_at: None };
        Batch { puts: vec![put], ..looking(name) }
    }

    #[test]
    fn looking_together_is_fine_and_changing_is_not() {
        let mut touched = Touched::default();
        let look = touches(&looking("a"));
        touched.add(&look);
        assert!(!touched.overlaps(&touches(&looking("a"))));
        assert!(touched.overlaps(&touches(&writing("a"))));
        assert!(!touched.overlaps(&touches(&writing("b"))));
        touched.remove(&look);
        let write = touches(&writing("a"));
        assert!(!touched.overlaps(&write));
        touched.add(&write);
        assert!(touched.overlaps(&touches(&looking("a"))));
        touched.remove(&write);
        assert!(touched.0.is_empty());
    }

    #[test]
    fn one_entry_of_two_documents_is_one_thing() {
        let entry = EntryChange::Set { index: IndexName::from_bytes(*b"i"), member: key("m"), score: 1 };
        let with_entry = |name: &str| Batch { entries: vec![entry.clone()], ..writing(name) };
        let mut touched = Touched::default();
        touched.add(&touches(&with_entry("a")));
        assert!(touched.overlaps(&touches(&with_entry("b"))));
    }

    #[test]
    fn events_are_appended_side_by_side_and_counted_records_are_not() {
        let append = |expected| Batch {
            appends: vec![Append { log: key("log"), records: vec!["r".into()], expected, cap: 0, in_turn: false }],
            ..Batch::default()
        };
        let mut touched = Touched::default();
        touched.add(&touches(&append(None)));
        assert!(!touched.overlaps(&touches(&append(None))));
        let trim = Batch { trims: vec![Trim { log: key("log"), before: 1 }], ..Batch::default() };
        assert!(touched.overlaps(&touches(&trim)), "a trim is applied before or after them, not among them");
        touched.add(&touches(&append(Some(1))));
        assert!(touched.overlaps(&touches(&append(Some(2)))));
    }
}
