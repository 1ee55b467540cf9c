//! Reservations: what one lease holder is about to spend of a budget, one small document for each key. A reservation is
//! held until its holder settles or releases it; one whose holder says nothing settles by itself at the reserved amounts,
//! and what its holder says later corrects it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::{self, Amounts};
use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, LeaseId, SlotId};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits, vocabulary};

vocabulary! {
    /// The state of a reservation.
    #[derive(Default)]
    pub enum ReservationState {
        /// Its amounts are held.
        #[default]
        Held "held",
        /// Its holder said what was spent.
        Settled "settled",
        /// Its holder spent nothing.
        Released "released",
        /// Its time ran out: it counts as spent, until its holder says what really was.
        Orphaned "orphaned",
    }
}

/// The identity of a reservation: the budget, the lease that spends, and its key. Another lease of the execution
/// reserves anew, because it will spend anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationId {
    /// The namespace of the budget and the execution.
    pub namespace: String,
    /// The budget.
    pub budget: String,
    /// The execution that spends.
    pub execution: ExecutionId,
    /// The lease that it spends under.
    pub lease: LeaseId,
    /// Which of the reservations of this lease it is.
    pub key: String,
}

/// The key of the reservation that a claim makes.
const ESTIMATE: &str = "estimate";

document! {
    /// How one budget counts a reservation.
    pub struct CountedIn {
        /// The window that counts it.
        "w" window: i64,
        /// The amounts it holds there, where that is less than all: a budget counts the dimensions that it has.
        "h" held: Option<Amounts>,
        /// The budget of that name that counts it; one that was made anew has another number.
        "i" incarnation: u64,
        /// The part of a rolling window in which it counts as spent since its time ran out.
        "p" part: i64,
    }
}

document! {
    /// Amounts that a lease holder is about to spend, or has spent.
    pub struct Reservation {
        /// The namespace of the budget and the execution.
        "n" namespace: String,
        /// The budget; what stands above it counts the same amounts.
        "b" budget: String,
        /// The execution that spends.
        "x" execution: ExecutionId,
        /// The lease that it spends under.
        "l" lease: LeaseId,
        /// Which of the reservations of this lease it is.
        "k" key: String,
        /// The amounts that are held, by dimension.
        "a" amounts: Amounts,
        /// How each budget counts it, by the budget's name.
        "w" counted_in: BTreeMap<String, CountedIn>,
        /// When it was made.
        "t" reserved_at: i64,
        /// When it settles by itself.
        "u" expires_at: i64,
        /// The state of the reservation.
        "s" state: ReservationState,
        /// The amounts that were really spent.
        "c" actual: Amounts,
        /// When it was settled, released or left alone; 0 while it is held.
        "e" ended_at: i64,
        /// The try of a claim that holds it as its estimate; none for what a lease holder reserved. An estimate is given back
        /// when the lease ends, and does not count as spent when its time is up.
        "sl" slot: Option<SlotId>,
        /// The budget under another root that is asked last for the same amounts. They are on their way until that one holds
        /// them, and may still be given back. Empty where no other is asked after this one.
        "la" last: String,
    }
}

impl Document for Reservation {
    const KIND: u8 = kind::RESERVATION;
    crate::encoding::compiled_here!();
}

impl Indexed for Reservation {
    fn key(&self) -> Key {
        self.id().document_key()
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        if self.state != ReservationState::Held {
            return Vec::new();
        }
        let key = self.key();
        let held = index::reservations(&self.namespace, self.counted_by());
        let mut entries = vec![
            Entry { index: held, member: key.clone(), score: self.reserved_at },
            Due::Timer.entry(&key, self.expires_at),
        ];
        if !self.last.is_empty() {
            let beside = index::reservations_beside(&self.namespace, budget::root_of(&self.budget));
            entries.push(Entry { index: beside, member: key, score: self.reserved_at });
        }
        entries
    }
}

impl ReservationId {
    /// The identity of the estimate that one try of a claim holds in a budget.
    pub fn of_estimate(namespace: &str, budget: &str, execution: ExecutionId, slot: SlotId) -> Self {
        let (namespace, budget) = (namespace.to_owned(), budget.to_owned());
        // Two servers may try with one lease id, and each try holds and gives back its own.
        Self { namespace, budget, execution, lease: LeaseId(slot.0), key: ESTIMATE.to_owned() }
    }

    /// Where the reservation lives in the budget's partition.
    pub fn document_key(&self) -> Key {
        let parts: [&[u8]; 5] = [
            self.namespace.as_bytes(),
            self.budget.as_bytes(),
            self.execution.uuid.as_bytes(),
            self.lease.as_bytes(),
            self.key.as_bytes(),
        ];
        Key::new(kind::RESERVATION, &[&digest16(&parts)])
    }
}

/// The effect of a settlement on the budgets that count a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The held amounts become what was spent.
    Settle,
    /// It had settled by itself: what was spent replaces the reserved amounts.
    Correct,
    /// The same settlement was made before.
    Nothing,
}

impl Reservation {
    /// The identity of the reservation.
    pub fn id(&self) -> ReservationId {
        ReservationId {
            namespace: self.namespace.clone(),
            budget: self.budget.clone(),
            execution: self.execution,
            lease: self.lease,
            key: self.key.clone(),
        }
    }

    /// The reservation that confirms this one, if it is on its way through several budgets.
    pub fn confirmed_by(&self) -> Option<ReservationId> {
        (!self.last.is_empty()).then(|| ReservationId { budget: self.last.clone(), ..self.id() })
    }

    /// The amounts that a budget holds, or held, of it; `None` where that budget does not count it.
    pub fn held_in(&self, budget: &str) -> Option<&Amounts> {
        self.counted_in.get(budget).map(|counted| counted.held.as_ref().unwrap_or(&self.amounts))
    }

    /// The lowest of the budgets that count it: the one that was named, or its child by tag.
    pub fn counted_by(&self) -> &str {
        self.counted_in.keys().map(String::as_str).max_by_key(|name| name.len()).unwrap_or(&self.budget)
    }

    /// Until when an ended reservation is known by its key.
    pub fn remembered_until(&self) -> i64 {
        self.ended_at.saturating_add(limits::RESERVATION_REMEMBERED_MS)
    }

    /// Refuses a repeat of the request that made it, unless it is the same request and nothing has become of it.
    pub fn check_repeat(&self, amounts: &Amounts) -> Result<()> {
        if self.amounts != *amounts {
            return Err(Error::of(Code::IdempotencyConflict).with("key", &self.key));
        }
        match self.state {
            ReservationState::Held => Ok(()),
            state => Err(self.ended(state)),
        }
    }

    /// Settles at the amounts that its holder says were spent. The same amounts again change nothing, others are
    /// refused.
    pub fn settle(&mut self, actual: &Amounts, now: i64) -> Result<Settlement> {
        let settlement = match self.state {
            ReservationState::Held => Settlement::Settle,
            ReservationState::Orphaned => Settlement::Correct,
            ReservationState::Settled if self.actual == *actual => return Ok(Settlement::Nothing),
            ReservationState::Settled => return Err(Error::of(Code::IdempotencyConflict).with("key", &self.key)),
            ended @ (ReservationState::Released | ReservationState::Unknown(_)) => return Err(self.ended(ended)),
        };
        self.actual.clone_from(actual);
        self.end(ReservationState::Settled, now);
        Ok(settlement)
    }

    /// Its holder says that nothing was spent. Of one that had settled by itself this is a correction.
    pub fn release(&mut self, now: i64) -> Result<Settlement> {
        let settlement = match self.state {
            ReservationState::Held => Settlement::Settle,
            ReservationState::Orphaned => Settlement::Correct,
            ReservationState::Released => return Ok(Settlement::Nothing),
            ended @ (ReservationState::Settled | ReservationState::Unknown(_)) => return Err(self.ended(ended)),
        };
        self.end(ReservationState::Released, now);
        Ok(settlement)
    }

    /// Its time has run out: it counts as spent. Says whether that is news.
    pub fn orphan(&mut self, now: i64) -> bool {
        if self.state != ReservationState::Held || now < self.expires_at {
            return false;
        }
        self.actual.clone_from(&self.amounts);
        self.end(ReservationState::Orphaned, now);
        true
    }

    fn end(&mut self, state: ReservationState, now: i64) {
        self.state = state;
        self.ended_at = now.max(self.reserved_at);
    }

    fn ended(&self, state: ReservationState) -> Error {
        let detail = format!("the reservation {:?} is {state}", self.key);
        Error::new(Code::ReservationEnded, detail).with("key", &self.key).with("state", state)
    }

    /// The view of it for answers.
    pub fn view(&self) -> ReservationView {
        ReservationView {
            budget: self.counted_by().to_owned(),
            execution_id: self.execution,
            key: self.key.clone(),
            amounts: self.held_in(self.counted_by()).cloned().unwrap_or_default(),
            state: self.state,
            reserved_at: self.reserved_at,
            expires_at: self.expires_at,
        }
    }
}

/// A reservation as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReservationView {
    /// The budget.
    pub budget: String,
    /// The execution that spends.
    pub execution_id: ExecutionId,
    /// The holder's name for it.
    pub key: String,
    /// The amounts that are held, by dimension.
    pub amounts: Amounts,
    /// The state of the reservation.
    pub state: ReservationState,
    /// When it was made.
    pub reserved_at: i64,
    /// When it settles by itself at these amounts.
    pub expires_at: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Mint;
    use crate::partition::Partition;

    fn amounts(tokens: i64) -> Amounts {
        BTreeMap::from([("tokens".to_owned(), tokens)])
    }

    fn reservation() -> Reservation {
        let mint = |random| Mint { now_ms: 1_000, random: [random; 10] };
        Reservation {
            namespace: "team".into(),
            budget: "b".into(),
            execution: ExecutionId::in_partition(Partition::flow(3), &mint(1)),
            lease: LeaseId::mint(&mint(3)),
            key: "call".into(),
            amounts: amounts(10),
            reserved_at: 1_000,
            expires_at: 2_000,
            ..Default::default()
        }
    }

    #[test]
    fn a_held_reservation_has_a_timer_and_an_ended_one_no_entry() {
        let mut held = reservation();
        assert!(held.index_entries(0).contains(&Due::Timer.entry(&held.key(), 2_000)));
        assert_eq!(Reservation::decode(&held.encode()).unwrap(), held);
        assert!(!held.orphan(1_999) && held.orphan(2_000) && !held.orphan(2_001));
        assert_eq!(
            (held.state, &held.actual, held.index_entries(0).len()),
            (ReservationState::Orphaned, &amounts(10), 0)
        );
    }

    #[test]
    fn amounts_that_other_budgets_are_asked_for_are_found_under_their_root() {
        let mut held = Reservation { budget: "corp/x".into(), last: "team".into(), ..reservation() };
        assert_eq!(held.confirmed_by(), Some(ReservationId { budget: "team".into(), ..held.id() }));
        let beside = index::reservations_beside("team", "corp");
        assert!(held.index_entries(0).contains(&Entry { index: beside, member: held.key(), score: 1_000 }));
        held.release(1_500).unwrap();
        assert!(held.index_entries(0).is_empty() && reservation().confirmed_by().is_none());
    }

    #[test]
    fn each_lease_and_key_has_a_reservation_of_its_own() {
        let one = reservation();
        let lease = LeaseId::mint(&Mint { now_ms: 1, random: [9; 10] });
        let others = [
            Reservation { lease, ..one.clone() },
            Reservation { key: "other".into(), ..one.clone() },
            Reservation { budget: "c".into(), ..one.clone() },
        ];
        assert!(others.iter().all(|other| other.key() != one.key()));
    }

    #[test]
    fn what_was_said_once_stands_and_an_orphan_is_corrected() {
        let mut held = reservation();
        assert_eq!(held.settle(&amounts(7), 1_500), Ok(Settlement::Settle));
        assert_eq!(held.settle(&amounts(7), 1_600), Ok(Settlement::Nothing));
        assert_eq!(held.settle(&amounts(8), 1_600).unwrap_err().code, Code::IdempotencyConflict);
        assert_eq!(held.release(1_600).unwrap_err().code, Code::ReservationEnded);
        assert_eq!(held.check_repeat(&amounts(10)).unwrap_err().code, Code::ReservationEnded);
        let mut orphan = reservation();
        assert!(orphan.orphan(2_000));
        let mut other = orphan.clone();
        assert_eq!(orphan.settle(&amounts(12), 3_000), Ok(Settlement::Correct));
        assert_eq!(orphan.settle(&amounts(12), 3_000), Ok(Settlement::Nothing));
        assert_eq!(other.release(3_000), Ok(Settlement::Correct));
        assert_eq!(other.release(3_000), Ok(Settlement::Nothing));
        assert_eq!(other.settle(&amounts(1), 3_000).unwrap_err().code, Code::ReservationEnded);
        assert_eq!(reservation().check_repeat(&amounts(10)), Ok(()));
        assert_eq!(reservation().check_repeat(&amounts(11)).unwrap_err().code, Code::IdempotencyConflict);
    }
}
