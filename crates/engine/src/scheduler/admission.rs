//! Decides whether a candidate may start now: its budgets as they were read, its concurrency keys, its estimate, then its
//! quota. It fails closed: a gate that cannot be read admits nothing.
//!
//! Budgets are only read, unless there is an estimate to hold. An estimate that is held may keep other executions out,
//! and a budget may fail those, so it is held only when the keys are taken. A quota is written: the start is counted, and a
//! concurrency slot is taken in the quota's partition before the claim commits, and often while the budgets are read
//! (`early`). A claim that is not applied gives back its own slot and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ff_core::budget::{self, Amounts, Budget, HardAction};
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::lease::ClaimKind;
use ff_core::planted::{Bug, planted};
use ff_core::quota::QuotaRequest;
use ff_core::slot::Slot;
use ff_core::{Document, Error, LeaseId, Partition, Result, SlotId};
use ff_store::{Answer, Query};

use super::Scheduler;
use super::early::Early;
use super::estimates::estimate_refusal;
use super::ready::Candidate;
use crate::env;
use crate::groups::{self, Groups, Name};

/// The answer of the gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may start, perhaps with a concurrency slot. The slot is freed as an orphan unless the claim is applied in
    /// time.
    Admitted { slot: Option<SlotId> },
    /// One of its gates is closed.
    Refused(Refusal),
    /// A gate cannot be read: the candidate is skipped this round.
    Unreadable,
}

/// Why a gate is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `b:name`, `q:name` or `c:limit:key`.
    pub(crate) gate: String,
    /// The limit that is met: the dimension of a budget, `rate` or `concurrency` of a quota, `missing`, or a `key`.
    pub(crate) limit: Limit,
    /// The reason in words, for people.
    pub(crate) detail: String,
    /// When the gate may open by itself.
    pub(crate) until: Option<i64>,
    /// What becomes of the execution.
    pub(crate) action: HardAction,
    /// Other executions with the same gates may pass: a budget's child by tag refuses only executions with its tag.
    pub(crate) alone: bool,
    /// The part of the estimate that a budget has no room for; 0 if the refusal has another reason.
    pub(crate) requested: i64,
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
    /// The gate that refuses.
    pub(super) fn gate(&self) -> Gate<'_> {
        Gate::parse(&self.gate).expect("refusals are made with the text of a gate")
    }

    /// The part of an estimate that the gate has no room for.
    pub(super) fn estimate(&self) -> Option<Amounts> {
        let Limit::Dimension(dimension) = &self.limit else { return None };
        (self.requested > 0).then(|| Amounts::from([(dimension.clone(), self.requested)]))
    }

    /// Whether the execution waits, and nothing else becomes of it.
    pub(super) fn only_waits(&self) -> bool {
        matches!(self.action, HardAction::Block | HardAction::Unknown(_))
    }

    pub(super) fn waits(gate: String, limit: Limit, detail: String, until: Option<i64>) -> Self {
        Self { gate, limit, detail, until, action: HardAction::Block, alone: false, requested: 0 }
    }
}

/// Namespace and name of a budget.
type Named = (String, String);

/// Budgets as they were read, by namespace and name; `None` for one that does not exist.
#[derive(Debug, Default)]
pub(crate) struct BudgetsFound(BTreeMap<String, BTreeMap<String, Option<Arc<Budget>>>>);

impl BudgetsFound {
    fn get(&self, namespace: &str, name: &str) -> Option<&Option<Arc<Budget>>> {
        self.0.get(namespace)?.get(name)
    }

    fn insert(&mut self, (namespace, name): Named, budget: Option<Arc<Budget>>) {
        self.0.entry(namespace).or_default().insert(name, budget);
    }
}

/// Reads of budgets on their way, by partition.
pub(crate) type BudgetReads = Groups<Arc<BTreeSet<Named>>, Arc<BudgetsFound>>;

/// The budgets one claim has read, each once. A budget that could not be read is not remembered.
#[derive(Debug, Default)]
pub(crate) struct BudgetsRead(BudgetsFound);

impl BudgetsRead {
    /// The budgets that decide about an execution and were not read yet, as far as they are known: those it names, the
    /// budgets above them, and their children for its tags.
    fn unread_for(&self, execution: &Execution) -> impl Iterator<Item = String> {
        let unread = |name: &str| self.get(execution, name).is_none();
        let named = execution.budgets.iter().flat_map(|name| budget::names_to(name));
        let children = execution.budgets.iter().filter_map(|name| self.child_for(execution, name));
        named.filter(move |name| unread(name)).map(str::to_owned).chain(children.filter(move |name| unread(name)))
    }

    fn child_for(&self, execution: &Execution, name: &str) -> Option<String> {
        self.get(execution, name)?.as_ref()?.child_for(&execution.tags)
    }

    fn get(&self, execution: &Execution, name: &str) -> Option<&Option<Arc<Budget>>> {
        self.0.get(&execution.namespace, name)
    }

    /// The refusal of a child by tag. A child that does not exist yet has room.
    fn child_refusal(&self, execution: &Execution, named: &str, now: i64) -> Result<Option<Refusal>, Admission> {
        let Some(name) = self.child_for(execution, named) else { return Ok(None) };
        let child = self.get(execution, &name).ok_or(Admission::Unreadable)?;
        let (Some(mut child), Some(Some(parent))) = (child.as_deref().cloned(), self.get(execution, named)) else {
            return Ok(None);
        };
        child.follow(parent, now);
        if child.declined && execution.claim_kind() == ClaimKind::Resumed {
            return Ok(None);
        }
        Ok(budget_refusal(&name, Some(&child), execution.estimate()).map(|refusal| Refusal { alone: true, ..refusal }))
    }

    /// Forgets the budget of a gate, so that the claim reads it again for the next candidate.
    pub(crate) fn forget(&mut self, namespace: &str, gate: &str) {
        if let (Some(name), Some(budgets)) = (Gate::budget_of(gate), self.0.0.get_mut(namespace)) {
            budgets.remove(name);
        }
    }
}

impl Scheduler {
    /// Reads the budgets of candidates that were not read yet, in one round trip for each partition, which claims that
    /// ask at the same time share; children by tag take another one.
    pub(crate) async fn read_budgets<'c>(
        &self,
        read: &Mutex<BudgetsRead>,
        candidates: impl Iterator<Item = &'c Candidate> + Clone,
    ) {
        self.read_known_budgets(read, candidates.clone()).await;
        self.read_known_budgets(read, candidates).await;
    }

    async fn read_known_budgets<'c>(&self, read: &Mutex<BudgetsRead>, candidates: impl Iterator<Item = &'c Candidate>) {
        let known = || read.lock().expect("no holder of this lock panics");
        let mut wanted: BTreeMap<Partition, BTreeSet<Named>> = BTreeMap::new();
        for candidate in candidates {
            let namespace = &candidate.execution.namespace;
            for name in known().unread_for(&candidate.execution) {
                let partition = self.transactor.partitions().budget_partition(namespace, &name);
                wanted.entry(partition).or_default().insert((namespace.clone(), name));
            }
        }
        if wanted.is_empty() {
            return;
        }
        let reads = wanted.into_iter().map(|(partition, names)| async move {
            let names = Arc::new(names);
            let serve = |place| {
                let scheduler = self.clone();
                self.transactor.spawn_short(async move { scheduler.serve_budget_reads(partition, place).await });
            };
            let place = (String::new(), partition.to_string());
            let found = self.memory.budget_reads.ask(place, Arc::clone(&names), serve).await;
            (found, names)
        });
        for (found, names) in futures_util::future::join_all(reads).await {
            // A failed read was logged; its candidates are skipped.
            let Ok(found) = found else { continue };
            for named in names.iter() {
                if let Some(budget) = found.get(&named.0, &named.1) {
                    known().0.insert(named.clone(), budget.clone());
                }
            }
        }
    }

    /// Reads the budgets of a partition for all claims that ask for them. A read serves only the claims that asked
    /// before it began, so that each claim sees everything that was acknowledged before it.
    async fn serve_budget_reads(&self, partition: Partition, place: Name) {
        while let Some((asked, callers)) = self.memory.budget_reads.next(&place).await {
            let names: BTreeSet<&Named> = asked.iter().flat_map(|names| names.iter()).collect();
            let found = self.find_budgets(partition, names).await.map(Arc::new);
            let told = found.map(|found| callers.iter().map(|_| Ok(Arc::clone(&found))).collect());
            groups::answer(callers, told);
        }
    }

    /// The budgets of one partition in one read. One that cannot be decoded is left out.
    async fn find_budgets(&self, partition: Partition, names: BTreeSet<&Named>) -> Result<BudgetsFound> {
        let keys = names.iter().map(|(namespace, name)| Budget::key_of(namespace, name)).collect();
        let answers = self.transactor.read(partition, vec![Query::Documents(keys)]).await;
        let stored = answers.and_then(|answers| answers.into_only(Answer::into_documents).map_err(Error::from));
        let stored = stored.inspect_err(|error| {
            if let Some(suppressed) = self.transactor.may_log("budgets cannot be read") {
                tracing::warn!(%partition, %error, suppressed, "budgets cannot be read; their work is passed over");
            }
            self.transactor.metrics().partition_passed_over();
        })?;
        let mut found = BudgetsFound::default();
        for (named, stored) in names.into_iter().zip(stored) {
            match stored.map(|stored| Budget::decode(&stored.body)).transpose() {
                Ok(budget) => found.insert(named.clone(), budget.map(Arc::new)),
                Err(error) => {
                    self.transactor.metrics().undecodable();
                    if let Some(suppressed) = self.transactor.may_log("a budget cannot be read") {
                        let budget = &named.1;
                        tracing::error!(budget, %error, suppressed, "a budget cannot be read; its work is passed over");
                    }
                }
            }
        }
        Ok(found)
    }

    /// Asks every gate of an execution: its budgets as they were read, and its quota, which records the claim and may have
    /// been asked already.
    pub(super) async fn admit(
        &self,
        execution: &Arc<Execution>,
        lease_id: LeaseId,
        budgets: &Mutex<BudgetsRead>,
        early: Option<Box<Early>>,
    ) -> Admission {
        if !execution.budgets.is_empty() {
            let refused = self.ask_budgets(execution, &budgets.lock().expect("no holder of this lock panics")).err();
            self.memory.roomy.read(execution, refused.is_none(), self.transactor.env().now_ms());
            if let Some(refused) = refused {
                self.give_early_back(execution, early.map(|early| early.admission));
                return refused;
            }
        }
        if let Some(early) = early {
            return early.admission;
        }
        let estimates = execution.estimate().is_some();
        if execution.quota.is_none() && execution.concurrency().is_empty() && !estimates {
            return Admission::Admitted { slot: None };
        }
        let slot = SlotId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        if !execution.concurrency().is_empty() {
            return Box::pin(self.admit_by_keys(execution, lease_id, slot)).await;
        }
        if estimates {
            return Box::pin(self.admit_by_estimate(execution, lease_id, slot)).await;
        }
        Box::pin(self.ask_quota_of(execution, lease_id, slot)).await
    }

    fn ask_budgets(&self, execution: &Execution, read: &BudgetsRead) -> Result<(), Admission> {
        for named in &execution.budgets {
            for name in budget::names_to(named) {
                let budget = read.get(execution, name).ok_or(Admission::Unreadable)?;
                // A budget above the named one that no longer exists limits nothing.
                if budget.is_none() && name != named {
                    continue;
                }
                // An attempt that waited for the answer goes on after a no, too: its program learns of the refusal from
                // its next reservation.
                let declined = budget.as_ref().is_some_and(|budget| budget.declined);
                if declined && execution.claim_kind() == ClaimKind::Resumed {
                    continue;
                }
                if let Some(refusal) = budget_refusal(name, budget.as_deref(), execution.estimate()) {
                    return Err(Admission::Refused(refusal));
                }
            }
            if let Some(refusal) = read.child_refusal(execution, named, self.transactor.now())? {
                return Err(Admission::Refused(refusal));
            }
        }
        Ok(())
    }

    /// Takes the keys of an execution, then holds its estimate and asks its quota. The quota comes last because a
    /// counted start is never given back.
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
        let admission = match execution.estimate() {
            Some(_) => self.admit_by_estimate(execution, lease_id, slot).await,
            None => self.ask_quota_of(execution, lease_id, slot).await,
        };
        match admission {
            Admission::Admitted { .. } => Admission::Admitted { slot: Some(slot) },
            refused => {
                self.free_keys(execution, execution.concurrency(), slot).await;
                refused
            }
        }
    }

    pub(super) async fn ask_quota_of(&self, execution: &Execution, lease: LeaseId, slot: SlotId) -> Admission {
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

    /// Gives back the slot of a try whose claim was not applied.
    pub(crate) async fn release_unused_slot(&self, execution: &Execution, slot: Option<SlotId>) {
        let Some(slot) = slot else { return };
        self.give_back_estimates(execution, slot).await;
        self.free_keys(execution, execution.concurrency(), slot).await;
        if let Err(error) = self.release_slots(execution, &[slot]).await
            && let Some(suppressed) = self.transactor.may_log("an unused slot could not be given back")
        {
            tracing::warn!(%error, suppressed, "an unused slot could not be given back; it is freed as an orphan");
        }
    }

    async fn release_slots(&self, execution: &Execution, slots: &[SlotId]) -> Result<()> {
        let Some(quota) = &execution.quota else { return Ok(()) };
        let slots = slots.iter().map(|slot| Slot::key_of(&execution.id, slot)).collect();
        self.free_slots(&execution.namespace, quota, slots).await
    }
}

/// The refusal of a budget, if it admits no start now.
pub(crate) fn budget_refusal(name: &str, budget: Option<&Budget>, estimate: Option<&Amounts>) -> Option<Refusal> {
    let gate = Gate::Budget(name).to_string();
    let Some(budget) = budget else {
        let missing = Limit::Dimension("missing".into());
        return Some(Refusal::waits(gate, missing, format!("the budget {name} does not exist"), None));
    };
    let Some(refusal) = budget.admit().err().filter(|_| !planted(Bug::BudgetNotChecked)) else {
        // Sums that overflow are refused later, when the estimate is held.
        let refusal = budget.refuses_estimate(estimate?).ok()??;
        return Some(estimate_refusal(&refusal, budget.hard_action()));
    };
    let (dimension, current, limit) = (&refusal.dimension, refusal.current, refusal.limit);
    let detail = format!("budget {name}: {dimension} {current}/{limit}");
    let limit = Limit::Dimension(refusal.dimension.clone());
    let (until, action) = (refusal.next_reset_at, budget.hard_action());
    Some(Refusal { gate, limit, detail, until, action, alone: false, requested: 0 })
}
