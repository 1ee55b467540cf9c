//! Asks the quota of a candidate while its budgets are read, so that a claim under both waits for the store once and not
//! twice before its commit.
//!
//! It does so only when the budgets had room a moment ago. If one of them has none any more, the quota was asked in vain:
//! the slot goes back, and the start that was counted is counted again, in place of the first time, when the attempt does
//! start ([`ff_core::quota::QuotaPolicy::admit_rate`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ff_core::execution::Execution;
use ff_core::{LeaseId, SlotId};

use super::Scheduler;
use super::admission::Admission;
use crate::env;
use crate::transaction::Released;

/// A budget that had room counts for this long as one that has.
const ROOM_MS: i64 = 1_000;
/// So many budgets are remembered. Beyond that all are forgotten, and quotas are asked after the budgets for a while.
const REMEMBERED_MAX: usize = 10_000;

/// The answer of a quota that was asked before the budgets were known.
pub(super) struct Early {
    pub(super) admission: Admission,
    /// An instant of the process's clock before the quota was asked.
    pub(super) asked_at: i64,
}

/// The budgets that had room when they were read last, by namespace and name, and until when that counts.
#[derive(Debug, Default)]
pub(super) struct Roomy(Mutex<BTreeMap<String, BTreeMap<String, i64>>>);

impl Roomy {
    fn have_room(&self, execution: &Execution, now: i64) -> bool {
        let known = self.known();
        let Some(known) = known.get(&execution.namespace) else { return false };
        execution.budgets.iter().all(|name| known.get(name).is_some_and(|until| now < *until))
    }

    /// The budgets of an execution were read, and all of them had room for it, or one had none.
    pub(super) fn read(&self, execution: &Execution, had_room: bool, now: i64) {
        let mut known = self.known();
        if known.values().map(BTreeMap::len).sum::<usize>() >= REMEMBERED_MAX {
            known.clear();
        }
        for name in &execution.budgets {
            let until = if had_room { now + ROOM_MS } else { now };
            match known.get_mut(&execution.namespace).and_then(|known| known.get_mut(name)) {
                Some(known) => *known = until,
                None => {
                    known.entry(execution.namespace.clone()).or_default().insert(name.clone(), until);
                }
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, i64>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Scheduler {
    /// Asks the quota of an execution at once if its budgets probably have room, and if nothing else is asked between
    /// them and the quota.
    pub(super) async fn ask_early(&self, execution: &Execution, lease: LeaseId) -> Option<Box<Early>> {
        let direct = execution.concurrency().is_empty() && execution.estimate().is_none();
        let asked_at = self.transactor.env().now_ms();
        if execution.quota.is_none() || !direct || !self.memory.roomy.have_room(execution, asked_at) {
            return None;
        }
        let slot = SlotId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        let admission = self.ask_quota_of(execution, lease, slot).await;
        Some(Box::new(Early { admission, asked_at }))
    }

    /// Gives back what a quota admitted, because a budget does not.
    pub(super) fn give_early_back(&self, execution: &Arc<Execution>, early: Option<Admission>) {
        if let Some(Admission::Admitted { slot: Some(slot) }) = early {
            self.give_back_soon(Released { execution: Arc::clone(execution), slot });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_room_for_a_while_after_they_were_read() {
        let execution = |budgets: &[&str]| Execution {
            namespace: "n".into(),
            budgets: budgets.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        let (one, both) = (execution(&["a"]), execution(&["a", "b"]));
        let roomy = Roomy::default();
        assert!(!roomy.have_room(&one, 0), "it was never read");
        roomy.read(&one, true, 0);
        assert!(roomy.have_room(&one, ROOM_MS - 1));
        assert!(!roomy.have_room(&one, ROOM_MS));
        assert!(!roomy.have_room(&both, 1), "of one it is not known");
        roomy.read(&both, false, 2);
        assert!(!roomy.have_room(&one, 3), "it may be the one without room");
    }
}
