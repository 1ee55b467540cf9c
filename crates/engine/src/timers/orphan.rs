//! The timers of reservations: when the time of a reservation is up and its holder has said nothing, the amount counts
//! as spent. The estimate of a claim that was never applied goes back.

use ff_core::budget::{self, Budget};
use ff_core::execution::Execution;
use ff_core::index::Due;
use ff_core::reservation::{Reservation, ReservationState};
use ff_core::slot::SlotUse;
use ff_core::{Indexed, Key, Partition, Result, SlotId, limits};

use super::Timers;
use crate::charges::{BudgetChange, path_counting, save_budget};
use crate::transaction::{Command, Tx};

impl Timers {
    /// Fires the timer of a reservation.
    pub(super) async fn fire_reservation(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let Some(reservation) = self.transactor.find::<Reservation>(partition, key.clone()).await? else {
            let verb = SettleOrphan { key: &key, namespace: "", score };
            return self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await.map(drop);
        };
        if let Some(slot) = reservation.slot {
            return self.judge_estimate(partition, &reservation, slot, score).await;
        }
        let namespace = &reservation.namespace;
        let root = budget::root_of(&reservation.budget);
        let verb = SettleOrphan { key: &key, namespace, score };
        let changed = self.transactor.transact_in_turn(partition, Budget::key_of(namespace, root), &verb).await?;
        self.scheduler.budgets_changed(namespace, changed);
        Ok(())
    }
}

impl Timers {
    /// Keeps the estimate of a claim while its lease or grant lasts, or while its execution owes it back. Otherwise the
    /// claim was never applied, and the estimate goes back.
    async fn judge_estimate(&self, partition: Partition, held: &Reservation, slot: SlotId, score: i64) -> Result<()> {
        let home = held.execution.partition();
        let found = self.transactor.find::<Execution>(home, Execution::key_of(&held.execution)).await?;
        let owed = found.as_ref().is_some_and(|execution| execution.owed_slots.contains(&slot));
        let keep = match SlotUse::of(found.as_ref(), &slot) {
            SlotUse::InUse => true,
            SlotUse::MayCome => held.expires_at > self.transactor.now_in(partition),
            SlotUse::Over => false,
        };
        if owed || keep {
            let verb = KeepEstimate { key: &held.key(), score };
            return self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        }
        self.scheduler.give_back_estimate(&held.namespace, &held.budget, held.execution, slot).await
    }
}

/// Moves the timer of an estimate that is kept.
struct KeepEstimate<'a> {
    key: &'a Key,
    score: i64,
}

impl Command for KeepEstimate<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Reservation>(self.key.clone()).await? else {
            return tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await;
        };
        let mut held = loaded.document;
        if tx.now < held.expires_at {
            return tx.repair_due(self.key, Some(held.expires_at), self.score).await;
        }
        held.expires_at = tx.now.saturating_add(limits::RESERVATION_TTL_DEFAULT_MS);
        tx.save(&held);
        Ok(())
    }
}

struct SettleOrphan<'a> {
    key: &'a Key,
    namespace: &'a str,
    score: i64,
}

impl Command for SettleOrphan<'_> {
    type Outcome = Vec<BudgetChange>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<BudgetChange>> {
        let Some(loaded) = tx.load::<Reservation>(self.key.clone()).await? else {
            tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await?;
            return Ok(Vec::new());
        };
        let mut reservation = loaded.document;
        if reservation.state != ReservationState::Held || tx.now < reservation.expires_at {
            let next = (reservation.state == ReservationState::Held).then_some(reservation.expires_at);
            tx.repair_due(self.key, next, self.score).await?;
            return Ok(Vec::new());
        }
        let keys = reservation.counted_in.keys().map(|name| Budget::key_of(self.namespace, name)).collect();
        let found = tx.load_many::<Budget>(keys).await?.into_iter().flatten();
        let before: Vec<Budget> = found.map(|loaded| loaded.document).collect();
        let mut budgets = before.iter().map(|budget| (budget.name.clone(), budget.clone())).collect();
        match path_counting(&mut budgets, &reservation) {
            Ok(mut path) => drop(path.orphan(&mut reservation, tx.now)),
            // The budgets were removed: nothing counts it any more.
            Err(_) => drop(reservation.orphan(tx.now)),
        }
        tx.save_until(&reservation, reservation.remembered_until());
        let changes = before.iter().filter_map(|before| {
            let budget = budgets.get_mut(&before.name)?;
            save_budget(tx, self.namespace, before, budget)
        });
        Ok(changes.collect())
    }
}
