//! The timers of budgets, concurrency keys and slots: usage returns to nothing, keys without holders are forgotten, and
//! slots whose claims never came are freed.

use ff_core::budget::Budget;
use ff_core::concurrency::ConcurrencyKey;
use ff_core::execution::Execution;
use ff_core::index::{self, Due};
use ff_core::slot::{Slot, SlotFate};
use ff_core::{Document, Indexed, Key, Partition, Result};

use super::Timers;
use crate::hint::Item;
use crate::scheduler::concurrency::{OpenedKey, open};
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

impl Timers {
    /// A budget's interval is over.
    pub(super) async fn fire_budget(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let turn = self.transactor.locks().take(partition, key.clone()).await;
        let reset =
            self.transactor.transact(partition, self.transactor.fresh_command(), &ResetWhenDue { key, score }).await?;
        drop(turn);
        if let Some((namespace, name, opened)) = reset {
            self.scheduler.release_parked(&namespace, &format!("b:{name}"), opened).await;
        }
        Ok(())
    }

    /// A key without holders is forgotten, and executions that may still wait for it are let in.
    pub(super) async fn fire_key(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let turn = self.transactor.locks().take(partition, key.clone()).await;
        let forgotten =
            self.transactor.transact(partition, self.transactor.fresh_command(), &ForgetIdle { key, score }).await?;
        drop(turn);
        if let Some((namespace, opened)) = forgotten {
            self.scheduler.release_keys_soon(&namespace, opened);
        }
        Ok(())
    }

    /// A slot whose claim was not seen: kept if the claim came about, freed if it no longer can.
    pub(super) async fn fire_slot(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let orphan =
            self.transactor.transact(partition, self.transactor.fresh_command(), &JudgeSlot { key, score }).await?;
        match orphan {
            Some(slot) if slot.of_key => {
                self.scheduler.free_key_slots(&slot.namespace, &slot.quota, vec![slot.key()]).await
            }
            Some(slot) => self.scheduler.free_slots(&slot.namespace, &slot.quota, &slot.execution, &[slot.id]).await,
            None => Ok(()),
        }
    }
}

struct ResetWhenDue {
    key: Key,
    score: i64,
}

impl Command for ResetWhenDue {
    type Outcome = Option<(String, String, Opened)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let Some(loaded) = tx.load::<Budget>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(None);
        };
        let mut budget = loaded.document;
        if !budget.reset_if_due(tx.now) {
            let next = (budget.next_reset_at != 0).then_some(budget.next_reset_at);
            tx.repair_due(&self.key, next, self.score).await?;
            return Ok(None);
        }
        let count = budget.release_count();
        let opened = Opened::take(&mut budget, count, tx.transactor.partitions());
        let (namespace, name) = (budget.namespace.clone(), budget.name.clone());
        tx.hint(Item::Gate(index::blocked(&namespace, &format!("b:{name}"))));
        tx.save(&budget);
        Ok(Some((namespace, name, opened)))
    }
}

struct JudgeSlot {
    key: Key,
    score: i64,
}

impl Command for JudgeSlot {
    type Outcome = Option<Slot>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Slot>> {
        let Some(loaded) = tx.load::<Slot>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(None);
        };
        let mut slot = loaded.document;
        let home = slot.execution.partition();
        let found = tx.transactor.store().documents(home, vec![Execution::key_of(&slot.execution)]).await?;
        let execution = found.into_iter().next().flatten().map(|stored| Execution::decode(&stored.body)).transpose()?;
        let in_use = execution.is_some_and(|execution| execution.uses_slot(&slot.id));
        match slot.fate(in_use, tx.now) {
            SlotFate::Wait => tx.repair_due(&self.key, Some(slot.orphaned_at()), self.score).await?,
            SlotFate::Confirm => {
                slot.confirm();
                tx.save(&slot);
            }
            SlotFate::Free => return Ok(Some(slot)),
        }
        Ok(None)
    }
}

struct ForgetIdle {
    key: Key,
    score: i64,
}

impl Command for ForgetIdle {
    type Outcome = Option<(String, Vec<OpenedKey>)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let Some(loaded) = tx.load::<ConcurrencyKey>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(None);
        };
        let mut document = loaded.document;
        if document.idle_at().is_none_or(|at| at > tx.now) {
            tx.repair_due(&self.key, document.idle_at(), self.score).await?;
            return Ok(None);
        }
        let opened = open(tx, &mut document);
        tx.delete(&self.key);
        Ok(Some((document.namespace, opened)))
    }
}
