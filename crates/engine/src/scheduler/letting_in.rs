//! Letting in executions that wait for a gate, for as long as the gate has room.
//!
//! The document of a gate lists the partitions in which executions wait, and whatever opens the gate leaves the list as it is.
//! A commit that may have made room only hints so, and the engine that made it looks at the gate; so does the
//! engine that parks an execution while there is room, and the sweep after a crash. A look reads the document, lets in as many
//! as have room, and takes partitions in which nothing waits any more off the list. Looks go on until nothing waits
//! or there is no room. So it does not matter how many wake-ups come, or which one is lost while looks go on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ff_core::budget::Amounts;
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::{Key, Partition, PublicState, Result, limits};
use tokio::sync::{Notify, oneshot};

use super::Scheduler;
use super::parking::Note;
use super::unparking::LetIn;
use crate::env;
use crate::groups::Name;
use crate::opening::{GateDocument, GateView, place_of};
use crate::transaction::{Command, Tx};

/// While executions wait at a gate that has room, the gate is looked at again after this time. Those that were let in may be
/// in a lane that no worker claims from, or be cancelled, and leave their room to others: it is kept for them for
/// this long.
const RECHECK_GATE_MS: i64 = 500;
/// Each time that the room is still unused, twice as many are let in, up to this power of two.
const DOUBLINGS_MAX: u32 = 16;

/// Executions for which gates keep room. Where more are let in, gates are so wide that it does not matter.
const KEPT_MAX: usize = 4_096;
/// Executions with kept room that one look reads. It matters to narrow gates, which keep room for few.
const KEPT_CHECKED_MAX: usize = 4;

/// The gates that this engine looks at.
#[derive(Default)]
pub(super) struct GateLooks(Mutex<Looks>);

#[derive(Default)]
struct Looks {
    gates: BTreeMap<Name, Looking>,
    /// The executions that were let in and that no claim of this engine has tried since.
    let_in: BTreeMap<Key, Kept>,
}

/// The room that a gate keeps for an execution.
struct Kept {
    gate: Name,
    /// The partition of the execution.
    place: Partition,
    until: i64,
}

/// A gate that is looked at.
#[derive(Default)]
struct Looking {
    /// The gate may have changed since the last look began.
    woken: bool,
    wakes: Arc<Notify>,
    /// The callers that wait for the end of the next look.
    callers: Vec<oneshot::Sender<()>>,
    /// The last look let in nothing because all room was kept for others.
    is_all_kept: bool,
}

impl Looking {
    fn wake(&mut self) {
        self.woken = true;
        self.wakes.notify_one();
    }
}

impl GateLooks {
    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Has a gate looked at. Returns whether the caller must start the looks, because there are none.
    fn wake(&self, gate: &Name, caller: Option<oneshot::Sender<()>>) -> bool {
        let mut looks = self.lock();
        let is_new = !looks.gates.contains_key(gate);
        let looking = looks.gates.entry(gate.clone()).or_default();
        looking.wake();
        looking.callers.extend(caller);
        is_new
    }

    /// Has every gate looked at for which executions wait here.
    pub(super) fn wake_all(&self) {
        self.lock().gates.values_mut().for_each(Looking::wake);
    }

    /// A look begins. The first part of the answer is notified if the gate may have changed since; dropping the second part
    /// tells the callers that the look has ended.
    fn begin(&self, gate: &Name) -> (Arc<Notify>, Vec<oneshot::Sender<()>>) {
        let mut looks = self.lock();
        let looking = looks.gates.entry(gate.clone()).or_default();
        looking.woken = false;
        looking.wakes = Arc::default();
        looking.is_all_kept = false;
        (Arc::clone(&looking.wakes), std::mem::take(&mut looking.callers))
    }

    /// Ends the looks, unless the gate may have changed since the last one began.
    fn end_unless_woken(&self, gate: &Name) -> bool {
        let mut looks = self.lock();
        let ends = looks.gates.get(gate).is_none_or(|looking| !looking.woken);
        if ends {
            looks.gates.remove(gate);
        }
        ends
    }

    /// Room is kept for these executions until an instant.
    pub(super) fn keep_room(&self, gate: &Name, executions: impl Iterator<Item = (Partition, Key)>, until: i64) {
        let let_in = &mut self.lock().let_in;
        let kept = executions.take(KEPT_MAX.saturating_sub(let_in.len()));
        let_in.extend(kept.map(|(place, execution)| (execution, Kept { gate: gate.clone(), place, until })));
    }

    /// Those of the executions for which a gate keeps room that were let in first.
    fn kept_longest(&self, gate: &Name) -> Vec<(Partition, Key)> {
        let looks = self.lock();
        let mut kept: Vec<_> = looks.let_in.iter().filter(|(_, kept)| kept.gate == *gate).collect();
        kept.sort_by_key(|(_, kept)| kept.until);
        kept.into_iter().take(KEPT_CHECKED_MAX).map(|(execution, kept)| (kept.place, execution.clone())).collect()
    }

    /// No room is kept for an execution: its gates were asked, or it was not let in after all.
    pub(super) fn forget(&self, execution: &Key) {
        let mut looks = self.lock();
        // The room may have been taken before the execution is forgotten here, and was then counted twice.
        if let Some(kept) = looks.let_in.remove(execution)
            && let Some(looking) = looks.gates.get_mut(&kept.gate).filter(|looking| looking.is_all_kept)
        {
            looking.wake();
        }
    }

    /// How many of so many have room that is not kept for others.
    fn without_kept(&self, gate: &Name, count: u64, now_ms: i64) -> u64 {
        let mut looks = self.lock();
        looks.let_in.retain(|_, kept| kept.until > now_ms);
        let kept = looks.let_in.values().filter(|kept| kept.gate == *gate).count();
        let count = count.saturating_sub(kept as u64);
        if let Some(looking) = looks.gates.get_mut(gate) {
            looking.is_all_kept = count == 0;
        }
        count
    }
}

/// Ends the looks at a gate that a panic or the end of the process breaks off, so that the next wake-up begins anew.
struct Unfinished<'a> {
    looks: &'a GateLooks,
    gate: &'a Name,
    ended: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.looks.lock().gates.remove(self.gate);
        }
    }
}

/// How the looks at a gate go.
#[derive(Default)]
struct Course {
    /// Nothing but time led to this look.
    by_time: bool,
    /// How many looks in a row found that room was still unused, although time had passed.
    unused: u32,
    /// How many looks in a row failed.
    failed: u32,
}

impl Course {
    /// The wait after a look that failed: it doubles.
    fn after_failure(&mut self) -> i64 {
        let pause_ms = RECHECK_GATE_MS << self.failed.min(DOUBLINGS_MAX);
        self.failed += 1;
        pause_ms.min(limits::BLOCKED_RECHECK_MS)
    }

    /// How many are let in where there is this much room.
    fn times(&mut self, room: u64) -> u64 {
        if !self.by_time {
            return room;
        }
        let times = 1 << self.unused.min(DOUBLINGS_MAX);
        self.unused += 1;
        room.saturating_mul(times)
    }
}

impl Scheduler {
    /// Has this engine look at a gate.
    pub(crate) fn wake_gate(&self, namespace: &str, gate: &str) {
        self.wake(namespace, gate, None);
    }

    /// Looks at a gate, and waits until those that have room are let in.
    pub(crate) async fn look_at_gate(&self, namespace: &str, gate: Gate<'_>) {
        let (ends, ended) = oneshot::channel();
        self.wake(namespace, &gate.to_string(), Some(ends));
        // The sender is dropped when the look has ended.
        drop(ended.await);
    }

    /// Has every gate looked at again that this engine looks at: the engine closes, or its clock was moved.
    pub(crate) fn wake_gates(&self) {
        self.memory.gate_looks.wake_all();
    }

    fn wake(&self, namespace: &str, gate: &str, caller: Option<oneshot::Sender<()>>) {
        let name = (namespace.to_owned(), gate.to_owned());
        if self.memory.gate_looks.wake(&name, caller) {
            let scheduler = self.clone();
            self.transactor.spawn_short(async move { scheduler.keep_looking(name).await });
        }
    }

    /// Looks at a gate until nothing waits, there is no room, or the engine closes.
    async fn keep_looking(&self, name: Name) {
        let looks = &self.memory.gate_looks;
        let mut unfinished = Unfinished { looks, gate: &name, ended: false };
        let Some(gate) = Gate::parse(&name.1) else { return };
        let mut course = Course::default();
        while !unfinished.ended {
            let (wakes, callers) = looks.begin(&name);
            let again_in_ms = self.look(&name, gate, &mut course).await;
            drop(callers);
            let closes = || self.transactor.refuse_if_closing().is_err();
            course.by_time = match again_in_ms {
                Some(ms) if !closes() => {
                    env::within(self.transactor.env_handle(), ms, wakes.notified()).await.is_none()
                }
                _ => {
                    unfinished.ended = looks.end_unless_woken(&name);
                    false
                }
            };
            if closes() {
                return;
            }
        }
    }

    /// Lets in what has room. Returns when to look again at the latest, if that may be of use.
    async fn look(&self, name: &Name, gate: Gate<'_>, course: &mut Course) -> Option<i64> {
        let view = match self.view_gate(&name.0, gate).await {
            Ok(view) => view?,
            Err(error) => return Some(self.look_failed(name, &error, course)),
        };
        let room = if course.by_time && !view.is_worth_waking { 0 } else { view.room };
        if room == 0 {
            course.unused = 0;
            return view.opens_in_ms.filter(|ms| *ms < limits::BLOCKED_RECHECK_MS && !view.places.is_empty());
        }
        let now_ms = self.transactor.env().now_ms();
        let count = self.memory.gate_looks.without_kept(name, course.times(room), now_ms);
        if count == 0 {
            self.forget_tried_elsewhere(name).await;
        }
        let looked = self.let_in(name, &view.places, count, now_ms + RECHECK_GATE_MS).await;
        // Executions queued behind the gate may have a lower priority than parked ones, which are back in their queues now.
        let count = usize::try_from(room).unwrap_or(usize::MAX);
        self.ready().open_gates(&name.0, &name.1, count, self.transactor.env().now_ms());
        match self.take_off_list(name, gate, &view, &looked).await {
            Ok(true) => None,
            Ok(false) if looked.silent.is_empty() || looked.is_left => {
                course.failed = 0;
                Some(RECHECK_GATE_MS)
            }
            // A partition that does not answer is not asked again and again.
            Ok(false) => Some(course.after_failure()),
            Err(error) => Some(self.look_failed(name, &error, course)),
        }
    }

    /// Keeps no room for executions that claims of other engines have taken since, or that are gone. The gate is looked at
    /// again if there were any.
    async fn forget_tried_elsewhere(&self, name: &Name) {
        let looks = &self.memory.gate_looks;
        for (place, key) in looks.kept_longest(name) {
            // Without an answer the room is kept until its time is up.
            let Ok(found) = self.transactor.store().documents(place, vec![key.clone()]).await else { continue };
            let stored = found.into_iter().next().flatten();
            let execution = stored.and_then(|stored| self.transactor.readable::<Execution>(&stored));
            if execution.is_none_or(|execution| execution.public_state() != PublicState::Waiting) {
                looks.forget(&key);
            }
        }
    }

    fn look_failed(&self, name: &Name, error: &ff_core::Error, course: &mut Course) -> i64 {
        if let Some(suppressed) = self.transactor.may_log("a gate cannot be looked at") {
            tracing::warn!(gate = name.1, %error, suppressed, "a gate cannot be looked at; looking again later");
        }
        course.after_failure()
    }

    async fn view_gate(&self, namespace: &str, gate: Gate<'_>) -> Result<Option<GateView>> {
        let (home, _) = place_of(&self.transactor, namespace, gate);
        self.transactor.transact(home, self.transactor.fresh_command(), &ViewGate { namespace, gate }).await
    }

    /// Takes partitions in which nothing waits off the list of a gate, when they are half of it. Returns whether nothing is
    /// listed then.
    ///
    /// A partition from which the last execution was just let in stays: others are often parked there soon, and find it
    /// listed. But estimates that are waited with are forgotten with the last partition, so that those that do not fit
    /// after all are not let in for the sake of a smaller one that has gone.
    async fn take_off_list(&self, name: &Name, gate: Gate<'_>, view: &GateView, looked: &LetIn) -> Result<bool> {
        let forgets_estimates = !view.awaited.is_empty() && !looked.is_left;
        let emptied = if forgets_estimates { looked.emptied.as_slice() } else { &[] };
        let empty = [looked.empty.as_slice(), emptied].concat();
        if empty.len() * 2 < view.places.len() {
            return Ok(false);
        }
        if empty.is_empty() {
            return Ok(true);
        }
        let (home, document) = place_of(&self.transactor, &name.0, gate);
        let verb = TakeOffList { namespace: &name.0, gate, empty: &empty, awaited: &view.awaited };
        self.transactor.transact_in_turn(home, document, &verb).await?;
        // An execution that was parked between the look and this commit found its partition listed and wrote nothing.
        let again = self.where_waiting(name, &empty).await;
        let is_all = again.is_empty() && empty.len() == view.places.len();
        if !again.is_empty() {
            self.list_parked(&name.0, gate, Note::of(again)).await?;
        }
        Ok(is_all)
    }

    /// Looks everywhere for what waits for a gate that was just created, because it could not list anything before.
    pub(crate) async fn look_at_new_gate(&self, namespace: &str, gate: Gate<'_>) {
        let all: Vec<Partition> = self.transactor.flow_partitions().collect();
        let waiting = self.where_waiting(&(namespace.to_owned(), gate.to_string()), &all).await;
        let listed = match waiting.is_empty() {
            true => Ok(false),
            false => self.list_parked(namespace, gate, Note::of(waiting)).await,
        };
        if let Err(error) = listed
            && let Some(suppressed) = self.transactor.may_log("what waits for a new gate cannot be listed")
        {
            tracing::warn!(%gate, %error, suppressed, "what waits for a new gate cannot be listed; it looks within 30 s");
        }
        self.look_at_gate(namespace, gate).await;
    }
}

struct ViewGate<'a> {
    namespace: &'a str,
    gate: Gate<'a>,
}

impl Command for ViewGate<'_> {
    type Outcome = Option<GateView>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<GateView>> {
        let found = GateDocument::load(tx, self.namespace, self.gate).await?;
        Ok(found.map(|mut document| document.view(tx.now, tx.transactor.partitions())))
    }
}

struct TakeOffList<'a> {
    namespace: &'a str,
    gate: Gate<'a>,
    empty: &'a [Partition],
    /// The estimates that were waited with when the gate was looked at.
    awaited: &'a Amounts,
}

impl Command for TakeOffList<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(mut document) = GateDocument::load(tx, self.namespace, self.gate).await? else { return Ok(()) };
        if document.parked().forget(self.empty, tx.transactor.partitions()) {
            document.forget_awaited(self.awaited);
            document.save(tx);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Name {
        ("n".to_owned(), "q:a".to_owned())
    }

    fn keys(numbers: std::ops::Range<u8>) -> impl Iterator<Item = (Partition, Key)> {
        numbers.map(|number| (Partition::flow(u16::from(number % 2)), Key::from_bytes([number])))
    }

    #[test]
    fn looks_end_only_if_nothing_happened_since_the_last_one_began() {
        let looks = GateLooks::default();
        assert!(looks.wake(&gate(), None) && !looks.wake(&gate(), None), "one task looks");
        looks.begin(&gate());
        looks.wake_all();
        assert!(!looks.end_unless_woken(&gate()));
        let (wakes, _) = looks.begin(&gate());
        assert!(futures_util::FutureExt::now_or_never(wakes.notified()).is_none(), "that wake-up was seen to");
        assert!(looks.end_unless_woken(&gate()) && looks.wake(&gate(), None));
    }

    #[test]
    fn room_is_kept_for_those_that_were_let_in_until_they_are_tried_or_time_is_up() {
        let looks = GateLooks::default();
        looks.wake(&gate(), None);
        looks.begin(&gate());
        looks.keep_room(&gate(), keys(0..3), 500);
        assert_eq!(looks.without_kept(&gate(), 5, 0), 2);
        looks.keep_room(&gate(), keys(3..9), 400);
        assert_eq!(looks.kept_longest(&gate()), keys(3..7).collect::<Vec<_>>());
        keys(3..9).for_each(|(_, key)| looks.forget(&key));
        looks.forget(&Key::from_bytes([0]));
        let other = ("n".to_owned(), "q:b".to_owned());
        assert_eq!((looks.without_kept(&gate(), 5, 499), looks.without_kept(&other, 5, 499)), (3, 5));
        assert!(looks.end_unless_woken(&gate()) && looks.wake(&gate(), None));
        looks.begin(&gate());
        assert_eq!(looks.without_kept(&gate(), 2, 499), 0);
        looks.forget(&Key::from_bytes([1]));
        assert!(!looks.end_unless_woken(&gate()), "there may be room that was counted twice");
        assert_eq!((looks.without_kept(&gate(), 2, 500), looks.lock().let_in.len()), (2, 0));
    }

    #[test]
    fn twice_as_many_are_let_in_each_time_that_their_room_is_unused() {
        let mut course = Course::default();
        assert_eq!([course.times(2), course.times(2)], [2, 2], "whatever wakes it");
        course.by_time = true;
        assert_eq!([0; 3].map(|_| course.times(2)), [2, 4, 8]);
        assert_eq!([0; 3].map(|_| course.after_failure()), [500, 1_000, 2_000]);
        assert_eq!((0..20).map(|_| course.after_failure()).max(), Some(limits::BLOCKED_RECHECK_MS));
    }
}
