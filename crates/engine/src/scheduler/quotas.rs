//! Counts starts, and takes and gives back slots, in the document of a quota. Requests to one quota share commits: with
//! many workers under one quota, its document changes a few times for all of them.

use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::planted::{Bug, planted};
use ff_core::quota::{QuotaDecision, QuotaPolicy, QuotaRequest};
use ff_core::slot::Slot;
use ff_core::{Code, Error, IndexName, Key, Partition, Result, index, limits};

use super::Scheduler;
use super::admission::{Admission, Limit, Refusal};
use super::slots::{self, SlotAsk};
use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::transaction::{Command, Released, Tx};

/// Slots that could not be given back are tried again this much later; the wait doubles each time.
const FREE_AGAIN_MS: i64 = 100;

/// A request to a quota. Taking a slot counts a start.
type QuotaAsk = SlotAsk<QuotaRequest>;

/// The answer of a quota.
#[derive(Debug)]
pub(crate) enum QuotaAnswer {
    Admission(Admission),
    /// Slots were given back.
    Freed,
}

/// Requests to quotas on their way.
pub(crate) type Quotas = Groups<QuotaAsk, QuotaAnswer>;

impl Scheduler {
    /// Counts a start and takes a slot, or returns the refusal.
    pub(super) async fn admit_by_quota(&self, namespace: &str, name: &str, request: QuotaRequest) -> Result<Admission> {
        match self.ask_quota(namespace, name, QuotaAsk::Take(request)).await? {
            QuotaAnswer::Admission(admission) => Ok(admission),
            QuotaAnswer::Freed => Err(Error::of(Code::Internal)),
        }
    }

    /// Frees slots of a quota.
    pub(crate) async fn free_slots(&self, namespace: &str, name: &str, slots: Vec<Key>) -> Result<()> {
        match self.ask_quota(namespace, name, QuotaAsk::Free(slots)).await? {
            QuotaAnswer::Freed => Ok(()),
            QuotaAnswer::Admission(_) => Err(Error::of(Code::Internal)),
        }
    }

    /// Gives back a slot for which no mark exists, in a task of its own. If that fails, the slot's timer frees it.
    pub(crate) fn give_back_soon(&self, released: Released) {
        let Released { execution, slot } = released;
        match &execution.quota {
            Some(quota) if execution.estimate().is_none() && execution.concurrency().is_empty() => {
                let ask = QuotaAsk::Free(vec![Slot::key_of(&execution.id, &slot)]);
                let quota = (execution.namespace.clone(), quota.clone());
                self.memory.quotas.tell(quota, ask, |quota| self.serve_soon(quota));
            }
            _ => {
                let scheduler = self.clone();
                self.transactor.spawn_short(async move { scheduler.release_unused_slot(&execution, Some(slot)).await });
            }
        }
    }

    /// The same after a commit that may not have been applied, so the execution is read to see whether it still uses
    /// the slot.
    pub(crate) fn give_back_if_released(&self, released: &Released) {
        let (scheduler, released) = (self.clone(), released.clone());
        self.transactor.spawn_short(async move {
            let id = released.execution.id;
            let found = scheduler.transactor.find::<Execution>(id.partition(), Execution::key_of(&id)).await;
            // Without an answer the slot is left to its timer.
            if found.is_ok_and(|found| found.is_none_or(|execution| !execution.uses_slot(&released.slot))) {
                scheduler.give_back_soon(released);
            }
        });
    }

    async fn ask_quota(&self, namespace: &str, name: &str, ask: QuotaAsk) -> Result<QuotaAnswer> {
        let quota = (namespace.to_owned(), name.to_owned());
        self.memory.quotas.ask(quota, ask, |quota| self.serve_soon(quota)).await
    }

    fn serve_soon(&self, quota: Name) {
        let scheduler = self.clone();
        self.transactor.spawn_short(async move { scheduler.serve_quota(quota).await });
    }

    async fn serve_quota(&self, quota: Name) {
        let (namespace, name) = (&quota.0, &quota.1);
        let partition = self.transactor.partitions().quota_partition(namespace, name);
        let index = index::blocked(namespace, &Gate::Quota(name).to_string());
        while let Some((asks, callers)) = self.memory.quotas.next(&quota).await {
            let verb = AskQuota { key: QuotaPolicy::key_of(namespace, name), name, index: &index, asks: &asks };
            let outcome = self.transactor.transact_in_turn(partition, verb.key.clone(), &verb).await;
            if outcome.is_err() {
                let left = asks.iter().zip(&callers).filter(|(_, caller)| caller.is_closed());
                self.free_later(&quota, left.flat_map(|(ask, _)| ask.freed()).cloned().collect());
            }
            // A claim that no longer waits for its answer leaves an orphaned slot, which its timer frees.
            groups::answer(callers, outcome.map(|told| told.into_iter().map(Ok).collect()));
        }
    }
}

impl Scheduler {
    /// Counts the slots of a quota anew. Returns whether the old count was wrong.
    pub(crate) async fn recount_quota(&self, partition: Partition, key: &Key) -> Result<bool> {
        self.transactor.transact(partition, self.transactor.fresh_command(), &RecountQuota { key }).await
    }
}

/// Counts the slots of a quota anew. A claim in between changes the quota's version, and the count is made again.
struct RecountQuota<'a> {
    key: &'a Key,
}

impl Command for RecountQuota<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(loaded) = tx.load::<QuotaPolicy>(self.key.clone()).await? else { return Ok(false) };
        let mut quota = loaded.document;
        let slots = tx.count(index::slots(&quota.namespace, &quota.name)).await?;
        if quota.recount(u32::try_from(slots).unwrap_or(u32::MAX), tx.now).is_none() {
            return Ok(false);
        }
        tx.hint(Item::gate(&quota.namespace, Gate::Quota(&quota.name)));
        tx.save(&quota);
        Ok(true)
    }
}

impl Scheduler {
    /// Tries again to give slots back for which no caller waits, until their timers free them.
    fn free_later(&self, quota: &Name, slots: Vec<Key>) {
        if slots.is_empty() {
            return;
        }
        let (scheduler, quota) = (self.clone(), quota.clone());
        self.transactor.spawn_short(async move {
            let mut wait_ms = FREE_AGAIN_MS;
            while wait_ms < limits::SLOT_ORPHAN_AGE_MS && scheduler.transactor.refuse_if_closing().is_ok() {
                scheduler.transactor.env().sleep(wait_ms).await;
                if scheduler.free_slots(&quota.0, &quota.1, slots.clone()).await.is_ok() {
                    return;
                }
                wait_ms *= 2;
            }
        });
    }
}

/// All requests to a quota, in one commit. Slots that are given back can be taken at once.
struct AskQuota<'a> {
    key: Key,
    name: &'a str,
    index: &'a IndexName,
    asks: &'a [QuotaAsk],
}

impl Command for AskQuota<'_> {
    type Outcome = Vec<QuotaAnswer>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<QuotaAnswer>> {
        let policy = tx.load_admission::<QuotaPolicy>(vec![self.key.clone()]).await?.pop().flatten();
        let policy = policy.map(|loaded| loaded.document);
        if policy.is_none() {
            // A quota that is created at this moment counts the existing slots, and must not count a slot that is being
            // removed.
            tx.pin(&self.key);
        }
        let slot_of = |request: &QuotaRequest| Slot::key_of(&request.execution, &request.slot);
        let held = slots::load_held(tx, self.asks, slot_of).await?;
        let before = policy.clone();
        let mut quota = Quota { policy, held, name: self.name };
        let freed = self.free(tx, &mut quota);
        let waited_for = |policy: &QuotaPolicy| !policy.parked_in.is_empty() && policy.release_count(tx.now) > 0;
        // Claims of this commit may take the room again. The look that follows sees that, and whether time brings more.
        if freed && quota.policy.as_ref().is_some_and(waited_for) {
            tx.hint(Item::Gate(self.index.clone()));
        }
        let told = self.asks.iter().map(|ask| match ask {
            QuotaAsk::Free(_) => QuotaAnswer::Freed,
            QuotaAsk::Take(request) => QuotaAnswer::Admission(quota.admit(tx, request)),
        });
        let told = told.collect();
        if let Some(policy) = quota.policy.filter(|policy| Some(policy) != before.as_ref()) {
            tx.save(&policy);
        }
        Ok(told)
    }
}

impl AskQuota<'_> {
    /// Gives slots back, each once; returns whether there were any.
    fn free(&self, tx: &mut Tx<'_>, quota: &mut Quota<'_>) -> bool {
        let freed = slots::remove_freed(tx, self.asks, &mut quota.held);
        let count = if planted(Bug::LoserFreesSlot) { slots::freed_by(self.asks).len() } else { freed };
        let Some(policy) = &mut quota.policy else { return false };
        (0..count).for_each(|_| policy.release(tx.now));
        count > 0
    }
}

/// A quota while the requests of one commit are applied to it.
struct Quota<'a> {
    /// `None`: there is no such quota.
    policy: Option<QuotaPolicy>,
    /// Slots that an earlier try took.
    held: Vec<Slot>,
    name: &'a str,
}

impl Quota<'_> {
    fn admit(&mut self, tx: &mut Tx<'_>, request: &QuotaRequest) -> Admission {
        let name = self.name;
        let refused = |limit, detail, until| {
            Admission::Refused(Refusal::waits(Gate::Quota(name).to_string(), Limit::Quota(limit), detail, until))
        };
        let Some(policy) = &mut self.policy else {
            return refused("missing", format!("the quota {name} does not exist"), None);
        };
        let held = self.held.iter().find(|held| held.id == request.slot);
        let (decision, slot) = policy.admit(request, held, tx.now);
        match decision {
            QuotaDecision::RateExceeded { retry_after_ms } => {
                let opens_at = policy.opens_at(tx.now, u64::from(tx.random()));
                let until = opens_at.unwrap_or(tx.now + retry_after_ms);
                let (max, window) = (policy.definition.max_requests, policy.definition.window_seconds);
                return refused("rate", format!("quota {name}: {max} starts in {window} s"), Some(until));
            }
            QuotaDecision::ConcurrencyExceeded => {
                let (used, max) = (policy.in_use, policy.definition.max_concurrent);
                return refused("concurrency", format!("quota {name}: {used}/{max} running"), None);
            }
            QuotaDecision::Admitted | QuotaDecision::AlreadyAdmitted => {}
        }
        if let Some(slot) = &slot {
            tx.create(slot);
        }
        Admission::Admitted { slot: slot.as_ref().or(held).map(|slot| slot.id) }
    }
}
