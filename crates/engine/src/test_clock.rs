//! A clock that only a test moves, and how it is moved.
//!
//! The store on this clock and the engine agree on the time to the millisecond, because both read it here. Everything
//! that is an instant of the store follows it: leases, wake-ups, retries, timeouts, windows, retention. What a process
//! waits for in its own time goes on: long polls, repeats of calls, sweeps. Moving the clock stops at every instant at
//! which something is due, so that what follows from one timer may come before the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ff_core::index::{self, Due};
use ff_core::{Code, Error, IndexName, Partition, PublicState, Result};
use ff_store::{Answer, Query, Scan};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::engine::Engine;
use crate::env;
use crate::scheduler::reads::NAMES_LIMIT;

/// Real time that one move may wait for timers to fire. On the memory store they take microseconds.
const SETTLE_MAX_MS: i64 = 10_000;
/// What is due and has not fired is pointed out to the timers again after this long.
const REMIND_MS: i64 = 50;
/// Entries of a `due` index that one look reads.
const DUE_LIMIT: usize = 100;
/// Entries of one index that are counted.
const COUNT_MAX: u64 = 1_000_000;

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct TestClock {
    now: AtomicI64,
    /// Moves come one after the other.
    moving: Mutex<()>,
    /// How many changes the engine has made, for those who wait until it makes no more.
    changes: watch::Sender<u64>,
}

impl TestClock {
    /// A clock that shows this many milliseconds since the epoch.
    pub fn starting_at(now: i64) -> Arc<Self> {
        Arc::new(Self { now: AtomicI64::new(now), moving: Mutex::default(), changes: watch::Sender::default() })
    }

    /// What it shows.
    pub fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    /// What a store on this clock reads.
    pub fn source(self: &Arc<Self>) -> ff_store::memory::Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }

    /// The engine changed something.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    async fn one_mover(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().await
    }

    fn show(&self, now: i64) {
        self.now.fetch_max(now, Ordering::SeqCst);
    }
}

/// What a deployment is busy with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) leased: u64,
    pub(crate) claimable: u64,
    /// At most [`DUE_LIMIT`] for each partition.
    pub(crate) due: u64,
    pub(crate) owed: u64,
}

impl Activity {
    pub(crate) fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// No timer is behind, and nothing is on its way inside of the engine.
    fn is_settled(&self) -> bool {
        self.due == 0 && self.owed == 0
    }
}

impl Engine {
    /// The clock that a test moves; refused where there is none.
    pub(crate) fn test_clock(&self) -> Result<&Arc<TestClock>> {
        self.options().test_clock.as_ref().ok_or_else(|| Error::of(Code::NoTestClock))
    }

    /// Moves the clock to an instant, fires what is due on the way in its order, and waits until that is done.
    pub(crate) async fn move_test_clock(&self, clock: &TestClock, to: i64) -> Result<()> {
        let _turn = clock.one_mover().await;
        let give_up_at = self.env().now_ms() + SETTLE_MAX_MS;
        self.settle(clock, give_up_at).await?;
        while let Some(next) = self.next_due().await?.filter(|next| *next <= to) {
            self.show(clock, next);
            if !self.settle(clock, give_up_at).await? {
                break;
            }
        }
        self.show(clock, to);
        self.settle(clock, give_up_at).await?;
        // This engine's own registration follows the clock as well.
        self.servers().look_again();
        Ok(())
    }

    fn show(&self, clock: &TestClock, now: i64) {
        clock.show(now);
        self.timers().wake();
        // Until when a gate is closed was put onto the process's clock, which has not moved.
        self.scheduler().ready().open_all_gates();
    }

    /// Waits until everything that is due has fired; says whether it has.
    async fn settle(&self, clock: &TestClock, give_up_at: i64) -> Result<bool> {
        let settled = |activity: &Activity| activity.is_settled();
        loop {
            let remind_at = (self.env().now_ms() + REMIND_MS).min(give_up_at);
            if self.wait_for_activity(clock, remind_at, settled).await?.is_settled() {
                return Ok(true);
            }
            if self.env().now_ms() >= give_up_at {
                return Ok(false);
            }
            for partition in self.partitions().all() {
                self.timers().note(partition, clock.now());
            }
        }
    }

    /// Waits until what the engine does is as wanted, or until an instant of the process. The answer is what was seen
    /// last.
    pub(crate) async fn wait_for_activity(
        &self,
        clock: &TestClock,
        until: i64,
        wanted: impl Fn(&Activity) -> bool,
    ) -> Result<Activity> {
        let mut changes = clock.changes.subscribe();
        loop {
            self.refuse_if_closing()?;
            changes.mark_unchanged();
            let activity = self.activity().await?;
            // What changed while it was looked at may have moved from a place not yet seen to one that was.
            let torn = changes.has_changed().unwrap_or(false);
            let left = until - self.env().now_ms();
            if (wanted(&activity) && !torn) || left <= 0 {
                return Ok(activity);
            }
            if !torn {
                env::within(self.env_handle(), left, changes.changed()).await;
            }
        }
    }

    /// The next instant at which something fires.
    pub(crate) async fn next_due(&self) -> Result<Option<i64>> {
        let now = self.now();
        let mut next: Option<i64> = None;
        for partition in self.partitions().all() {
            let scan = Scan { min: now + 1, ..Scan::first(index::due(), DUE_LIMIT) };
            let page = self.read(partition, vec![Query::Scan(scan)]).await?.into_only(Answer::into_scan)?;
            let first = page.entries.iter().find(|entry| fires(&entry.member)).map(|entry| entry.score);
            next = next.into_iter().chain(first).min();
        }
        Ok(next)
    }

    /// Timers whose instant has come and that have not fired.
    pub(crate) async fn overdue(&self) -> Result<u64> {
        Ok(self.activity().await?.due)
    }

    async fn activity(&self) -> Result<Activity> {
        let mut all = Activity::default();
        for partition in self.partitions().all() {
            let queries = vec![
                Query::Scan(Scan::first(index::due(), DUE_LIMIT).up_to(self.now())),
                Query::count_up_to(index::marks(), COUNT_MAX),
            ];
            let mut answers = self.read(partition, queries).await?.answers.into_iter();
            let due = answers.next().and_then(Answer::into_scan).unwrap_or_default();
            let due = due.entries.iter().filter(|entry| fires(&entry.member)).count();
            all.due += u64::try_from(due).unwrap_or(u64::MAX);
            all.owed += answers.next().and_then(Answer::into_count).unwrap_or_default();
            for name in self.indexes_like(partition, index::STATE_PREFIX).await? {
                if is_active(&name) {
                    all.leased += self.entries(partition, name).await?;
                }
            }
            for name in self.indexes_like(partition, index::QUEUE_PREFIX).await? {
                if self.gives_out(&name).await? {
                    all.claimable += self.entries(partition, name).await?;
                }
            }
        }
        Ok(all)
    }

    /// The non-empty indexes of a partition whose names begin like this.
    async fn indexes_like(&self, partition: Partition, prefix: u8) -> Result<Vec<IndexName>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().cloned();
            let names = Query::Indexes { prefix: vec![prefix], after, limit: NAMES_LIMIT };
            let names = self.read(partition, vec![names]).await?.into_only(Answer::into_indexes)?;
            let full = names.len() == NAMES_LIMIT;
            all.extend(names);
            if !full {
                return Ok(all);
            }
        }
    }

    async fn entries(&self, partition: Partition, index: IndexName) -> Result<u64> {
        let query = Query::count_up_to(index, COUNT_MAX);
        Ok(self.read(partition, vec![query]).await?.into_only(Answer::into_count)?)
    }

    /// Whether a worker could be given what is in this queue: its lane gives out work, and its gate is not closed.
    async fn gives_out(&self, queue: &IndexName) -> Result<bool> {
        let Some(index::QueueName { namespace, lane, .. }) = index::QueueName::parse(queue) else { return Ok(true) };
        let open = self.lane(&namespace, &lane).await?.is_none_or(|lane| lane.admits_claims());
        let gate = queue.parts().and_then(|parts| parts.last().map(|gate| gate.to_vec())).unwrap_or_default();
        Ok(open
            && !std::str::from_utf8(&gate).is_ok_and(|gate| self.scheduler().ready().is_gate_closed(&namespace, gate)))
    }
}

/// Registrations of servers do not fire: servers watch over each other.
fn fires(member: &ff_core::Key) -> bool {
    Due::parse(member).is_none_or(|(key, _)| key.kind() != index::kind::SERVER)
}

fn is_active(name: &IndexName) -> bool {
    text_parts(name).is_some_and(|[_, state]| state == PublicState::Active.as_str())
}

/// The parts of an index's name, where there are so many and all are texts.
fn text_parts<const N: usize>(name: &IndexName) -> Option<[&str; N]> {
    let parts = name.parts()?.into_iter().map(std::str::from_utf8).collect::<Result<Vec<_>, _>>().ok()?;
    parts.try_into().ok()
}
