//! Whether a candidate may start now: its budgets, its concurrency keys, then its quota. Fail-closed: what cannot be read admits nothing.
//!
//! Budgets are read; a quota is written: the start is counted and a concurrency slot taken in the quota's partition
//! before the claim commits. A claim that does not come about gives back its own slot and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use ff_core::budget::{self, Budget, HardAction};
use ff_core::execution::Execution;
use ff_core::lease::ClaimKind;
use ff_core::planted::{Bug, planted};
use ff_core::quota::{QuotaPolicy, QuotaRequest};
use ff_core::{ConcurrencyKey, ConcurrencyLimit, Document, LeaseId, Partition, Result, SlotId};

use super::Scheduler;
use super::ready::Candidate;
use crate::env;
use crate::transaction::Transactor;

/// The answer of the gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may start, perhaps with a concurrency slot, which is freed as an orphan unless the claim lands in time.
    Admitted { slot: Option<SlotId> },
    /// One of its gates is closed.
    Refused(Refusal),
    /// A gate cannot be read: it is passed over this round.
    Unreadable,
}

/// Why a gate is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `b:name`, `q:name` or `c:limit:key`.
    pub(crate) gate: String,
    /// The limit that is met: the dimension of a budget, `rate` or `concurrency` of a quota, `missing`, or a `key`.
    pub(crate) limit: Limit,
    /// For people.
    pub(crate) detail: String,
    /// When it may open by itself.
    pub(crate) until: Option<i64>,
    /// What becomes of the execution.
    pub(crate) action: HardAction,
}

/// The part of a gate that refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A dimension of a budget.
    Dimension(String),
    /// Of a quota: `rate`, `concurrency`, or `missing` when there is no such quota. Of a concurrency key: `key`.
    Quota(&'static str),
}

impl Refusal {
    pub(super) fn waits(gate: String, limit: Limit, detail: String, until: Option<i64>) -> Self {
        Self { gate, limit, detail, until, action: HardAction::Block }
    }
}

/// The budgets one claim has read, each once. A budget that could not be read is not remembered.
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

impl Scheduler {
    /// Reads the budgets of candidates that were not read yet, in one round trip for each partition.
    pub(crate) async fn read_budgets<'c>(
        &self,
        read: &Mutex<BudgetsRead>,
        candidates: impl Iterator<Item = &'c Candidate>,
    ) {
        let known = || read.lock().expect("no holder of this lock panics");
        let mut wanted: BTreeMap<Partition, BTreeSet<(String, String)>> = BTreeMap::new();
        for candidate in candidates {
            let namespace = &candidate.execution.namespace;
            for name in candidate.execution.budgets.iter().flat_map(|name| budget::names_to(name)) {
                let named = (namespace.clone(), name.to_owned());
                if !known().0.contains_key(&named) {
                    let partition = self.transactor.partitions().budget_partition(namespace, name);
                    wanted.entry(partition).or_default().insert(named);
                }
            }
        }
        let reads = wanted.into_iter().map(|(partition, names)| async move {
            let keys = names.iter().map(|(namespace, name)| Budget::key_of(namespace, name)).collect();
            (partition, self.transactor.store().documents(partition, keys).await, names)
        });
        for (partition, answer, names) in futures_util::future::join_all(reads).await {
            let found = match answer {
                Ok(found) => found,
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("budgets cannot be read") {
                        tracing::warn!(%partition, %error, suppressed, "budgets cannot be read; their work is passed over");
                    }
                    self.transactor.metrics().partition_passed_over();
                    continue;
                }
            };
            for (named, stored) in names.into_iter().zip(found) {
                match stored.map(|stored| Budget::decode(&stored.body)).transpose() {
                    Ok(budget) => drop(known().0.insert(named, budget)),
                    Err(error) => {
                        self.transactor.metrics().undecodable();
                        if let Some(suppressed) = self.transactor.may_log("a budget cannot be read") {
                            let budget = named.1;
                            tracing::error!(budget, %error, suppressed, "a budget cannot be read; its work is passed over");
                        }
                    }
                }
            }
        }
    }

    /// Asks every gate of an execution: its budgets as they were read, and its quota, which records the claim.
    pub(crate) async fn admit(
        &self,
        execution: &Execution,
        lease_id: LeaseId,
        budgets: &Mutex<BudgetsRead>,
    ) -> Admission {
        for named in &execution.budgets {
            for name in budget::names_to(named) {
                let read = budgets.lock().expect("no holder of this lock panics");
                let Some(budget) = read.0.get(&(execution.namespace.clone(), name.to_owned())) else {
                    return Admission::Unreadable;
                };
                // A budget above that is no longer there limits nothing.
                if budget.is_none() && name != named {
                    continue;
                }
                // An attempt that waited for the answer goes on after a no, too: its program learns what it may not spend.
                let declined = budget.as_ref().is_some_and(|budget| budget.declined);
                if declined && execution.claim_kind() == ClaimKind::Resumed {
                    continue;
                }
                if let Some(refusal) = budget_refusal(name, budget.as_ref()) {
                    return Admission::Refused(refusal);
                }
            }
        }
        if execution.quota.is_none() && execution.concurrency().is_empty() {
            return Admission::Admitted { slot: None };
        }
        let slot = SlotId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        if execution.concurrency().is_empty() {
            return self.ask_quota_of(execution, lease_id, slot).await;
        }
        Box::pin(self.admit_by_keys(execution, lease_id, slot)).await
    }

    /// Takes the keys of an execution, then asks its quota, which is last because a start that it counts is not given back.
    async fn admit_by_keys(&self, execution: &Execution, lease_id: LeaseId, slot: SlotId) -> Admission {
        match self.take_keys(execution, lease_id, slot).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return Admission::Refused(refusal),
            Err(error) => {
                if let Some(suppressed) = self.transactor.may_log("a concurrency key cannot be asked") {
                    tracing::warn!(%error, suppressed, "a concurrency key cannot be asked; its work is passed over");
                }
                return Admission::Unreadable;
            }
        }
        match self.ask_quota_of(execution, lease_id, slot).await {
            Admission::Admitted { .. } => Admission::Admitted { slot: Some(slot) },
            refused => {
                self.free_keys(execution, execution.concurrency(), slot).await;
                refused
            }
        }
    }

    async fn ask_quota_of(&self, execution: &Execution, lease: LeaseId, slot: SlotId) -> Admission {
        let Some(quota) = &execution.quota else { return Admission::Admitted { slot: None } };
        let request = QuotaRequest {
            execution: execution.id,
            attempt: execution.next_attempt_index(),
            lease,
            slot,
            starts: execution.claim_kind() != ClaimKind::Resumed,
        };
        self.admit_by_quota(&execution.namespace, quota, request).await.unwrap_or_else(|error| {
            // A slot that was taken all the same is freed as an orphan.
            if let Some(suppressed) = self.transactor.may_log("a quota cannot be asked") {
                tracing::warn!(quota, %error, suppressed, "a quota cannot be asked; its work is passed over");
            }
            Admission::Unreadable
        })
    }

    /// A claim that took a slot did not come about: the slot of this very try goes back.
    pub(crate) async fn release_unused_slot(&self, execution: &Execution, slot: Option<SlotId>) {
        let Some(slot) = slot else { return };
        self.free_keys(execution, execution.concurrency(), slot).await;
        if let Err(error) = self.release_slots(execution, &[slot]).await
            && let Some(suppressed) = self.transactor.may_log("an unused slot could not be given back")
        {
            tracing::warn!(%error, suppressed, "an unused slot could not be given back; it is freed as an orphan");
        }
    }

    async fn release_slots(&self, execution: &Execution, slots: &[SlotId]) -> Result<()> {
        let Some(quota) = &execution.quota else { return Ok(()) };
        self.free_slots(&execution.namespace, quota, &execution.id, slots).await
    }
}

/// The reason of a budget against a start now.
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
    Some(Refusal { gate, limit, detail, until: refusal.next_reset_at, action: budget.hard_action() })
}

/// Where a gate lives: its partition and its document.
pub(crate) fn place_of(transactor: &Transactor, namespace: &str, gate: &str) -> Option<(Partition, ff_core::Key)> {
    match gate.split_once(':')? {
        ("b", name) => {
            Some((transactor.partitions().budget_partition(namespace, name), Budget::key_of(namespace, name)))
        }
        ("q", name) => {
            Some((transactor.partitions().quota_partition(namespace, name), QuotaPolicy::key_of(namespace, name)))
        }
        ("c", _) => {
            let key = ConcurrencyLimit::of_gate(gate)?.key;
            let home = transactor.partitions().concurrency_partition(namespace, &key);
            Some((home, ConcurrencyKey::key_of(namespace, &key)))
        }
        _ => None,
    }
}
