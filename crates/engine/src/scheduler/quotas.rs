//! Starts counted and slots taken and given back in the document of a quota. Requests to one quota share commits: with
//! many workers under one quota, its document changes a few times for all of them.

use std::collections::BTreeSet;

use ff_core::gate::Gate;
use ff_core::planted::{Bug, planted};
use ff_core::quota::{QuotaDecision, QuotaPolicy, QuotaRequest};
use ff_core::slot::Slot;
use ff_core::{Code, Error, ExecutionId, IndexName, Indexed, Key, Result, SlotId, index};

use super::Scheduler;
use super::admission::{Admission, Limit, Refusal};
use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::opening::Opened;
use crate::transaction::{Command, Tx};

/// A request to a quota.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// Count a start and take a slot.
    Admit(QuotaRequest),
    /// Give back slots. One that is not there was given back before.
    Free(Vec<Key>),
}

/// The answer of a quota.
#[derive(Debug)]
pub(crate) enum QuotaAnswer {
    Admission(Admission),
    /// Slots were given back; where something waits that may use them, for one of the callers that made the room.
    Freed(Opened),
}

/// Requests to quotas on their way.
pub(crate) type Quotas = Groups<Ask, QuotaAnswer>;

impl Scheduler {
    /// Counts a start and takes a slot, or says why not.
    pub(super) async fn admit_by_quota(&self, namespace: &str, name: &str, request: QuotaRequest) -> Result<Admission> {
        match self.ask_quota(namespace, name, Ask::Admit(request)).await? {
            QuotaAnswer::Admission(admission) => Ok(admission),
            QuotaAnswer::Freed(_) => Err(Error::of(Code::Internal)),
        }
    }

    /// Frees slots of a quota and lets in what waited for them.
    pub(crate) async fn free_slots(
        &self,
        namespace: &str,
        name: &str,
        execution: &ExecutionId,
        slots: &[SlotId],
    ) -> Result<()> {
        let slots = slots.iter().map(|slot| Slot::key_of(execution, slot)).collect();
        let opened = self.give_back_slots(namespace, name, slots).await?;
        self.release_parked(namespace, Gate::Quota(name), opened).await;
        Ok(())
    }

    /// Frees slots of a quota; says where something waits for them.
    pub(crate) async fn give_back_slots(&self, namespace: &str, name: &str, slots: Vec<Key>) -> Result<Opened> {
        match self.ask_quota(namespace, name, Ask::Free(slots)).await? {
            QuotaAnswer::Freed(opened) => Ok(opened),
            QuotaAnswer::Admission(_) => Err(Error::of(Code::Internal)),
        }
    }

    async fn ask_quota(&self, namespace: &str, name: &str, ask: Ask) -> Result<QuotaAnswer> {
        let serve = |quota| {
            let scheduler = self.clone();
            self.transactor.spawn_short(async move { scheduler.serve_quota(quota).await });
        };
        self.memory.quotas.ask((namespace.to_owned(), name.to_owned()), ask, serve).await
    }

    async fn serve_quota(&self, quota: Name) {
        let (namespace, name) = (&quota.0, &quota.1);
        let partition = self.transactor.partitions().quota_partition(namespace, name);
        let index = index::blocked(namespace, &Gate::Quota(name).to_string());
        loop {
            let waiting = self.memory.quotas.take(&quota);
            if waiting.is_empty() {
                return;
            }
            let (asks, senders): (Vec<Ask>, Vec<_>) = waiting.into_iter().unzip();
            let verb = AskAll { key: QuotaPolicy::key_of(namespace, name), name, index: &index, asks: &asks };
            let turn = self.transactor.locks().take(partition, verb.key.clone()).await;
            let outcome = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
            drop(turn);
            // A claim that no longer waits for its slot leaves an orphan, which is freed as one.
            groups::answer(senders, outcome.map(|told| told.into_iter().map(Ok).collect()));
        }
    }
}

/// All requests to a quota, in one commit. Slots that are given back can be taken at once.
struct AskAll<'a> {
    key: Key,
    name: &'a str,
    index: &'a IndexName,
    asks: &'a [Ask],
}

impl Command for AskAll<'_> {
    type Outcome = Vec<QuotaAnswer>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<QuotaAnswer>> {
        let policy = tx.load_admission::<QuotaPolicy>(vec![self.key.clone()]).await?.pop().flatten();
        let policy = policy.map(|loaded| loaded.document);
        if policy.is_none() {
            // One that is made at this moment counts the slots there are, and must not count one that goes.
            tx.pin(&self.key);
        }
        let mut slots = BTreeSet::new();
        for ask in self.asks {
            match ask {
                Ask::Free(keys) => slots.extend(keys.iter().cloned()),
                // Its slot has an id of its own: only an earlier try of this command can have taken it.
                Ask::Admit(request) if tx.is_repeat() => {
                    slots.insert(Slot::key_of(&request.execution, &request.slot));
                }
                Ask::Admit(_) => {}
            }
        }
        let found = tx.load_admission::<Slot>(slots.into_iter().collect()).await?;
        let held: Vec<Slot> = found.into_iter().flatten().map(|loaded| loaded.document).collect();
        let before = policy.clone();
        let mut quota = Quota { policy, held, name: self.name };
        let freed = self.free(tx, &mut quota);
        let mut opened = Opened::default();
        if let Some(policy) = quota.policy.as_mut().filter(|_| freed) {
            let count = policy.release_count(tx.now);
            opened = Opened::take(policy, count, tx.transactor.partitions());
        }
        if !opened.places.is_empty() {
            tx.hint(Item::Gate(self.index.clone()));
        }
        let told = self.asks.iter().map(|ask| match ask {
            Ask::Free(_) => QuotaAnswer::Freed(std::mem::take(&mut opened)),
            Ask::Admit(request) => QuotaAnswer::Admission(quota.admit(tx, request)),
        });
        let told = told.collect();
        if let Some(policy) = quota.policy.filter(|policy| Some(policy) != before.as_ref()) {
            tx.save(&policy);
        }
        Ok(told)
    }
}

impl AskAll<'_> {
    /// Gives slots back, each once; says whether there were any.
    fn free(&self, tx: &mut Tx<'_>, quota: &mut Quota<'_>) -> bool {
        if planted(Bug::QuotaSlotLeaked) {
            return false;
        }
        let keys = self.asks.iter().filter_map(|ask| match ask {
            Ask::Free(keys) => Some(keys),
            Ask::Admit(_) => None,
        });
        let given: BTreeSet<&Key> = keys.flatten().collect();
        let (freed, held): (Vec<Slot>, Vec<Slot>) =
            std::mem::take(&mut quota.held).into_iter().partition(|slot| given.contains(&slot.key()));
        quota.held = held;
        freed.iter().for_each(|slot| tx.delete(&slot.key()));
        let count = if planted(Bug::LoserFreesSlot) { given.len() } else { freed.len() };
        let Some(policy) = &mut quota.policy else { return false };
        (0..count).for_each(|_| policy.release(tx.now));
        count > 0
    }
}

/// A quota while it is asked.
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
