//! The batch of a transaction: everything that was loaded, saved and deleted becomes guards, puts, differences of index
//! entries, leases and hints.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::event::EventType;
use ff_core::execution::Execution;
use ff_core::index::{self, Due};
use ff_core::planted::{Bug, planted};
use ff_core::{CommandId, Edge, Entry, Key, Partition};
use ff_store::{Batch, EntryChange, Guard, Hint, LeaseChange, Put};

use super::documents::{Staged, Touched};
use super::{Released, Tx, is_timed};
use crate::cache::AdmissionCache;
use crate::hint::{Item, Message};

impl Tx<'_> {
    /// Puts the batch together: guards, puts and deletes, index differences, leases, hints.
    pub(super) fn into_batch(mut self) -> Prepared {
        let documents = std::mem::take(&mut self.documents).into_sorted();
        self.guard_versions(&documents);
        let mut consequences = Consequences::default();
        for document in documents {
            self.add_document(document, &mut consequences);
        }
        let due = consequences.due.into_iter().chain(self.lease_ends()).min();
        let items = self.add_hint();
        Prepared {
            partition: self.partition,
            command: self.command,
            items,
            executions: self.executions,
            released: self.released,
            following: self.following,
            events: self.events,
            repairs: self.repairs,
            leases: self.batch.leases.iter().map(|lease| (lease.key.clone(), lease.ttl_ms)).collect(),
            due,
            batch: self.batch,
            marked: consequences.marked,
            admission: consequences.admission,
        }
    }

    /// Guards the versions of the documents that the batch writes, and of those that it relies on. These guards come
    /// before all others: when an applied batch is sent again, it must meet its own command id there, before a guard
    /// that later changes have broken.
    fn guard_versions(&mut self, documents: &[Touched]) {
        let mut guards = Vec::with_capacity(documents.len() + self.batch.guards.len());
        for Touched { key, known, staged } in documents {
            let Some(known) = known.as_ref().filter(|known| known.pinned || staged.is_some()) else { continue };
            guards.push(match known.version {
                Some(version) => Guard::Version(key.clone(), version),
                None => Guard::Absent(key.clone()),
            });
        }
        guards.append(&mut self.batch.guards);
        self.batch.guards = guards;
    }

    /// Adds a document that is saved or deleted, with the change of its index entries and of its lease.
    fn add_document(&mut self, Touched { key, known, staged }: Touched, consequences: &mut Consequences) {
        let Some(staged) = staged else { return };
        let before = known.map_or_else(Vec::new, |known| known.entries);
        let deleted = matches!(staged, Staged::Delete);
        let (put, after, lease) = match staged {
            Staged::Put { body, fence, lease, entries, expires_at } => {
                (Some(Put { key: key.clone(), body, fence, expires_at }), entries, lease)
            }
            // The lease is deleted with the document; only its entry is left to remove.
            Staged::Delete => (None, Vec::new(), None),
        };
        if AdmissionCache::keeps(&key) {
            consequences.admission.push((key.clone(), put.as_ref().map(|put| Bytes::copy_from_slice(&put.body))));
        }
        match put {
            Some(put) => push_one(&mut self.batch.puts, put),
            None => self.batch.deletes.push(key.clone()),
        }
        self.add_entries(&key, (before, after), deleted, consequences);
        if let Some(ttl_ms) = lease {
            self.add_lease(&key, ttl_ms);
        }
        if self.partition == Partition::SYSTEM {
            self.items.push(Item::System(key));
        }
    }

    /// Adds the difference between the index entries of a document before and after. The entry of a lease that lives on
    /// is left to [`LeaseChange`], because only the store knows when the lease ends.
    fn add_entries(
        &mut self,
        key: &Key,
        (before, after): (Vec<Entry>, Vec<Entry>),
        deleted: bool,
        consequences: &mut Consequences,
    ) {
        let lease = Due::Lease.entry(key, 0);
        let is_lease = |entry: &Entry| entry.member == lease.member && entry.index == lease.index;
        let (set, removed) = index::difference(before, after);
        self.batch.entries.reserve_exact(set.len() + removed.len());
        for entry in set.into_iter().filter(|entry| !is_lease(entry)) {
            self.note_entry(key, &entry, consequences);
            let Entry { index, member, score } = entry;
            self.batch.entries.push(EntryChange::Set { index, member, score });
        }
        let kept = |entry: &Entry| planted(Bug::IndexNotUpdated) && entry.index != index::due();
        for entry in removed.into_iter().filter(|entry| deleted || !(is_lease(entry) || kept(entry))) {
            self.batch.entries.push(EntryChange::Remove { index: entry.index, member: entry.member });
        }
    }

    /// Adds a lease that begins, or with `None` one that ends.
    fn add_lease(&mut self, key: &Key, ttl_ms: Option<i64>) {
        if let Some(ttl_ms) = ttl_ms
            && is_timed(key)
        {
            self.announce_due(self.now + ttl_ms);
        }
        let member = Due::Lease.member(key);
        push_one(&mut self.batch.leases, LeaseChange { key: key.clone(), ttl_ms, index: index::due(), member });
    }

    /// Notes that something will be due at this instant, and hints so if other engines must be told.
    pub(super) fn announce_due(&mut self, at: i64) {
        if self.transactor.due().announce(self.partition, at, self.now) {
            self.items.push(Item::Due(at));
        }
    }

    /// The instants at which leases of the batch end, as far as this try knows the store's time.
    fn lease_ends(&self) -> impl Iterator<Item = i64> {
        let timed = self.batch.leases.iter().filter(|lease| is_timed(&lease.key));
        timed.filter_map(|lease| lease.ttl_ms).map(|ttl_ms| self.now + ttl_ms)
    }

    /// Adds the hint that tells other engines of the commit, and returns what it says.
    fn add_hint(&mut self) -> Vec<Item> {
        let message = Message { origin: self.transactor.origin(), items: std::mem::take(&mut self.items) };
        if !message.items.is_empty() {
            push_one(&mut self.batch.hints, Hint { partition: self.partition, payload: self.encoded.record(&message) });
        }
        message.items
    }

    /// Notes an entry that a task or a claim may wait for.
    fn note_entry(&mut self, key: &Key, entry: &Entry, consequences: &mut Consequences) {
        if entry.index.as_bytes().first() == Some(&index::QUEUE_PREFIX) {
            self.items.push(Item::Ready(entry.index.clone(), entry.score));
        } else if entry.index == index::due() {
            consequences.due = Some(consequences.due.map_or(entry.score, |due| due.min(entry.score)));
            self.announce_due(entry.score);
        } else if entry.index == index::marks() {
            if !self.transactor.options().services {
                self.items.push(Item::Mark(key.clone()));
            }
            consequences.marked.push(key.clone());
        }
    }
}

/// Adds to a list that seldom has more than one item: `push` alone makes room for four, and a commit has many such lists.
pub(super) fn push_one<T>(list: &mut Vec<T>, item: T) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
    list.push(item);
}

/// The consequences of a batch that follow from its documents.
#[derive(Default)]
struct Consequences {
    marked: Vec<Key>,
    admission: Vec<(Key, Option<Bytes>)>,
    due: Option<i64>,
}

/// A batch ready to be sent, and what to do once it was applied.
pub(crate) struct Prepared {
    pub(super) partition: Partition,
    pub(super) command: CommandId,
    pub(super) batch: Batch,
    pub(super) items: Vec<Item>,
    pub(super) executions: Vec<Arc<Execution>>,
    /// Slots that it gives up without a mark.
    pub(super) released: Vec<Released>,
    /// Executions that it creates, with the edges that lead on from them.
    pub(super) following: Vec<(Key, Vec<Edge>)>,
    pub(super) events: Vec<EventType>,
    /// The number of index entries that it repairs.
    pub(super) repairs: u64,
    /// The leases it sets and ends.
    pub(super) leases: Vec<(Key, Option<i64>)>,
    pub(super) marked: Vec<Key>,
    /// The documents of admission that it writes, and removes.
    pub(super) admission: Vec<(Key, Option<Bytes>)>,
    /// The earliest instant at which something of it is due.
    pub(super) due: Option<i64>,
}

impl Prepared {
    /// The number of operations and bytes, which are limited for a commit call.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.batch.operations(), self.batch.bytes())
    }
}
