//! Parking: executions that a closed gate keeps out, and that an opened gate lets in.
//!
//! A refusal parks the one candidate that was examined and closes the gate in this process; the rest stay queued. The
//! gate's document lists the partitions in which executions are parked. Once an execution is parked, its partition is listed if
//! it is missing there, and the gate is looked at once more, because it may have opened in between (`letting_in`). A
//! recheck within 30 s is the last net.

use ff_core::budget::{Amounts, Budget, HardAction};
use ff_core::execution::{AskBudget, Execution};
use ff_core::gate::Gate;
use ff_core::{Code, ExecutionId, IndexName, Key, Partition, Result, SuspensionId, limits};

use super::Scheduler;
use super::admission::{Limit, Refusal};
use crate::caller::Caller;
use crate::env;
use crate::opening::{GateDocument, place_of};
use crate::transaction::{Command, Tx};

/// A gate that has opened stays closed in this process for at most this long, while parked executions are put back into
/// their queues.
const UNPARK_PATIENCE_MS: i64 = 50;

impl Scheduler {
    /// Takes a refused execution out of its queue and closes its gate for a while.
    pub(crate) async fn park(&self, execution: &Execution, refusal: Refusal) -> Result<()> {
        let partition = execution.id.partition();
        let recheck = if refusal.alone { limits::BLOCKED_ALONE_RECHECK_MS } else { limits::BLOCKED_RECHECK_MS };
        let latest = self.transactor.now_in(partition) + recheck;
        let gate = refusal.gate();
        let (home, _) = place_of(&self.transactor, &execution.namespace, gate);
        let opens_at = refusal.until.map(|at| self.transactor.instant_in(at, home, partition));
        let until = opens_at.unwrap_or(latest);
        if refusal.action == HardAction::Ask {
            self.ask_people(execution, &refusal).await?;
        }
        let suspension = SuspensionId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        let asked = AskBudget { suspension, gate: &refusal.gate, detail: &refusal.detail };
        let parted = self
            .transactor
            .change(&Caller::system(), &execution.id, None, |execution, moment| match refusal.action {
                HardAction::Ask => execution.ask_budget_at_admission(&asked, moment.now, moment.effects),
                HardAction::Block | HardAction::Unknown(_) => {
                    execution.park(&refusal.gate, &refusal.detail, until, moment.now)
                }
                HardAction::Fail => {
                    execution.fail_at_admission(&refusal.detail, "budget_exhausted", moment.now, moment.effects)
                }
                HardAction::Suspend => execution.pause_by_policy(&refusal.gate, &refusal.detail, until, moment.now),
            })
            .await;
        match parted {
            // Another claim or caller took, changed or removed the execution, so there is nothing to park.
            Err(error) if matches!(error.code, Code::ExecutionNotEligible | Code::ExecutionNotFound) => return Ok(()),
            other => other?,
        }
        tracing::info!(
            execution = %execution.id,
            gate = refusal.gate,
            why = refusal.detail,
            action = %refusal.action,
            until,
            "parked at admission"
        );
        if refusal.action == HardAction::Fail {
            return Ok(());
        }
        let closed_until = if let Gate::Budget(_) = gate { until.min(latest) } else { until };
        let closed_until = self.transactor.instant_in(closed_until, partition, Partition::SYSTEM);
        // The gate is not closed for executions that ask, because each of them is parked and shown to wait for the
        // answer; nor for those that a child by tag refuses.
        if refusal.action != HardAction::Ask && !refusal.alone {
            self.close_gate(&execution.namespace, &execution.gate(), closed_until);
        }
        // An execution that asks waits for an answer, and not for room.
        let estimate = refusal.estimate().filter(|_| refusal.action != HardAction::Ask).unwrap_or_default();
        self.note_parked(&execution.namespace, gate, Note { places: vec![partition], estimate }).await
    }

    /// Opens the question of a budget, and records the partition in which its answer is waited for, before the
    /// execution waits there.
    async fn ask_people(&self, execution: &Execution, refusal: &Refusal) -> Result<()> {
        let (home, key) = place_of(&self.transactor, &execution.namespace, refusal.gate());
        let Limit::Dimension(dimension) = &refusal.limit else { return Ok(()) };
        let verb = AskPeople { key, dimension, requested: refusal.requested, execution: execution.id };
        self.transactor.transact_in_turn(home, verb.key.clone(), &verb).await
    }

    /// Lists the partitions in which executions are parked, and looks at the gate if it has room by now.
    pub(crate) async fn note_parked(&self, namespace: &str, gate: Gate<'_>, note: Note) -> Result<()> {
        if self.list_parked(namespace, gate, note).await? {
            self.wake_gate(namespace, &gate.to_string());
        }
        Ok(())
    }

    /// Lists the partitions in which executions are parked. Returns whether a look at the gate may let them in.
    pub(super) async fn list_parked(&self, namespace: &str, gate: Gate<'_>, note: Note) -> Result<bool> {
        let (home, document) = place_of(&self.transactor, namespace, gate);
        self.transactor.transact_in_turn(home, document, &ListParked { namespace, gate, note }).await
    }

    /// The partition of a gate's document.
    pub(crate) fn home_of(&self, namespace: &str, gate: Gate<'_>) -> Partition {
        place_of(&self.transactor, namespace, gate).0
    }

    /// Another scheduler opened a gate.
    pub(crate) fn gate_opened(&self, index: &IndexName) {
        if let Some((namespace, gate)) = gate_of(index) {
            // The hint does not say how many the gate admits, so one is tried first.
            self.ready().open_gates(namespace, gate, 1, self.transactor.env().now_ms());
        }
    }

    /// This scheduler opened a gate, and lets in the executions that are parked there before those that are queued behind
    /// the gate.
    pub(crate) fn gate_opens(&self, index: &IndexName) {
        if let Some((namespace, gate)) = gate_of(index) {
            let at = self.transactor.env().now_ms() + UNPARK_PATIENCE_MS;
            self.ready().open_gates_at(namespace, gate, at);
            self.wake_gate(namespace, gate);
        }
    }
}

/// Namespace and name of the gate of a blocked index.
fn gate_of(index: &IndexName) -> Option<(&str, &str)> {
    let [namespace, gate] = <[&[u8]; 2]>::try_from(index.parts()?).ok()?;
    Some((std::str::from_utf8(namespace).ok()?, std::str::from_utf8(gate).ok()?))
}

struct AskPeople<'a> {
    key: Key,
    dimension: &'a str,
    /// The part of an estimate that has no room; 0 where the budget is used up.
    requested: i64,
    execution: ExecutionId,
}

impl Command for AskPeople<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Budget>(self.key.clone()).await? else { return Ok(()) };
        let mut budget = loaded.document;
        let before = budget.clone();
        let too_little = budget.left(self.dimension).is_some_and(|left| left < self.requested);
        if budget.asks_people() && (too_little || budget.admit().is_err()) {
            budget.ask(self.dimension, self.requested, self.execution, tx.now);
            budget.parked_in.add(self.execution.partition().number);
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok(())
    }
}

/// A note about executions that are parked at a gate.
pub(crate) struct Note {
    /// The partitions in which they are parked.
    pub(crate) places: Vec<Partition>,
    /// The part of an estimate that had no room when the gate refused.
    pub(crate) estimate: Amounts,
}

impl Note {
    pub(crate) fn of(places: Vec<Partition>) -> Self {
        Self { places, estimate: Amounts::new() }
    }
}

/// Lists partitions in the document of a gate. The answer says whether the gate is open by now, or opens soon.
struct ListParked<'a> {
    namespace: &'a str,
    gate: Gate<'a>,
    note: Note,
}

impl Command for ListParked<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(mut document) = GateDocument::load(tx, self.namespace, self.gate).await? else { return Ok(false) };
        let before = document.view(tx.now, tx.transactor.partitions());
        for place in &self.note.places {
            document.parked().add(place.number);
        }
        // A gate with room for others may have none for this estimate, and waking those others would gain nothing.
        let awaits = document.await_room(&self.note.estimate);
        let view = document.view(tx.now, tx.transactor.partitions());
        let opens_soon = view.opens_in_ms.is_some_and(|ms| ms < limits::BLOCKED_RECHECK_MS);
        let may_let_in = opens_soon || (view.room > 0 && !awaits);
        if view != before {
            document.save(tx);
        }
        Ok(may_let_in)
    }
}
