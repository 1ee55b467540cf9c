//! The operations of a deployment whose clock a test moves: it is shown, moved, and waited for until nothing happens.

use ff_core::idempotency::Identity;
use ff_core::op::{
    AdvanceTestClock, AdvanceTestClockArgs, GetTestClock, GetTestClockArgs, TestClockView, WaitUntilIdle,
    WaitUntilIdleArgs, WaitUntilIdleOutcome,
};
use ff_core::{Partition, Result};

use crate::engine::{Caller, Engine, Handle};
use crate::test_clock::{Activity, TestClock};
use crate::transaction::{Command, Tx};

impl Handle<GetTestClock> for Engine {
    async fn handle(&self, _caller: &Caller, _args: GetTestClockArgs) -> Result<TestClockView> {
        self.test_clock_view(self.test_clock()?).await
    }
}

impl Handle<AdvanceTestClock> for Engine {
    async fn handle(&self, caller: &Caller, args: AdvanceTestClockArgs) -> Result<TestClockView> {
        let clock = self.test_clock()?;
        let to = match self.callers_identity::<AdvanceTestClock>(caller, &args, None) {
            Some(identity) => {
                let verb = Aim { identity: &identity, advance_ms: args.advance_ms };
                self.transact(Partition::SYSTEM, self.fresh_command(), &verb).await?
            }
            None => clock.now().saturating_add(args.advance_ms),
        };
        self.move_test_clock(clock, to).await?;
        self.test_clock_view(clock).await
    }
}

impl Handle<WaitUntilIdle> for Engine {
    async fn handle(&self, _caller: &Caller, args: WaitUntilIdleArgs) -> Result<WaitUntilIdleOutcome> {
        let clock = self.test_clock()?;
        let timeout_ms =
            self.limits().tail_wait("timeout_ms", args.timeout_ms.unwrap_or(self.limits().tail_wait_max_ms))?;
        let until = self.env().now_ms() + timeout_ms;
        let activity = self.wait_for_activity(clock, until, Activity::is_idle).await?;
        let Activity { leased, claimable, due, owed } = activity;
        let now = clock.now();
        Ok(WaitUntilIdleOutcome { idle: activity.is_idle(), leased, claimable, due, owed, now })
    }
}

impl Engine {
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
