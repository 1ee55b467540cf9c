//! The operations of a deployment whose clock a test moves: it is shown, moved, and waited for until nothing happens.

use std::sync::Arc;

use ff_core::idempotency::Identity;
use ff_core::index::{self, Due};
use ff_core::op::{
    AdvanceTestClock, AdvanceTestClockArgs, GetTestClock, GetTestClockArgs, TestClockView, WaitUntilIdle,
    WaitUntilIdleArgs, WaitUntilIdleOutcome,
};
use ff_core::{Code, Error, IndexName, Partition, PublicState, Result};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::env;
use crate::op::Handle;
use crate::scheduler::reads::NAMES_LIMIT;
use crate::services::Services;
use crate::test_clock::TestClock;
use crate::transaction::{Command, Tx};

/// Real time that one move may wait for timers to fire. On the memory store they take microseconds.
const SETTLE_MAX_MS: i64 = 10_000;
/// Real time that one move leaves to workers that take on its way what a timer has made claimable. Without it, the clock
/// would pass their leases before they could have done anything.
const WORK_PATIENCE_MS: i64 = 1_000;
/// An entry that is due and has not fired is pointed out to the timers again after this long.
const REMIND_MS: i64 = 50;
/// Entries of a `due` index that one look reads.
const DUE_LIMIT: usize = 100;
/// Entries of one index that are counted.
const COUNT_MAX: u64 = 1_000_000;

impl Handle<GetTestClock> for Services {
    async fn handle(&self, _caller: &Caller, _args: GetTestClockArgs) -> Result<TestClockView> {
        self.test_clock_view(self.test_clock()?).await
    }
}

impl Handle<AdvanceTestClock> for Services {
    async fn handle(&self, caller: &Caller, args: AdvanceTestClockArgs) -> Result<TestClockView> {
        let clock = self.test_clock()?;
        let to = match self.transactor.callers_identity::<AdvanceTestClock>(caller, &args, None) {
            Some(identity) => {
                let verb = Aim { identity: &identity, advance_ms: args.advance_ms };
                self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?
            }
            None => clock.now().saturating_add(args.advance_ms),
        };
        self.move_test_clock(clock, to).await?;
        self.test_clock_view(clock).await
    }
}

impl Handle<WaitUntilIdle> for Services {
    async fn handle(&self, _caller: &Caller, args: WaitUntilIdleArgs) -> Result<WaitUntilIdleOutcome> {
        let clock = self.test_clock()?;
        let timeout_ms = self
            .transactor
            .limits()
            .tail_wait("timeout_ms", args.timeout_ms.unwrap_or(self.transactor.limits().tail_wait_max_ms))?;
        let until = self.transactor.env().now_ms() + timeout_ms;
        let activity = self.wait_for_activity(clock, until, Activity::is_idle).await?;
        let Activity { leased, claimable, due, owed } = activity;
        let now = clock.now();
        Ok(WaitUntilIdleOutcome { idle: activity.is_idle(), leased, claimable, due, owed, now })
    }
}

impl Services {
    async fn test_clock_view(&self, clock: &TestClock) -> Result<TestClockView> {
        Ok(TestClockView { now: clock.now(), next_due_at: self.next_due().await?, due: self.overdue().await? })
    }
}

/// Works out where a move that has an identity leads to. A repeat leads to the same instant, so that time does not pass
/// twice.
struct Aim<'a> {
    identity: &'a Identity,
    advance_ms: i64,
}

impl Command for Aim<'_> {
    type Outcome = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64> {
        if let Some(to) = tx.kept_answer(self.identity).await? {
            return Ok(to);
        }
        let to = tx.now.saturating_add(self.advance_ms);
        tx.keep_answer(self.identity, &to);
        Ok(to)
    }
}

/// The work that a deployment is busy with.
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

    /// Whether no timer is behind, and no work is on its way inside of the engine.
    fn is_settled(&self) -> bool {
        self.due == 0 && self.owed == 0
    }
}

impl Services {
    /// The clock that a test moves; refused where there is none.
    pub(crate) fn test_clock(&self) -> Result<&Arc<TestClock>> {
        self.transactor.options().test_clock.as_ref().ok_or_else(|| Error::of(Code::NoTestClock))
    }

    /// Moves the clock to an instant, fires what is due on the way in its order, and waits until that is done.
    pub(crate) async fn move_test_clock(&self, clock: &TestClock, to: i64) -> Result<()> {
        let _turn = clock.one_mover().await;
        let give_up_at = self.transactor.env().now_ms() + SETTLE_MAX_MS;
        self.settle(clock, give_up_at).await?;
        let before = self.activity().await?;
        let mut patience_ms = WORK_PATIENCE_MS;
        while let Some(next) = self.next_due().await?.filter(|next| *next <= to) {
            self.show(clock, next);
            if !self.settle(clock, give_up_at).await? {
                break;
            }
            patience_ms = self.let_workers_end(clock, before, patience_ms).await?;
        }
        self.show(clock, to);
        self.settle(clock, give_up_at).await?;
        // This engine's own registration follows the clock as well.
        self.shared.servers.look_again();
        Ok(())
    }

    /// Waits until workers have taken and ended what has become claimable since then, if there are any; says how much
    /// patience is left.
    async fn let_workers_end(&self, clock: &TestClock, before: Activity, patience_ms: i64) -> Result<i64> {
        let began = self.transactor.env().now_ms();
        let ended = |activity: &Activity| {
            let untaken = activity.claimable > before.claimable && self.scheduler.ready().has_waiters();
            activity.leased <= before.leased && !untaken
        };
        self.wait_for_activity(clock, began + patience_ms, ended).await?;
        Ok((patience_ms - (self.transactor.env().now_ms() - began)).max(0))
    }

    fn show(&self, clock: &TestClock, now: i64) {
        clock.show(now);
        self.transactor.due().wake();
        // Until when a gate is closed was put onto the process's clock, which has not moved.
        self.scheduler.ready().open_all_gates(self.transactor.env().now_ms());
        self.scheduler.wake_gates();
    }

    /// Waits until everything that is due has fired; says whether it has.
    async fn settle(&self, clock: &TestClock, give_up_at: i64) -> Result<bool> {
        let settled = |activity: &Activity| activity.is_settled();
        loop {
            let remind_at = (self.transactor.env().now_ms() + REMIND_MS).min(give_up_at);
            if self.wait_for_activity(clock, remind_at, settled).await?.is_settled() {
                return Ok(true);
            }
            if self.transactor.env().now_ms() >= give_up_at {
                return Ok(false);
            }
            for partition in self.transactor.partitions().all() {
                self.transactor.due().note(partition, clock.now());
            }
        }
    }

    /// Waits until what the services does is as wanted, or until an instant of the process. The answer is what was seen
    /// last.
    pub(crate) async fn wait_for_activity(
        &self,
        clock: &TestClock,
        until: i64,
        wanted: impl Fn(&Activity) -> bool,
    ) -> Result<Activity> {
        let mut changes = clock.changes();
        loop {
            self.transactor.refuse_if_closing()?;
            changes.mark_unchanged();
            let activity = self.activity().await?;
            // An execution that changed during the look may have moved from a place not yet seen to one that was.
            let torn = changes.has_changed().unwrap_or(false);
            let left = until - self.transactor.env().now_ms();
            if (wanted(&activity) && !torn) || left <= 0 {
                return Ok(activity);
            }
            if !torn {
                env::within(self.transactor.env_handle(), left, changes.changed()).await;
            }
        }
    }

    /// The next instant at which something fires.
    pub(crate) async fn next_due(&self) -> Result<Option<i64>> {
        let now = self.transactor.now();
        let mut next: Option<i64> = None;
        for partition in self.transactor.partitions().all() {
            let scan = Scan { min: now + 1, ..Scan::first(index::due(), DUE_LIMIT) };
            let page = self.transactor.read(partition, vec![Query::Scan(scan)]).await?.into_only(Answer::into_scan)?;
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
        for partition in self.transactor.partitions().all() {
            let queries = vec![
                Query::Scan(Scan::first(index::due(), DUE_LIMIT).up_to(self.transactor.now())),
                Query::count_up_to(index::marks(), COUNT_MAX),
            ];
            let mut answers = self.transactor.read(partition, queries).await?.answers.into_iter();
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
            let names = self.transactor.read(partition, vec![names]).await?.into_only(Answer::into_indexes)?;
            let full = names.len() == NAMES_LIMIT;
            all.extend(names);
            if !full {
                return Ok(all);
            }
        }
    }

    async fn entries(&self, partition: Partition, index: IndexName) -> Result<u64> {
        let query = Query::count_up_to(index, COUNT_MAX);
        Ok(self.transactor.read(partition, vec![query]).await?.into_only(Answer::into_count)?)
    }

    /// Whether a worker could be given what is in this queue: its lane gives out work, and its gate is not closed.
    async fn gives_out(&self, queue: &IndexName) -> Result<bool> {
        let Some(index::QueueName { namespace, lane, .. }) = index::QueueName::parse(queue) else { return Ok(true) };
        let open = self.shared.system.lane(&namespace, &lane).await?.is_none_or(|lane| lane.admits_claims());
        let gate = queue.parts().and_then(|parts| parts.last().map(|gate| gate.to_vec())).unwrap_or_default();
        Ok(open
            && !std::str::from_utf8(&gate).is_ok_and(|gate| self.scheduler.ready().is_gate_closed(&namespace, gate)))
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
