//! Brings about the effects that a marked document still owes elsewhere: telling its end to its downstreams and its
//! flow, giving concurrency slots back, telling a flow's cancellation to its members, removing a flow. It acts right
//! after the commit that left the mark, and after a crash when a sweep finds the mark. The mark stays until the last of
//! the commits that it needs clears it.
//!
//! Each partition has one queue of marked keys and at most one task that drains it, so that a thousand upstreams of one
//! child are resolved together in a few commits instead of fighting over it. A turn is one bounded commit; unfinished
//! work queues again behind the others, so that nothing large holds up anything small. Slots live in partitions of
//! their own: they are given back beside the queue, by one task for each quota, and nothing here waits for them.

mod cancellation;
mod edges;
mod flows;
mod queue;
mod removal;

use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::slot::Slot;
use ff_core::{Code, Error, ExecutionId, Indexed, Key, Partition, SlotId, limits};
use ff_store::Version;

use self::edges::{OwedSlots, Resolve, Resolved, Work};
use self::queue::{Marks, Turn, Written};
use crate::groups::Name;
use crate::journal_upkeep::TendJournals;
use crate::scheduler::Scheduler;
use crate::transaction::Transactor;

/// Resolves marks.
#[derive(Clone)]
pub(crate) struct Resolver {
    transactor: Transactor,
    scheduler: Scheduler,
    marks: Arc<Marks>,
}

/// A task that drains a queue or gives slots back to a quota. If it ends before its work is done, for example by a
/// panic, dropping this lets another task take its place.
struct Attending<'e> {
    marks: &'e Marks,
    partition: Partition,
    quota: Option<&'e Name>,
    finished: bool,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.marks.abandoned(self.partition, self.quota);
        }
    }
}

impl Resolver {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        let transactor = scheduler.transactor().clone();
        let chunk = transactor.options().chunk_max.clamp(1, limits::RESOLVE_CHUNK);
        Self { transactor, scheduler, marks: Arc::new(Marks::new(chunk)) }
    }

    /// Resolves a marked document, together with others of its partition, in a task beside the caller.
    pub(crate) fn resolve_soon(&self, partition: Partition, key: Key) {
        if !self.transactor.options().services {
            return;
        }
        if self.marks.push(partition, key) {
            let resolver = self.clone();
            self.transactor.spawn_short(async move { resolver.drain(partition).await });
        }
    }

    /// Resolves an execution that a commit has just marked. If it owes slots and nothing else, they are given back at once.
    pub(crate) fn resolve_written(&self, partition: Partition, execution: &Arc<Execution>, version: Version) {
        let key = execution.key();
        match Written::with_slots_only(execution, version).filter(|_| self.transactor.options().services) {
            Some(written) => {
                self.marks.written(partition, &key, written);
                self.release_soon(partition, &key, OwedSlots::of(execution));
            }
            None => self.resolve_soon(partition, key),
        }
    }

    async fn drain(&self, partition: Partition) {
        let mut attending = Attending { marks: &self.marks, partition, quota: None, finished: false };
        while let Some((turn, mut work)) = self.marks.take(partition) {
            match turn {
                Turn::Executions(_) => self.executions_turn(partition, work).await,
                Turn::Flow(key) => {
                    let progress = work.remove(&key).unwrap_or_default();
                    self.flow_turn(partition, key, progress).await;
                }
            }
        }
        attending.finished = true;
    }

    /// One commit for these executions. Those that are not done after it queue again.
    async fn executions_turn(&self, partition: Partition, work: Work) {
        let chunk = work.values().map(|progress| progress.chunk(self.marks.chunk())).min().unwrap_or(1);
        let verb = Resolve { work: &work, chunk };
        match self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await {
            Ok(resolved) => {
                for (key, outcome) in resolved {
                    if outcome.schedule
                        && let Err(error) = self.transactor.tell_schedule(partition, &key).await
                    {
                        self.try_again_later(partition, vec![key.clone()], &error);
                    }
                    match outcome.journals {
                        true => self.journals_turn(partition, key, outcome, &work).await,
                        false => self.note_resolved(partition, key, outcome, &work),
                    }
                }
            }
            Err(error) if error.code == Code::CommitTooLarge && chunk > 1 => {
                for (key, progress) in work {
                    let smaller = queue::Progress { chunk: Some(chunk / 2), ..progress };
                    self.marks.again(partition, key, smaller);
                }
            }
            Err(error) if work.len() == 1 || error.code.retryable() => {
                self.try_again_later(partition, work.into_keys().collect(), &error);
            }
            Err(_) => self.marks.separate(partition, work.into_keys()),
        }
    }

    /// One commit for the journals of an execution. If that is not all, the execution queues again.
    async fn journals_turn(&self, partition: Partition, key: Key, mut outcome: Resolved, work: &Work) {
        match self
            .transactor
            .transact(partition, self.transactor.fresh_command(), &TendJournals { key: key.clone() })
            .await
        {
            Ok(more) => {
                if more {
                    outcome.more.get_or_insert_default();
                }
                self.note_resolved(partition, key, outcome, work);
            }
            Err(error) => {
                self.note_resolved(partition, key.clone(), outcome, work);
                self.try_again_later(partition, vec![key], &error);
            }
        }
    }

    fn note_resolved(&self, partition: Partition, key: Key, outcome: Resolved, work: &Work) {
        if let Some(owed) = outcome.owed {
            self.release_soon(partition, &key, owed);
        }
        match outcome.more {
            None => self.marks.succeeded(partition, &key),
            Some(position) => {
                let known = work.get(&key).cloned().unwrap_or_default();
                self.marks.again(partition, key, queue::Progress { position, ..known });
            }
        }
    }

    /// Gives back the slots and estimates that an execution owes to its budgets, its keys and its quota, in a task of
    /// its own. After that the execution's debt is cleared.
    fn release_soon(&self, partition: Partition, key: &Key, mut owed: OwedSlots) {
        if !owed.budgets.is_empty() {
            let (resolver, key) = (self.clone(), key.clone());
            self.transactor.spawn_short(async move {
                let execution = ExecutionId { partition: partition.number, uuid: key.uuid().unwrap_or_default() };
                let budgets = std::mem::take(&mut owed.budgets);
                match resolver.scheduler.free_estimates(&owed.quota.0, &budgets, execution, &owed.slots).await {
                    Ok(()) => resolver.release_soon(partition, &key, owed),
                    Err(error) => resolver.try_again_later(partition, vec![key], &error),
                }
            });
            return;
        }
        if !owed.keys.is_empty() {
            let (resolver, key) = (self.clone(), key.clone());
            self.transactor.spawn_short(async move {
                let execution = ExecutionId { partition: partition.number, uuid: key.uuid().unwrap_or_default() };
                let keys = std::mem::take(&mut owed.keys);
                match resolver.scheduler.give_back_keys(&owed.quota.0, &keys, &execution, &owed.slots).await {
                    Ok(()) => resolver.release_soon(partition, &key, owed),
                    Err(error) => resolver.try_again_later(partition, vec![key], &error),
                }
            });
            return;
        }
        if self.marks.owe(partition, &owed.quota, key.clone(), owed.slots) {
            let resolver = self.clone();
            self.transactor.spawn_short(async move { resolver.release_slots_of(partition, owed.quota).await });
        }
    }

    async fn release_slots_of(&self, partition: Partition, quota: Name) {
        let mut attending = Attending { marks: &self.marks, partition, quota: Some(&quota), finished: false };
        loop {
            let owed = self.marks.take_owed(partition, &quota);
            if owed.is_empty() {
                attending.finished = true;
                return;
            }
            let slot = |key: &Key, slot: &SlotId| {
                let execution = ExecutionId { partition: partition.number, uuid: key.uuid().unwrap_or_default() };
                Slot::key_of(&execution, slot)
            };
            let slots = owed.iter().flat_map(|(key, slots)| slots.iter().map(move |id| slot(key, id))).collect();
            // Without a quota there is no document to give slots back to.
            let outcome = match quota.1.is_empty() {
                true => Ok(()),
                false => self.scheduler.free_slots(&quota.0, &quota.1, slots).await,
            };
            match outcome {
                Ok(()) => {
                    for (key, slots) in owed {
                        self.marks.released(partition, &key, slots);
                        self.resolve_soon(partition, key);
                    }
                }
                Err(error) => self.try_again_later(partition, owed.into_keys().collect(), &error),
            }
        }
    }

    /// Schedules marks that could not be resolved for another try, if a later try may succeed.
    fn try_again_later(&self, partition: Partition, keys: Vec<Key>, error: &Error) {
        let mut waits: Vec<(i64, Key)> = Vec::new();
        for key in keys {
            match self.marks.failed(partition, &key) {
                Some(wait_ms) => waits.push((wait_ms, key)),
                None => {
                    if let Some(suppressed) = self.transactor.may_log("a mark cannot be resolved") {
                        tracing::error!(%partition, ?key, %error, suppressed, "a mark cannot be resolved; left to the next sweep");
                    }
                }
            }
        }
        let Some(wait_ms) = waits.iter().map(|(wait_ms, _)| *wait_ms).max() else { return };
        if let Some(suppressed) = self.transactor.may_log("marks could not be resolved") {
            let marks = waits.len();
            tracing::warn!(%partition, marks, %error, wait_ms, suppressed, "marks could not be resolved; trying again");
        }
        let resolver = self.clone();
        self.transactor.spawn_short(async move {
            resolver.transactor.env().sleep(wait_ms).await;
            if resolver.transactor.refuse_if_closing().is_ok() {
                waits.into_iter().for_each(|(_, key)| resolver.resolve_soon(partition, key));
            }
        });
    }
}
