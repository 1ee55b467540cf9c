//! How often each kind of guard was judged and how often it refused. A guard that never refuses in a long campaign is
//! either not needed or not tested.

use std::collections::BTreeMap;

use ff_core::Key;
use ff_core::index::kind;
use ff_store::{Batch, Conflict, ConflictReason, Guard, Outcome};

/// A guard's kind, and the kind of the document it speaks of.
pub type GuardKind = (&'static str, &'static str);

/// Counts by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardCounts(BTreeMap<GuardKind, (u64, u64)>);

/// Every kind of guard that a batch may carry; `sequence` is the expected number of an append.
pub const GUARDS: [&str; 7] = ["absent", "version", "fence", "live", "expired", "not_after", "sequence"];

impl GuardCounts {
    /// Counts what the store judged for one batch: every guard up to the first that refused.
    pub(crate) fn judged(&mut self, batch: &Batch, outcome: &Outcome) {
        let conflict = match outcome {
            Outcome::Applied(_) => None,
            Outcome::Conflict(conflict) => Some(conflict),
        };
        for guard in &batch.guards {
            let refused = conflict.is_some_and(|conflict| refuses(guard, conflict));
            self.count((name(guard), document(guard.key())), refused);
            if refused {
                return;
            }
        }
        for append in batch.appends.iter().filter(|append| append.expected.is_some()) {
            let refused = conflict.is_some_and(|conflict| conflict.key.as_ref() == Some(&append.log));
            self.count(("sequence", "log"), refused);
            if refused {
                return;
            }
        }
    }

    fn count(&mut self, kind: GuardKind, refused: bool) {
        let (judged, refusals) = self.0.entry(kind).or_default();
        *judged += 1;
        *refusals += u64::from(refused);
    }

    /// Adds what another run counted.
    pub fn add(&mut self, other: &GuardCounts) {
        for (kind, (judged, refusals)) in &other.0 {
            let counts = self.0.entry(*kind).or_default();
            counts.0 += judged;
            counts.1 += refusals;
        }
    }

    /// Each kind with how often it was judged and how often it refused.
    pub fn rows(&self) -> impl Iterator<Item = (GuardKind, u64, u64)> {
        self.0.iter().map(|(kind, (judged, refusals))| (*kind, *judged, *refusals))
    }

    /// The kinds of guards that never refused, over all documents.
    pub fn never_refused(&self) -> Vec<&'static str> {
        let refusals = |guard: &str| {
            self.0.iter().filter(|((name, _), _)| *name == guard).map(|(_, (_, refusals))| refusals).sum::<u64>()
        };
        GUARDS.into_iter().filter(|guard| refusals(guard) == 0).collect()
    }
}

fn refuses(guard: &Guard, conflict: &Conflict) -> bool {
    if guard.key() != conflict.key.as_ref() {
        return false;
    }
    matches!(
        (guard, conflict.why),
        (Guard::NotAfter(_), ConflictReason::TooLate(_))
            | (Guard::Absent(_), ConflictReason::Exists(_))
            | (Guard::Version(..), ConflictReason::Version(_) | ConflictReason::Missing)
            | (Guard::Fence(..), ConflictReason::Fence(_) | ConflictReason::Missing)
            | (Guard::Live(_), ConflictReason::LeaseOver(_) | ConflictReason::Missing)
            | (Guard::Expired(_), ConflictReason::LeaseHolds(_) | ConflictReason::Missing)
    )
}

fn name(guard: &Guard) -> &'static str {
    match guard {
        Guard::Absent(_) => "absent",
        Guard::Version(..) => "version",
        Guard::Fence(..) => "fence",
        Guard::Live(_) => "live",
        Guard::Expired(_) => "expired",
        Guard::NotAfter(_) => "not_after",
    }
}

fn document(key: Option<&Key>) -> &'static str {
    match key.map(Key::kind) {
        None => "clock",
        Some(kind::EXECUTION) => "execution",
        Some(kind::FLOW) => "flow",
        Some(kind::EDGE) => "edge",
        Some(kind::WAITPOINT) => "waitpoint",
        Some(kind::SIGNAL) => "signal",
        Some(kind::RECORD) => "record",
        Some(kind::BUDGET) => "budget",
        Some(kind::QUOTA) => "quota",
        Some(kind::SLOT) => "slot",
        Some(kind::CONCURRENCY_KEY) => "concurrency_key",
        Some(kind::KEY_HOLDER) => "key_holder",
        Some(kind::RESERVATION) => "reservation",
        Some(kind::PROVIDER) => "provider",
        Some(kind::BOOKING) => "booking",
        Some(kind::WORKER) => "worker",
        Some(kind::SERVER) => "server",
        Some(kind::LANE) => "lane",
        Some(kind::TOOL) => "tool",
        Some(kind::TOKEN) => "token",
        Some(kind::SECRETS) => "secrets",
        Some(kind::DEPLOYMENT) => "deployment",
        Some(kind::SUMMARY) => "summary",
        Some(_) => "other",
    }
}
