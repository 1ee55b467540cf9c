//! Executions that a closed gate keeps out, and that an opened one lets in.
//!
//! A refusal parks the one candidate that was examined and closes the gate in this process; the rest stay queued. The
//! gate's document remembers in which partitions something is parked. The commit that opens the gate takes that memory;
//! its engine looks there, and writes down again what it had to leave: work that is parked in between finds itself
//! forgotten and says so anew, so no wake-up is lost. A recheck within 30 s covers a crash in the middle.

use ff_core::budget::{Budget, HardAction};
use ff_core::event::Effects;
use ff_core::execution::{AskBudget, Execution};
use ff_core::gate::Parked;
use ff_core::quota::QuotaPolicy;
use ff_core::{Code, ExecutionId, IndexName, Key, Partition, PartitionConfig, Result, SuspensionId, index, limits};
use ff_store::{Answer, Query, Scan};
use serde::{Deserialize, Serialize};

use super::Scheduler;
use super::admission::{Limit, Refusal, place_of};
use crate::caller::Caller;
use crate::env;
use crate::transaction::{Command, Tx};

/// Executions unparked by one commit.
const UNPARK_CHUNK: usize = 64;
/// A gate that has opened stays closed this long for what is queued behind it, while what is parked is put back.
const UNPARK_PATIENCE_MS: i64 = 50;

/// A gate that has opened: where something waits for it, and how much of it can run.
///
/// Kept with the answer to the command that opened it, so that a repeat of the command lets in what the first one would
/// have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    #[serde(with = "places")]
    pub(crate) places: Vec<Partition>,
    pub(crate) count: u64,
    /// How many slots the gate had taken back by then.
    pub(crate) given_back: u64,
}

/// Executions wait in flow partitions only, so that a number is a place.
mod places {
    use ff_core::Partition;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(places: &[Partition], serializer: S) -> Result<S::Ok, S::Error> {
        places.iter().map(|place| place.number).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Partition>, D::Error> {
        let numbers = Vec::<u16>::deserialize(deserializer)?;
        Ok(numbers.into_iter().map(Partition::flow).collect())
    }
}

impl Opened {
    /// Takes over the memory of a gate that admits this many.
    pub(crate) fn take<G: Gate>(gate: &mut G, count: u64, config: &PartitionConfig) -> Self {
        let given_back = gate.given_back();
        let parked = gate.parked();
        if count == 0 || parked.is_empty() {
            return Self::default();
        }
        let places = parked.places(config);
        parked.clear();
        Self { places, count, given_back }
    }
}

impl Scheduler {
    /// Takes a refused execution out of its queue and closes its gate for a while.
    pub(crate) async fn park(&self, execution: &Execution, refusal: Refusal) -> Result<()> {
        let partition = execution.id.partition();
        let latest = self.transactor.now_in(partition) + limits::BLOCKED_RECHECK_MS;
        let opens_at = place_of(&self.transactor, &execution.namespace, &refusal.gate)
            .zip(refusal.until)
            .map(|((home, _), at)| self.transactor.instant_in(at, home, partition));
        let until = opens_at.unwrap_or(latest);
        if refusal.action == HardAction::Ask {
            self.ask_people(execution, &refusal).await?;
        }
        let suspension = SuspensionId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        let asked = AskBudget { suspension, gate: &refusal.gate, detail: &refusal.detail };
        let parted = self
            .transactor
            .change(&Caller::system(), &execution.id, None, |execution, moment| match refusal.action {
                HardAction::Ask => execution.ask_budget_at_admission(&asked, moment.now),
                HardAction::Block => execution.park(&refusal.gate, &refusal.detail, until, moment.now),
                HardAction::Fail => {
                    execution.fail_at_admission(&refusal.detail, "budget_exhausted", moment.now, moment.effects)
                }
                HardAction::Suspend => execution.pause_by_policy(&refusal.gate, &refusal.detail, until, moment.now),
            })
            .await;
        match parted {
            // Another claim or caller took, changed or removed it: it is not ours to park.
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
        let closed_until = if refusal.gate.starts_with("b:") { until.min(latest) } else { until };
        let closed_until = self.transactor.instant_in(closed_until, partition, Partition::SYSTEM);
        // Executions that ask wait one by one: each is shown to wait for the answer.
        if refusal.action != HardAction::Ask {
            self.close_gate(&execution.namespace, &execution.gate(), closed_until);
        }
        let opened = self.note_parked(&execution.namespace, &refusal.gate, execution.id.partition()).await?;
        self.release_parked(&execution.namespace, &refusal.gate, opened).await;
        Ok(())
    }

    /// Opens the question of a budget, and remembers where its answer is waited for before anything waits.
    async fn ask_people(&self, execution: &Execution, refusal: &Refusal) -> Result<()> {
        let Some((home, key)) = place_of(&self.transactor, &execution.namespace, &refusal.gate) else { return Ok(()) };
        let Limit::Dimension(dimension) = &refusal.limit else { return Ok(()) };
        let _turn = self.transactor.locks().take(home, key.clone()).await;
        let verb = AskPeople { key, dimension, execution: execution.id };
        self.transactor.transact(home, self.transactor.fresh_command(), &verb).await
    }

    /// Writes down that something is parked in a partition, and looks at the gate once more.
    pub(crate) async fn note_parked(&self, namespace: &str, gate: &str, partition: Partition) -> Result<Opened> {
        if gate.starts_with("c:") {
            return self.note_parked_on_key(namespace, gate, vec![partition], None).await;
        }
        let Some((home, key)) = place_of(&self.transactor, namespace, gate) else { return Ok(Opened::default()) };
        let _turn = self.transactor.locks().take(home, key.clone()).await;
        let index = index::blocked(namespace, gate);
        let command = self.transactor.fresh_command();
        if gate.starts_with("b:") {
            self.transactor.transact(home, command, &NoteParked::<Budget>::new(key, index, vec![partition])).await
        } else {
            self.transactor.transact(home, command, &NoteParked::<QuotaPolicy>::new(key, index, vec![partition])).await
        }
    }

    /// Lets in executions that wait for a gate, best first and no more than can run. The places of the others are
    /// written down again.
    ///
    /// Executions queued behind the gate may be worse than parked ones, so the gate opens when those are back in their
    /// queue; but it does not stay closed for long because of a partition that does not answer.
    pub(crate) async fn release_parked(&self, namespace: &str, gate: &str, opened: Opened) {
        if opened.places.is_empty() {
            return;
        }
        self.open_gates_soon(namespace, gate);
        let count = usize::try_from(opened.count).unwrap_or(usize::MAX);
        self.unpark(namespace, gate, opened).await;
        self.ready().open_gates(namespace, gate, count);
    }

    fn open_gates_soon(&self, namespace: &str, gate: &str) {
        let at = self.transactor.env().now_ms() + UNPARK_PATIENCE_MS;
        self.ready().open_gates_at(namespace, gate, at);
    }

    async fn unpark(&self, namespace: &str, gate: &str, opened: Opened) {
        let index = index::blocked(namespace, gate);
        let Opened { mut places, count: mut left, mut given_back } = opened;
        while left > 0 && !places.is_empty() {
            let limit = self.transactor.chunk(usize::try_from(left).unwrap_or(UNPARK_CHUNK).min(UNPARK_CHUNK));
            let reads = places.iter().map(|place| {
                let scan = Scan::first(index.clone(), limit + 1);
                async move { (*place, self.transactor.read(*place, vec![Query::Scan(scan)]).await) }
            });
            let mut waiting = Vec::new();
            let mut unread = Vec::new();
            for (place, answer) in futures_util::future::join_all(reads).await {
                match answer.map(|answers| answers.into_only(Answer::into_scan)) {
                    Ok(Ok(page)) => waiting.extend(page.entries.into_iter().map(|e| (e.score, e.member, place))),
                    _ => unread.push(place),
                }
            }
            waiting.sort();
            let chosen: Vec<_> = waiting.iter().take(limit).cloned().collect();
            let mut unparked = Unparked::default();
            for place in &places {
                let keys: Vec<Key> =
                    chosen.iter().filter(|(_, _, of)| of == place).map(|(_, key, _)| key.clone()).collect();
                if keys.is_empty() {
                    continue;
                }
                let verb = Unpark { gate, keys };
                match self.transactor.transact(*place, self.transactor.fresh_command(), &verb).await {
                    Ok(here) => unparked.add(&here),
                    Err(error) => {
                        if let Some(suppressed) = self.transactor.may_log("parked work could not be woken") {
                            tracing::warn!(%place, %error, suppressed, "parked work could not be woken; looking in 30 s");
                        }
                        unread.push(*place);
                    }
                }
            }
            // An execution that another hold keeps back as well uses no room. A round that moved nothing counts in
            // full, so that entries without documents cannot keep this going.
            left -= if unparked.all == 0 { chosen.len() as u64 } else { unparked.eligible };
            places.retain(|place| {
                !unread.contains(place) && waiting.iter().skip(chosen.len()).any(|(_, _, of)| of == place)
            });
            if !unread.is_empty() || (left == 0 && !places.is_empty()) {
                let left_over = places.iter().filter(|_| left == 0);
                let left_over = unread.iter().chain(left_over).copied().collect();
                let mut again = self.remember_left(namespace, gate, left_over, given_back).await;
                // A partition that does not answer is not asked again and again: what waits there is woken by the next slot
                // that is given back, or looks for itself within 30 s.
                let silent = again.places.extract_if(.., |place| unread.contains(place)).collect::<Vec<_>>();
                if !silent.is_empty() {
                    self.remember_left(namespace, gate, silent, again.given_back).await;
                }
                if !again.places.is_empty() {
                    Opened { places, count: left, given_back } = again;
                }
            }
        }
    }

    /// Writes down where something is left, unless more of it can run by now.
    async fn remember_left(&self, namespace: &str, gate: &str, places: Vec<Partition>, given_back: u64) -> Opened {
        let Some((home, key)) = place_of(&self.transactor, namespace, gate) else { return Opened::default() };
        let index = index::blocked(namespace, gate);
        let command = self.transactor.fresh_command();
        let noted = if gate.starts_with("c:") {
            self.note_parked_on_key(namespace, gate, places, Some(given_back)).await
        } else if gate.starts_with("b:") {
            self.transactor.transact(home, command, &NoteParked::<Budget>::left(key, index, places, given_back)).await
        } else {
            self.transactor
                .transact(home, command, &NoteParked::<QuotaPolicy>::left(key, index, places, given_back))
                .await
        };
        noted.unwrap_or_else(|error| {
            if let Some(suppressed) = self.transactor.may_log("parked work was forgotten") {
                tracing::warn!(gate, %error, suppressed, "parked work was forgotten; it is looked at again in 30 s");
            }
            Opened::default()
        })
    }

    /// Another scheduler opened a gate.
    pub(crate) fn gate_opened(&self, index: &IndexName) {
        if let Some((namespace, gate)) = gate_of(index) {
            // How many it admits is not said: one is tried first.
            self.ready().open_gates(namespace, gate, 1);
        }
    }

    /// This scheduler opened a gate, and is about to let in what is parked there.
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

/// A document that can refuse work and remembers where it is parked.
pub(crate) trait Gate: ff_core::Indexed {
    /// Where something is parked.
    fn parked(&mut self) -> &mut Parked;
    /// How many can run now.
    fn room(&self, now: i64) -> u64;
    /// How many slots were given back so far.
    fn given_back(&self) -> u64;
}

impl Gate for Budget {
    fn parked(&mut self) -> &mut Parked {
        &mut self.parked_in
    }
    fn room(&self, _: i64) -> u64 {
        self.release_count()
    }
    fn given_back(&self) -> u64 {
        0
    }
}

impl Gate for QuotaPolicy {
    fn parked(&mut self) -> &mut Parked {
        &mut self.parked_in
    }
    fn room(&self, now: i64) -> u64 {
        self.release_count(now)
    }
    fn given_back(&self) -> u64 {
        self.given_back
    }
}

struct AskPeople<'a> {
    key: Key,
    dimension: &'a str,
    execution: ExecutionId,
}

impl Command for AskPeople<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Budget>(self.key.clone()).await? else { return Ok(()) };
        let mut budget = loaded.document;
        let before = budget.clone();
        if budget.asks_people() && budget.admit().is_err() {
            budget.ask(self.dimension, 0, self.execution, tx.now);
            budget.parked_in.add(self.execution.partition().number);
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok(())
    }
}

/// Adds partitions to a gate's memory. If the gate is open by now, the memory is taken instead.
struct NoteParked<G> {
    key: Key,
    index: IndexName,
    places: Vec<Partition>,
    /// The gate is open, and as many as it admitted were woken when it had taken back so many slots. The others wait
    /// for the next one.
    left_at: Option<u64>,
    gate: std::marker::PhantomData<fn() -> G>,
}

impl<G> NoteParked<G> {
    fn new(key: Key, index: IndexName, places: Vec<Partition>) -> Self {
        Self { key, index, places, left_at: None, gate: std::marker::PhantomData }
    }

    fn left(key: Key, index: IndexName, places: Vec<Partition>, given_back: u64) -> Self {
        Self { left_at: Some(given_back), ..Self::new(key, index, places) }
    }
}

impl<G: Gate + Send> Command for NoteParked<G> {
    type Outcome = Opened;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Opened> {
        // A gate that does not exist has no memory; its creation looks everywhere.
        let Some(loaded) = tx.load::<G>(self.key.clone()).await? else { return Ok(Opened::default()) };
        let mut gate = loaded.document;
        let mut news = false;
        for place in &self.places {
            news |= gate.parked().add(place.number);
        }
        let room = gate.room(tx.now);
        // A slot that came back while the memory was taken found no place to wake.
        let woken_for = self.left_at == Some(gate.given_back());
        if !woken_for && room > 0 {
            let opened = Opened::take(&mut gate, room, tx.transactor.partitions());
            tx.hint(crate::hint::Item::Gate(self.index.clone()));
            tx.save(&gate);
            return Ok(opened);
        }
        if news {
            tx.save(&gate);
        }
        Ok(Opened::default())
    }
}

/// Puts parked executions back into their queues.
struct Unpark<'a> {
    gate: &'a str,
    keys: Vec<Key>,
}

/// How many were unparked, and how many of them nothing else holds.
#[derive(Debug, Clone, Copy, Default)]
struct Unparked {
    all: u64,
    eligible: u64,
}

impl Unparked {
    fn add(&mut self, other: &Self) {
        self.all += other.all;
        self.eligible += other.eligible;
    }
}

impl Command for Unpark<'_> {
    type Outcome = Unparked;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Unparked> {
        let mut unparked = Unparked::default();
        for loaded in tx.load_many::<Execution>(self.keys.clone()).await?.into_iter().flatten() {
            let mut execution = loaded.document;
            if execution.parked_on == self.gate {
                execution.unpark(tx.now);
                unparked.all += 1;
                unparked.eligible += u64::from(execution.is_eligible());
                tx.save_execution(&execution, Effects::default());
            }
        }
        Ok(unparked)
    }
}
