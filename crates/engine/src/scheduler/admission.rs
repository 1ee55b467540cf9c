//! Whether a candidate may start now: its budgets, then its quota. Fail-closed: what cannot be read admits nothing.
//!
//! Budgets are read; a quota is written: the start is counted and a concurrency slot taken in the quota's partition
//! before the claim commits. A claim that does not come about gives back its own slot and no other.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::budget::{Budget, HardAction};
use ff_core::execution::Execution;
use ff_core::lease::ClaimKind;
use ff_core::planted::{Bug, planted};
use ff_core::quota::{QuotaDecision, QuotaPolicy, QuotaRequest};
use ff_core::slot::Slot;
use ff_core::{Document, Indexed, LeaseId, Partition, Result, SlotId, limits};

use super::ready::Candidate;
use crate::engine::Engine;
use crate::env;
use crate::transaction::{Command, Tx};

/// A claim must land this much before its slot may be taken for an orphan.
const SLOT_MARGIN_MS: i64 = 1_000;

/// What the gates say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may start; with a concurrency slot the claim must land before this instant.
    Admitted { slot: Option<SlotId>, not_after: Option<i64> },
    /// One of its gates is closed.
    Refused(Refusal),
    /// A gate cannot be read: it is passed over this round.
    Unreadable,
}

/// Why a gate is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `b:name` or `q:name`.
    pub(crate) gate: String,
    /// What is at its limit: the dimension of a budget, `rate` or `concurrency` of a quota, or `missing`.
    pub(crate) limit: Limit,
    /// For people.
    pub(crate) detail: String,
    /// When it may open by itself.
    pub(crate) until: Option<i64>,
    /// What becomes of the execution.
    pub(crate) action: HardAction,
}

/// What of a gate says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A dimension of a budget.
    Dimension(String),
    /// Of a quota: `rate`, `concurrency`, or `missing` when there is no such quota.
    Quota(&'static str),
}

impl Refusal {
    fn waits(gate: String, limit: Limit, detail: String, until: Option<i64>) -> Self {
        Self { gate, limit, detail, until, action: HardAction::Block }
    }
}

/// The budgets one claim has read, each once. What could not be read is not remembered.
#[derive(Debug, Default)]
pub(crate) struct BudgetsRead(BTreeMap<(String, String), Option<Budget>>);

impl BudgetsRead {
    /// The next candidate of this gate makes the claim read it again.
    pub(crate) fn forget(&mut self, namespace: &str, gate: &str) {
        if let Some(name) = gate.strip_prefix("b:") {
            self.0.remove(&(namespace.to_owned(), name.to_owned()));
        }
    }
}

impl Engine {
    /// Reads the budgets of candidates that were not read yet, in one round trip for each partition.
    pub(crate) async fn read_budgets<'c>(
        &self,
        read: &mut BudgetsRead,
        candidates: impl Iterator<Item = &'c Candidate>,
    ) {
        let mut wanted: BTreeMap<Partition, BTreeSet<(String, String)>> = BTreeMap::new();
        for candidate in candidates {
            let namespace = &candidate.execution.namespace;
            for name in &candidate.execution.budgets {
                let named = (namespace.clone(), name.clone());
                if !read.0.contains_key(&named) {
                    let partition = self.partitions().budget_partition(namespace, name);
                    wanted.entry(partition).or_default().insert(named);
                }
            }
        }
        let reads = wanted.into_iter().map(|(partition, names)| async move {
            let keys = names.iter().map(|(namespace, name)| Budget::key_of(namespace, name)).collect();
            (partition, self.store().documents(partition, keys).await, names)
        });
        for (partition, answer, names) in futures_util::future::join_all(reads).await {
            let found = match answer {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%partition, %error, "budgets cannot be read; their work is passed over");
                    self.metrics().partition_passed_over();
                    continue;
                }
            };
            for (named, stored) in names.into_iter().zip(found) {
                match stored.map(|stored| Budget::decode(&stored.body)).transpose() {
                    Ok(budget) => drop(read.0.insert(named, budget)),
                    Err(error) => {
                        self.metrics().undecodable();
                        tracing::error!(budget = named.1, %error, "a budget cannot be read; its work is passed over");
                    }
                }
            }
        }
    }

    /// Asks every gate of an execution: its budgets as they were read, and its quota, which records the claim.
    pub(crate) async fn admit(&self, execution: &Execution, lease_id: LeaseId, budgets: &BudgetsRead) -> Admission {
        for name in &execution.budgets {
            let Some(budget) = budgets.0.get(&(execution.namespace.clone(), name.clone())) else {
                return Admission::Unreadable;
            };
            if let Some(refusal) = budget_refusal(name, budget.as_ref()) {
                return Admission::Refused(refusal);
            }
        }
        let Some(quota) = &execution.quota else {
            return Admission::Admitted { slot: None, not_after: None };
        };
        let partition = self.partitions().quota_partition(&execution.namespace, quota);
        let key = QuotaPolicy::key_of(&execution.namespace, quota);
        let request = QuotaRequest {
            execution: execution.id,
            attempt: execution.next_attempt_index(),
            lease: lease_id,
            slot: SlotId::mint(&env::mint(self.env(), self.now())),
            starts: execution.claim_kind() != ClaimKind::Resumed,
        };
        let _turn = self.locks().take(partition, key.clone()).await;
        match self.transact(partition, self.fresh_command(), &AdmitClaim { key, name: quota, request }).await {
            Ok(admission) => admission,
            Err(error) => {
                // A slot that was taken all the same is freed as an orphan.
                tracing::warn!(quota, %error, "a quota cannot be asked; its work is passed over");
                Admission::Unreadable
            }
        }
    }

    /// A claim that took a slot did not come about: the slot of this very try goes back.
    pub(crate) async fn release_unused_slot(&self, execution: &Execution, slot: Option<SlotId>) {
        let Some(slot) = slot else { return };
        if let Err(error) = self.release_slots(execution, &[slot]).await {
            tracing::warn!(%error, "an unused slot could not be given back; it is freed as an orphan");
        }
    }

    /// Gives back the slots that an execution owes to its quota. Again: nothing happens.
    pub(crate) async fn release_owed_slots(&self, execution: &Execution) -> Result<()> {
        self.release_slots(execution, &execution.owed_slots).await
    }

    async fn release_slots(&self, execution: &Execution, slots: &[SlotId]) -> Result<()> {
        let Some(quota) = &execution.quota else { return Ok(()) };
        self.free_slots(&execution.namespace, quota, &execution.id, slots).await
    }
}

/// What a budget says against a start now.
pub(crate) fn budget_refusal(name: &str, budget: Option<&Budget>) -> Option<Refusal> {
    let gate = format!("b:{name}");
    let Some(budget) = budget else {
        let missing = Limit::Dimension("missing".into());
        return Some(Refusal::waits(gate, missing, format!("the budget {name} does not exist"), None));
    };
    let refusal = budget.admit().err().filter(|_| !planted(Bug::BudgetNotChecked))?;
    let (dimension, current, limit) = (&refusal.dimension, refusal.current, refusal.limit);
    let detail = format!("budget {name}: {dimension} {current}/{limit}");
    let limit = Limit::Dimension(refusal.dimension.clone());
    Some(Refusal { gate, limit, detail, until: refusal.next_reset_at, action: budget.definition.on_hard })
}

/// Counts a start and takes a slot, or says why not.
struct AdmitClaim<'a> {
    key: ff_core::Key,
    name: &'a str,
    request: QuotaRequest,
}

impl Command for AdmitClaim<'_> {
    type Outcome = Admission;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Admission> {
        let gate = format!("q:{}", self.name);
        let Some(policy) = tx.load::<QuotaPolicy>(self.key.clone()).await? else {
            let detail = format!("the quota {} does not exist", self.name);
            return Ok(Admission::Refused(Refusal::waits(gate, Limit::Quota("missing"), detail, None)));
        };
        let mut policy = policy.document;
        let held = match policy.definition.max_concurrent {
            0 => None,
            _ => tx.load::<Slot>(Slot::key_of(&self.request.execution, &self.request.slot)).await?,
        };
        let held = held.map(|held| held.document);
        let before = policy.clone();
        let (decision, slot) = policy.admit(&self.request, held.as_ref(), tx.now);
        match decision {
            QuotaDecision::RateExceeded { retry_after_ms } => {
                let opens_at = policy.opens_at(tx.now, u64::from(tx.random()));
                let until = opens_at.unwrap_or(tx.now + retry_after_ms);
                let (max, window) = (policy.definition.max_requests, policy.definition.window_seconds);
                let detail = format!("quota {}: {max} starts in {window} s", self.name);
                return Ok(Admission::Refused(Refusal::waits(gate, Limit::Quota("rate"), detail, Some(until))));
            }
            QuotaDecision::ConcurrencyExceeded => {
                let (used, max) = (policy.in_use, policy.definition.max_concurrent);
                let detail = format!("quota {}: {used}/{max} running", self.name);
                let limit = Limit::Quota("concurrency");
                return Ok(Admission::Refused(Refusal::waits(gate, limit, detail, None)));
            }
            QuotaDecision::Admitted | QuotaDecision::AlreadyAdmitted => {}
        }
        if policy != before {
            tx.save(&policy);
        }
        if let Some(slot) = &slot {
            tx.save(slot);
        }
        let slot = slot.or(held);
        let not_after = slot.as_ref().map(|slot| slot.taken_at + limits::SLOT_ORPHAN_AGE_MS - SLOT_MARGIN_MS);
        Ok(Admission::Admitted { slot: slot.map(|slot| slot.id), not_after })
    }
}

/// Where a gate lives: its partition and its document.
pub(crate) fn place_of(engine: &Engine, namespace: &str, gate: &str) -> Option<(Partition, ff_core::Key)> {
    match gate.split_once(':')? {
        ("b", name) => Some((engine.partitions().budget_partition(namespace, name), Budget::key_of(namespace, name))),
        ("q", name) => {
            Some((engine.partitions().quota_partition(namespace, name), QuotaPolicy::key_of(namespace, name)))
        }
        _ => None,
    }
}

/// Gives back slots in the quota's partition; a slot that is not there was given back before.
pub(super) struct FreeSlots<'a> {
    pub(super) policy: ff_core::Key,
    pub(super) slots: Vec<ff_core::Key>,
    pub(super) index: &'a ff_core::IndexName,
}

impl Command for FreeSlots<'_> {
    type Outcome = super::parking::Opened;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<super::parking::Opened> {
        let policy = tx.load::<QuotaPolicy>(self.policy.clone()).await?;
        let found = tx.load_many::<Slot>(self.slots.clone()).await?;
        let held: Vec<_> = found.into_iter().flatten().map(|slot| slot.document.key()).collect();
        if planted(Bug::QuotaSlotLeaked) {
            return Ok(super::parking::Opened::default());
        }
        for key in &held {
            tx.delete(key);
        }
        let anyway = planted(Bug::LoserFreesSlot);
        let Some(mut policy) = policy.map(|policy| policy.document).filter(|_| anyway || !held.is_empty()) else {
            return Ok(super::parking::Opened::default());
        };
        let mut made_room = false;
        let freed = if anyway { self.slots.len() } else { held.len() };
        for _ in 0..freed {
            made_room |= policy.release(tx.now);
        }
        let mut opened = super::parking::Opened::default();
        if made_room {
            tx.hint(crate::hint::Item::Gate(self.index.clone()));
            let count = policy.release_count(tx.now);
            opened = super::parking::Opened::take(&mut policy.parked_in, count, tx.engine.partitions());
        }
        tx.save(&policy);
        Ok(opened)
    }
}
