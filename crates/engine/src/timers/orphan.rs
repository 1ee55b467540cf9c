//! Reservations whose holders say nothing: when their time has run out they count as spent.

use ff_core::budget::{self, Budget};
use ff_core::index::Due;
use ff_core::reservation::{Reservation, ReservationState};
use ff_core::{Key, Partition, Result};

use super::Timers;
use crate::transaction::{Command, Tx};
use crate::usage::{BudgetChange, path_to, save_budget};

impl Timers {
    /// The time of a reservation is up.
    pub(super) async fn fire_reservation(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let Some(reservation) = self.transactor.find::<Reservation>(partition, key.clone()).await? else {
            let verb = SettleOrphan { key: &key, budget: "", namespace: "", score };
            return self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await.map(drop);
        };
        let (namespace, name) = (&reservation.namespace, &reservation.budget);
        let root = budget::root_of(name);
        let turn = self.transactor.locks().take(partition, Budget::key_of(namespace, root)).await;
        let verb = SettleOrphan { key: &key, budget: name, namespace, score };
        let changed = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?;
        drop(turn);
        self.charges.budgets_changed(namespace, changed).await;
        Ok(())
    }
}

struct SettleOrphan<'a> {
    key: &'a Key,
    namespace: &'a str,
    budget: &'a str,
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
        let keys = budget::names_to(self.budget).map(|name| Budget::key_of(self.namespace, name)).collect();
        let found = tx.load_many::<Budget>(keys).await?.into_iter().flatten();
        let before: Vec<Budget> = found.map(|loaded| loaded.document).collect();
        let mut budgets = before.iter().map(|budget| (budget.name.clone(), budget.clone())).collect();
        match path_to(&mut budgets, self.budget) {
            Ok(mut path) => drop(path.orphan(&mut reservation, tx.now)),
            // The budget was removed: nothing counts it any more.
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
