//! How many executions run under a key. The document of a key is made when a claim first takes a slot of it and goes
//! when no slot is taken; every request brings its own limit.

use std::collections::BTreeMap;

use crate::encoding::Document;
use crate::gate::Parked;
use crate::id::{ExecutionId, LeaseId, SlotId};
use crate::index::{Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::slot::Slot;
use crate::{document, limits};

document! {
    /// A concurrency key that is in use, or was not long ago.
    pub struct ConcurrencyKey {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// The key.
        "k" key: String,
        /// How many slot documents there are.
        "u" in_use: u32,
        /// How many were given back so far, counted from the instant at which the document was made: a document that was
        /// made anew never shows a number that its predecessor showed. Earlier versions see by it whether more may run than
        /// they let in.
        "g" given_back: i64,
        /// Where executions wait for it, by the limit under which they do.
        "p" parked_under: BTreeMap<u32, Parked>,
        /// When it last changed.
        "t" updated_at: i64,
    }
}

impl Document for ConcurrencyKey {
    const KIND: u8 = kind::CONCURRENCY_KEY;
    crate::encoding::compiled_here!();
}

impl Indexed for ConcurrencyKey {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.key)
    }

    /// The document of a key without holders is kept only for the executions that wait for it, and not for long.
    fn index_entries(&self, _: i64) -> Vec<Entry> {
        self.idle_at().map(|at| Due::Timer.entry(&self.key(), at)).into_iter().collect()
    }
}

/// A claim that asks for a slot of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRequest {
    /// The execution.
    pub execution: ExecutionId,
    /// The lease it is claimed with.
    pub lease: LeaseId,
    /// The slot it would take: one for each try.
    pub slot: SlotId,
    /// It is admitted while fewer hold the key.
    pub limit: u32,
}

impl ConcurrencyKey {
    /// The document of a key without holders.
    pub fn new(namespace: &str, key: &str, now: i64) -> Self {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        Self { namespace, key, given_back: now, updated_at: now, ..Default::default() }
    }

    /// Where the document of a key lives in the key's partition.
    pub fn key_of(namespace: &str, key: &str) -> Key {
        Key::new(kind::CONCURRENCY_KEY, &[&digest16(&[namespace.as_bytes(), key.as_bytes()])])
    }

    /// How many could take a slot now under a limit.
    pub fn room(&self, limit: u32) -> u64 {
        u64::from(limit.saturating_sub(self.in_use))
    }

    /// Takes a slot, to be written in the same commit; `None` while as many as the limit says hold the key.
    pub fn take(&mut self, request: &KeyRequest, now: i64) -> Option<Slot> {
        if self.room(request.limit) == 0 {
            return None;
        }
        let now = self.mark_updated(now);
        self.in_use += 1;
        Some(Slot {
            namespace: self.namespace.clone(),
            quota: self.key.clone(),
            of_key: true,
            execution: request.execution,
            id: request.slot,
            lease: request.lease,
            taken_at: now,
            ..Default::default()
        })
    }

    /// Gives back one slot.
    pub fn release(&mut self, now: i64) {
        self.mark_updated(now);
        self.in_use = self.in_use.saturating_sub(1);
        self.given_back += 1;
    }

    /// Corrects the number of slots to what was counted under this document's version; says whether it was wrong.
    pub fn recount(&mut self, slots: u32, now: i64) -> bool {
        let wrong = self.in_use != slots;
        if wrong {
            self.mark_updated(now);
            self.in_use = slots;
        }
        wrong
    }

    /// Where something waits under a limit. A change of it is followed by [`ConcurrencyKey::parking_changed`].
    pub fn parked_mut(&mut self, limit: u32) -> &mut Parked {
        self.parked_under.entry(limit).or_default()
    }

    /// Something waits now, or no longer does.
    pub fn parking_changed(&mut self, now: i64) {
        self.mark_updated(now);
        self.parked_under.retain(|_, parked| !parked.is_empty());
    }

    /// The limits under which something waits that has room now.
    pub fn open_limits(&self) -> impl Iterator<Item = u32> {
        self.parked_under.keys().copied().filter(|limit| self.room(*limit) > 0)
    }

    /// Whether no execution holds it and none waits for it.
    pub fn is_idle(&self) -> bool {
        self.in_use == 0 && self.parked_under.is_empty()
    }

    /// When it is to be forgotten, if no execution holds it.
    pub fn idle_at(&self) -> Option<i64> {
        (self.in_use == 0).then_some(self.updated_at + limits::CONCURRENCY_IDLE_MS)
    }

    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mint;

    fn request(number: u8, limit: u32) -> KeyRequest {
        let mint = Mint { now_ms: 1, random: [number; 10] };
        let (lease, slot) = (LeaseId::mint(&mint), SlotId::mint(&mint));
        KeyRequest { execution: ExecutionId::default(), lease, slot, limit }
    }

    #[test]
    fn each_request_is_held_to_its_own_limit() {
        let mut key = ConcurrencyKey::new("n", "k", 1_000);
        assert!(key.take(&request(1, 1), 1_000).is_some());
        assert!(key.take(&request(2, 1), 1_000).is_none());
        assert!(key.take(&request(3, 2), 1_000).is_some());
        assert_eq!((key.in_use, key.room(2), key.room(5)), (2, 0, 3));
        key.release(1_001);
        assert!(key.take(&request(4, 1), 1_001).is_none() && key.take(&request(5, 2), 1_001).is_some());
    }

    #[test]
    fn what_waits_has_room_under_each_limit_by_itself() {
        let mut key = ConcurrencyKey::new("n", "k", 1_000);
        for number in 0..3 {
            key.take(&request(number, 3), 1_000);
        }
        for (limit, place) in [(1, 7), (3, 8)] {
            assert!(key.parked_mut(limit).add(place) && !key.parked_mut(limit).add(place));
        }
        assert_eq!(key.open_limits().count(), 0);
        key.release(1_001);
        assert_eq!((key.open_limits().collect::<Vec<_>>(), key.idle_at()), (vec![3], None));
        key.release(1_002);
        key.release(1_003);
        assert_eq!((key.open_limits().count(), key.is_idle()), (2, false));
        for limit in [1, 3] {
            *key.parked_mut(limit) = Parked::default();
        }
        key.parking_changed(1_004);
        assert!(key.is_idle());
        assert_eq!(key.index_entries(0), [Due::Timer.entry(&key.key(), 1_004 + limits::CONCURRENCY_IDLE_MS)]);
        assert_eq!(ConcurrencyKey::decode(&key.encode()).unwrap(), key);
    }

    #[test]
    fn slots_of_two_keys_for_one_try_are_two_documents() {
        let slot = |key: &str| ConcurrencyKey::new("n", key, 1).take(&request(1, 1), 1).unwrap();
        assert_ne!(slot("a").key(), slot("b").key());
        assert_eq!(slot("a").key(), Slot::key_of_concurrency(&ExecutionId::default(), &request(1, 1).slot, "a"));
        assert_ne!(slot("a").key(), Slot { of_key: false, ..slot("a") }.key());
    }
}
