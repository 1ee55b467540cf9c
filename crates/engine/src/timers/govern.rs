//! The timers of budgets, concurrency keys and slots: usage returns to nothing, keys without holders are forgotten, and
//! slots whose claims never came are freed.

use ff_core::budget::Budget;
use ff_core::concurrency::ConcurrencyKey;
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::index::Due;
use ff_core::slot::{Slot, SlotFate, SlotUse};
use ff_core::{Document, Error, Indexed, Key, Partition, Result};
use ff_store::{Answer, Query};

use super::Timers;
use crate::charges::{breach, question};
use crate::hint::Item;
use crate::scheduler::concurrency::hint_open_limits;
use crate::transaction::{Command, Tx};

impl Timers {
    /// Fires the timer of a budget: its interval is over, usage leaves its rolling window, a child by tag is idle and
    /// is removed, or events are owed to a log.
    pub(super) async fn fire_budget(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let question = self.look_who_waits(partition, &key).await?;
        let verb = ResetWhenDue { key, score, question };
        let reset = self.transactor.transact_in_turn(partition, verb.key.clone(), &verb).await?;
        match reset {
            Some(budget) => breach::tell_breaches(&self.transactor, budget).await,
            None => Ok(()),
        }
    }

    /// Whether an execution still waits for the answer to a budget's question; all that did may have been cancelled.
    async fn look_who_waits(&self, partition: Partition, key: &Key) -> Result<Option<Awaited>> {
        let budget = self.transactor.find::<Budget>(partition, key.clone()).await?;
        let now = self.transactor.now_in(partition);
        let Some(budget) = budget.filter(|budget| budget.question.look_at().is_some_and(|at| at <= now)) else {
            return Ok(None);
        };
        let awaited = question::is_awaited(&self.transactor, &budget).await?;
        Ok(Some(Awaited { asked_at: budget.question.asked_at, awaited }))
    }

    /// Fires the timer of a concurrency key: a key without holders is removed, or looked at if executions may still wait
    /// for it.
    pub(super) async fn fire_key(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let verb = ForgetIdle { key, score };
        self.transactor.transact_in_turn(partition, verb.key.clone(), &verb).await
    }

    /// Fires the timer of a slot whose claim was not seen yet: the slot is kept if the claim was applied, and freed if
    /// it no longer can be.
    pub(super) async fn fire_slot(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let orphan =
            self.transactor.transact(partition, self.transactor.fresh_command(), &JudgeSlot { key, score }).await?;
        match orphan {
            Some(slot) if slot.of_key => {
                self.scheduler.free_key_slots(&slot.namespace, &slot.quota, vec![slot.key()]).await
            }
            Some(slot) => self.scheduler.free_slots(&slot.namespace, &slot.quota, vec![slot.key()]).await,
            None => Ok(()),
        }
    }
}

/// Whether an execution waits for the answer to the question that was asked at an instant.
struct Awaited {
    asked_at: i64,
    awaited: bool,
}

struct ResetWhenDue {
    key: Key,
    score: i64,
    question: Option<Awaited>,
}

impl Command for ResetWhenDue {
    /// The budget whose timer fired; it may owe events.
    type Outcome = Option<Budget>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let Some(loaded) = tx.load::<Budget>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(None);
        };
        let mut budget = loaded.document;
        let came_due = budget.come_due(tx.now);
        if budget.idle_at().is_some_and(|at| at <= tx.now) {
            tx.delete(&self.key);
            return Ok(None);
        }
        if let Some(Awaited { asked_at, awaited }) = self.question {
            budget.question_awaited(asked_at, awaited, tx.now);
        } else if !came_due {
            if budget.breaches.retry_at().is_some_and(|at| at <= tx.now) {
                return Ok(Some(budget));
            }
            tx.repair_due(&self.key, budget.due_at(), self.score).await?;
            return Ok(None);
        }
        budget.answer_if_room();
        tx.hint(Item::gate(&budget.namespace, Gate::Budget(&budget.name)));
        tx.save(&budget);
        Ok(Some(budget))
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
        let query = Query::Documents(vec![Execution::key_of(&slot.execution)]);
        let answers = tx.transactor.read(home, vec![query]).await?;
        let at = answers.at;
        let found = answers.into_only(Answer::into_documents).map_err(Error::from)?;
        let execution = found.into_iter().next().flatten().map(|stored| Execution::decode(&stored.body)).transpose()?;
        let usage = SlotUse::of(execution.as_ref(), &slot.id);
        let execution = execution.filter(|execution| execution.uses_slot(&slot.id));
        if execution.as_ref().is_some_and(|execution| execution.may_end_unmarked(at)) {
            // The clocks of the two partitions disagree. The lease may still end without a mark, and then only this
            // timer is certain to free the slot, so it looks again later.
            tx.repair_due(&self.key, Some(slot.orphaned_at()), self.score).await?;
            return Ok(None);
        }
        match slot.fate(usage, tx.now) {
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
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<ConcurrencyKey>(self.key.clone()).await? else {
            return tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await;
        };
        let mut document = loaded.document;
        if document.idle_at().is_none_or(|at| at > tx.now) {
            return tx.repair_due(&self.key, document.idle_at(), self.score).await;
        }
        if document.is_idle() {
            tx.delete(&self.key);
            return Ok(());
        }
        // The last look at what waits did not come to its end.
        hint_open_limits(tx, &document);
        document.parking_changed(tx.now);
        tx.save(&document);
        Ok(())
    }
}
