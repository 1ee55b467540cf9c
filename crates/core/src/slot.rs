//! Concurrency slots of quotas and of concurrency keys: one small document for each try of a claim that counts, with an
//! id of its own. Two servers may try the same execution with the same lease id (its caller repeats a call at another
//! server); each takes a slot, and the one that fails frees its own slot and no other.

use crate::encoding::Document;
use crate::execution::Execution;
use crate::id::{ExecutionId, LeaseId, SlotId};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits};

document! {
    /// A slot that one claim holds.
    pub struct Slot {
        /// The namespace of the quota.
        "n" namespace: String,
        /// The quota.
        "q" quota: String,
        /// The execution that was claimed.
        "x" execution: ExecutionId,
        /// The try that took it; an execution says by this id which slot it uses.
        "i" id: SlotId,
        /// The lease it was to be claimed with.
        "l" lease: LeaseId,
        /// When it was taken.
        "t" taken_at: i64,
        /// The execution was seen to hold the lease; from then on its ending gives the slot back.
        "c" confirmed: bool,
        /// It is of a concurrency key, which stands in the place of the quota.
        "k" of_key: bool,
    }
}

impl Document for Slot {
    const KIND: u8 = kind::SLOT;
    crate::encoding::compiled_here!();
}

impl Indexed for Slot {
    fn key(&self) -> Key {
        match self.of_key {
            true => Self::key_of_concurrency(&self.execution, &self.id, &self.quota),
            false => Self::key_of(&self.execution, &self.id),
        }
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let key = self.key();
        let slots = match self.of_key {
            true => index::key_slots(&self.namespace, &self.quota),
            false => index::slots(&self.namespace, &self.quota),
        };
        let mut entries = vec![Entry { index: slots, member: key.clone(), score: self.taken_at }];
        if !self.confirmed {
            entries.push(Due::Timer.entry(&key, self.orphaned_at()));
        }
        entries
    }
}

/// Whether the claim of a slot has come about, as its execution shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotUse {
    /// The execution uses the slot.
    InUse,
    /// The claim may be on its way.
    MayCome,
    /// The claim came and has ended, or cannot come any more. A claim commits under the version of an execution that could
    /// be claimed; while the execution cannot be, it has another version, and never has that one again.
    Over,
}

impl SlotUse {
    /// Looks at the execution of a slot, which must have been read after the slot.
    pub fn of(execution: Option<&Execution>, slot: &SlotId) -> Self {
        match execution {
            Some(execution) if execution.uses_slot(slot) => Self::InUse,
            Some(execution) if !execution.is_eligible() => Self::Over,
            _ => Self::MayCome,
        }
    }
}

/// The decision about a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotFate {
    /// Its claim may still be on its way: nothing.
    Wait,
    /// Its lease holds: it is kept, without a timer.
    Confirm,
    /// Its lease never came to be or has ended: it is freed.
    Free,
}

impl Slot {
    /// The key of the slot of one try.
    pub fn key_of(execution: &ExecutionId, id: &SlotId) -> Key {
        Key::new(kind::SLOT, &[execution.uuid.as_bytes(), id.as_bytes()])
    }

    /// The key of the slot of one try in a concurrency key. One try has one id for all of its keys, and two of them may
    /// live in one partition.
    pub fn key_of_concurrency(execution: &ExecutionId, id: &SlotId, key: &str) -> Key {
        Key::new(kind::SLOT, &[execution.uuid.as_bytes(), id.as_bytes(), &digest16(&[key.as_bytes()])])
    }

    /// When a slot whose claim was never seen is looked at. The claim's commit may not be applied after this.
    pub fn orphaned_at(&self) -> i64 {
        self.taken_at.saturating_add(limits::SLOT_ORPHAN_AGE_MS)
    }

    /// Judges the slot by what its execution shows.
    pub fn fate(&self, usage: SlotUse, now: i64) -> SlotFate {
        match usage {
            SlotUse::InUse => SlotFate::Confirm,
            SlotUse::MayCome if !self.confirmed && now < self.orphaned_at() => SlotFate::Wait,
            SlotUse::MayCome | SlotUse::Over => SlotFate::Free,
        }
    }

    /// The execution was seen to hold the lease.
    pub fn confirm(&mut self) {
        self.confirmed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mint;
    use crate::partition::Partition;

    fn slot() -> Slot {
        let mint = |random| Mint { now_ms: 1_000, random: [random; 10] };
        Slot {
            namespace: "team".into(),
            quota: "q".into(),
            execution: ExecutionId::in_partition(Partition::flow(3), &mint(1)),
            id: SlotId::mint(&mint(2)),
            lease: LeaseId::mint(&mint(3)),
            taken_at: 1_000,
            ..Default::default()
        }
    }

    #[test]
    fn a_slot_is_looked_at_once_until_its_claim_was_seen() {
        let mut slot = slot();
        let due = Due::Timer.entry(&slot.key(), 1_000 + limits::SLOT_ORPHAN_AGE_MS);
        assert!(slot.index_entries(0).contains(&due));
        slot.confirm();
        assert_eq!(slot.index_entries(0).len(), 1);
        assert_eq!(Slot::decode(&slot.encode()).unwrap(), slot);
    }

    #[test]
    fn a_slot_is_freed_only_when_its_claim_can_no_longer_come() {
        let slot = slot();
        let age = limits::SLOT_ORPHAN_AGE_MS;
        assert_eq!(slot.fate(SlotUse::MayCome, 1_000 + age - 1), SlotFate::Wait);
        assert_eq!(slot.fate(SlotUse::MayCome, 1_000 + age), SlotFate::Free);
        assert_eq!(slot.fate(SlotUse::Over, 1_000), SlotFate::Free);
        assert_eq!(slot.fate(SlotUse::InUse, 1_000 + 10 * age), SlotFate::Confirm);
        let confirmed = Slot { confirmed: true, ..slot };
        assert_eq!(confirmed.fate(SlotUse::MayCome, 1_001), SlotFate::Free);
    }

    #[test]
    fn two_tries_with_one_lease_id_have_slots_of_their_own() {
        let slot = slot();
        let other = Slot { id: SlotId::mint(&Mint { now_ms: 1, random: [9; 10] }), ..slot.clone() };
        assert_eq!(slot.lease, other.lease);
        assert_ne!(slot.key(), other.key());
    }
}
