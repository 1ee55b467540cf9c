//! Parking: executions that a closed gate keeps out, and that an opened gate lets in.
//!
//! A refusal parks the one candidate that was examined and closes the gate in this process; the rest stay queued. The
//! gate's document lists the partitions in which executions are parked. The commit that opens the gate takes that list
//! away. Its engine lets executions in there, and writes back the partitions of those that it had to leave. An
//! execution that is parked in between adds its partition to the list again, so no wake-up is lost. After a crash in the
//! middle the sweep checks every gate that the indexes of parked executions name, and a recheck within 30 s covers the
//! rest.

use std::collections::BTreeSet;

use ff_core::budget::{Amounts, Budget, HardAction};
use ff_core::execution::{AskBudget, Execution};
use ff_core::gate::Gate;
use ff_core::quota::QuotaPolicy;
use ff_core::{Code, ExecutionId, IndexName, Key, Partition, Result, SuspensionId, index, limits};

use super::Scheduler;
use super::admission::{Limit, Refusal, place_of};
use super::concurrency::NoteParkedOnKey;
use crate::caller::Caller;
use crate::env;
use crate::groups::Name;
use crate::opening::{GateDocument, Opened};
use crate::transaction::{Command, Tx};

/// If more executions wait for a gate than it can let in, the gate is checked once more after this time: those that
/// were let in may be in a lane that no worker claims from, or be cancelled, and leave their room to others.
const RECHECK_GATE_MS: i64 = 500;
/// A check that waits for longer looks after this time whether the engine closes.
const NAP_MS: i64 = 1_000;
/// Each time that the room is still unused, twice as many are let in, up to this factor.
const LET_IN_TIMES_MAX: u32 = 16;
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
        let opened = self.note_refused(execution, &refusal).await?;
        self.release_parked(&execution.namespace, gate, opened).await;
        Ok(())
    }

    async fn note_refused(&self, execution: &Execution, refusal: &Refusal) -> Result<Opened> {
        let (namespace, gate, partition) = (&execution.namespace, refusal.gate(), execution.id.partition());
        // An execution that asks waits for an answer, and not for room.
        let estimate = refusal.estimate().filter(|_| refusal.action != HardAction::Ask);
        let estimate = estimate.unwrap_or_default();
        self.note(namespace, gate, Note { estimate, ..Note::of(vec![partition]) }).await
    }

    /// Opens the question of a budget, and records the partition in which its answer is waited for, before the
    /// execution waits there.
    async fn ask_people(&self, execution: &Execution, refusal: &Refusal) -> Result<()> {
        let (home, key) = place_of(&self.transactor, &execution.namespace, refusal.gate());
        let Limit::Dimension(dimension) = &refusal.limit else { return Ok(()) };
        let verb = AskPeople { key, dimension, requested: refusal.requested, execution: execution.id };
        self.transactor.transact_in_turn(home, verb.key.clone(), &verb).await
    }

    /// Records that an execution is parked in a partition, and checks the gate once more.
    pub(crate) async fn note_parked(&self, namespace: &str, gate: Gate<'_>, partition: Partition) -> Result<Opened> {
        self.note(namespace, gate, Note::of(vec![partition])).await
    }

    /// Writes a note into the document of its gate.
    async fn note(&self, namespace: &str, gate: Gate<'_>, note: Note) -> Result<Opened> {
        let (home, document) = place_of(&self.transactor, namespace, gate);
        let index = index::blocked(namespace, &gate.to_string());
        match gate {
            Gate::Key { limit, key } => {
                let verb = NoteParkedOnKey { namespace, limit, key, places: note.places, left_at: note.left_at };
                self.transactor.transact_in_turn(home, document, &verb).await
            }
            Gate::Budget(_) => {
                let verb = NoteParked::<Budget>::new(document.clone(), index, note);
                self.transactor.transact_in_turn(home, document, &verb).await
            }
            Gate::Quota(_) => {
                let verb = NoteParked::<QuotaPolicy>::new(document.clone(), index, note);
                self.transactor.transact_in_turn(home, document, &verb).await
            }
        }
    }

    /// Lets in executions that wait for a gate, best first and no more than can run. The partitions of the others are
    /// recorded again.
    ///
    /// Executions queued behind the gate may have a lower priority than parked ones, so the gate opens in memory only
    /// when those are back in their queues. But it does not stay closed for long because of a partition that does not
    /// answer.
    pub(crate) async fn release_parked(&self, namespace: &str, gate: Gate<'_>, opened: Opened) {
        if opened.places.is_empty() {
            self.look_when_open(namespace, gate, &opened);
            return;
        }
        let text = gate.to_string();
        self.open_gates_soon(namespace, &text);
        let count = usize::try_from(opened.count).unwrap_or(usize::MAX);
        self.unpark(namespace, gate, &text, opened).await;
        self.ready().open_gates(namespace, &text, count);
    }

    fn open_gates_soon(&self, namespace: &str, gate: &str) {
        let at = self.transactor.env().now_ms() + UNPARK_PATIENCE_MS;
        self.ready().open_gates_at(namespace, gate, at);
    }

    /// Checks a gate once more for executions that it had to leave, until it has no room or nothing waits. Only one
    /// such check is under way for each gate.
    pub(super) fn look_again_soon(&self, namespace: &str, gate: Gate<'_>, places: &[Partition]) {
        let name = (namespace.to_owned(), gate.to_string());
        if !self.looked_at().insert(name.clone()) {
            return;
        }
        let (scheduler, mut places) = (self.clone(), places.to_vec());
        self.transactor.spawn_short(async move {
            for round in 0.. {
                if !scheduler.pause_unless_closing(RECHECK_GATE_MS).await {
                    break;
                }
                let Some(gate) = Gate::parse(&name.1) else { break };
                let opened = scheduler.reopen(&name.0, gate, std::mem::take(&mut places)).await;
                let Ok(opened) = opened.map(|opened| opened.times(1 << round.min(LET_IN_TIMES_MAX))) else { break };
                if opened.places.is_empty() {
                    scheduler.look_when_open(&name.0, gate, &opened);
                    break;
                }
                scheduler.release_parked(&name.0, gate, opened).await;
            }
            scheduler.looked_at().remove(&name);
        });
    }

    /// Checks a gate when time has opened it: a slot came back while the window of its quota was full, so that nothing else
    /// wakes those that wait for the slot. What opens later than they look for themselves needs no check. Only one such
    /// check waits for each gate.
    pub(super) fn look_when_open(&self, namespace: &str, gate: Gate<'_>, opened: &Opened) {
        let opens_in_ms = opened.opens_in_ms.filter(|ms| *ms < limits::BLOCKED_RECHECK_MS);
        let name = (namespace.to_owned(), gate.to_string());
        let Some(opens_in_ms) = opens_in_ms.filter(|_| self.opening().insert(name.clone())) else { return };
        let scheduler = self.clone();
        self.transactor.spawn_short(async move {
            let goes_on = scheduler.pause_unless_closing(opens_in_ms).await;
            scheduler.opening().remove(&name);
            let Some(gate) = Gate::parse(&name.1).filter(|_| goes_on) else { return };
            if let Err(error) = scheduler.look_at_gate(&name.0, gate, Vec::new()).await
                && let Some(suppressed) = scheduler.transactor.may_log("an opened gate could not be looked at")
            {
                tracing::warn!(%gate, %error, suppressed, "an opened gate could not be looked at; looking in 30 s");
            }
        });
    }

    /// Sleeps in short naps, because a task that sleeps keeps the store of a closed engine open. Returns whether the engine
    /// goes on.
    async fn pause_unless_closing(&self, mut ms: i64) -> bool {
        while ms > 0 && self.transactor.refuse_if_closing().is_ok() {
            self.transactor.env().sleep(ms.min(NAP_MS)).await;
            ms -= NAP_MS;
        }
        self.transactor.refuse_if_closing().is_ok()
    }

    fn opening(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.memory.opening.lock().expect("no holder of this lock panics")
    }

    fn looked_at(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        self.memory.looked_at.lock().expect("no holder of this lock panics")
    }

    /// Lets in what waits for a gate in these partitions and in those that it remembers, as far as there is room.
    pub(crate) async fn look_at_gate(&self, namespace: &str, gate: Gate<'_>, places: Vec<Partition>) -> Result<()> {
        let opened = self.reopen(namespace, gate, places).await?;
        self.release_parked(namespace, gate, opened).await;
        Ok(())
    }

    /// The partition of a gate's document.
    pub(crate) fn home_of(&self, namespace: &str, gate: Gate<'_>) -> Partition {
        place_of(&self.transactor, namespace, gate).0
    }

    /// Takes the recorded partitions of a gate, if the gate has room for executions that it left.
    async fn reopen(&self, namespace: &str, gate: Gate<'_>, places: Vec<Partition>) -> Result<Opened> {
        self.note(namespace, gate, Note { again: true, ..Note::of(places) }).await
    }

    /// Records the partitions in which executions are left, unless more of them can run by now.
    pub(super) async fn remember_left(
        &self,
        namespace: &str,
        gate: Gate<'_>,
        places: Vec<Partition>,
        (given_back, awaited): (u64, &Amounts),
    ) -> Opened {
        let note = Note { left_at: Some(given_back), awaited: awaited.clone(), ..Note::of(places) };
        self.note(namespace, gate, note).await.unwrap_or_else(|error| {
            if let Some(suppressed) = self.transactor.may_log("parked work was forgotten") {
                tracing::warn!(%gate, %error, suppressed, "parked work was forgotten; it is looked at again in 30 s");
            }
            Opened::default()
        })
    }

    /// Another scheduler opened a gate.
    pub(crate) fn gate_opened(&self, index: &IndexName) {
        if let Some((namespace, gate)) = gate_of(index) {
            // The hint does not say how many the gate admits, so one is tried first.
            self.ready().open_gates(namespace, gate, 1);
        }
    }

    /// This scheduler opened a gate, and is about to let in the executions that are parked there.
    pub(crate) fn gate_opens(&self, index: &IndexName) {
        if let Some((namespace, gate)) = gate_of(index) {
            self.open_gates_soon(namespace, gate);
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
struct Note {
    /// The partitions in which they are parked.
    places: Vec<Partition>,
    /// The count of slots given back at which as many executions as the open gate admitted were woken. The others wait
    /// for the next slot.
    left_at: Option<u64>,
    /// The part of an estimate that had no room when the gate refused.
    estimate: Amounts,
    /// The smallest estimates of the executions that are left, as far as they are known.
    awaited: Amounts,
    /// The gate has not changed; it is checked only because executions wait.
    again: bool,
}

impl Note {
    fn of(places: Vec<Partition>) -> Self {
        Self { places, left_at: None, estimate: Amounts::new(), awaited: Amounts::new(), again: false }
    }
}

/// Records a note in the document of a budget or a quota. If the gate is open by now, the recorded partitions are
/// returned instead, and forgotten.
struct NoteParked<G> {
    key: Key,
    index: IndexName,
    note: Note,
    gate: std::marker::PhantomData<fn() -> G>,
}

impl<G> NoteParked<G> {
    fn new(key: Key, index: IndexName, note: Note) -> Self {
        Self { key, index, note, gate: std::marker::PhantomData }
    }
}

impl<G: GateDocument + Send> Command for NoteParked<G> {
    type Outcome = Opened;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Opened> {
        // A gate without a document has no list of partitions; its creation looks in all of them.
        let Some(loaded) = tx.load::<G>(self.key.clone()).await? else { return Ok(Opened::default()) };
        let (note, mut gate) = (&self.note, loaded.document);
        let mut news = !note.awaited.is_empty();
        for place in &note.places {
            news |= gate.parked().add(place.number);
        }
        gate.await_all(&note.awaited);
        // A gate with room for others may have none for this estimate, and waking those others would gain nothing.
        let awaits = gate.await_room(&note.estimate);
        news |= awaits;
        let no_use = awaits || (note.again && !gate.is_worth_waking());
        let room = if no_use { 0 } else { gate.room(tx.now) };
        // A slot that was given back while the list was taken away found no partition to wake.
        let woken_for = note.left_at == Some(gate.given_back());
        if !woken_for && room > 0 {
            let opened = Opened::take(&mut gate, room, tx.transactor.partitions());
            tx.hint(crate::hint::Item::Gate(self.index.clone()));
            tx.save(&gate);
            return Ok(opened);
        }
        if news {
            tx.save(&gate);
        }
        Ok(Opened::later(&mut gate, tx.now))
    }
}
