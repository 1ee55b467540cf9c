//! A clock that only a test moves: it is shown, moved, and waited for until nothing happens.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::{limits, text};

operation! {
    /// Shows the time of a server whose clock only a test moves, and when something is due next.
    GetTestClock(GetTestClockArgs) -> TestClockView,
    "get_test_clock" Get "/v1/test/clock" Reader
}

/// Nothing is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetTestClockArgs {}

/// A clock that stands still until it is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TestClockView {
    /// The store's time.
    pub now: i64,
    /// The next instant at which something happens by itself: a wake-up, a retry, the end of a lease, a timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_due_at: Option<i64>,
    /// Timers whose instant has come and that have not fired.
    pub due: u64,
}

operation! {
    /// Moves the clock of a test server and answers when what became due on the way was fired, in its order.
    AdvanceTestClock(AdvanceTestClockArgs) -> TestClockView,
    "advance_test_clock" Post "/v1/test/clock" Admin validated keyed
}

/// How far the clock is moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AdvanceTestClockArgs {
    /// By so many milliseconds; 0 only fires what is due.
    pub advance_ms: i64,
}

impl AdvanceTestClockArgs {
    /// Refuses to go back, and leaps that no test needs.
    pub fn validate(&self) -> Result<()> {
        text::within("advance_ms", self.advance_ms, 0..=limits::TEST_CLOCK_ADVANCE_MAX_MS)
    }
}

operation! {
    /// Waits until a test server is idle: nothing is leased, claimable, due or owed. A worker, the clock or a call ends that.
    WaitUntilIdle(WaitUntilIdleArgs) -> WaitUntilIdleOutcome,
    "wait_until_idle" Post "/v1/test/idle" Operator validated watching waits(timeout_ms)
}

/// How long to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitUntilIdleArgs {
    /// Real milliseconds; 30 seconds at the most and when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
}

/// Whether the server is idle, and what keeps it busy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitUntilIdleOutcome {
    /// Nothing is under way; otherwise the time was up.
    pub idle: bool,
    /// Executions that a worker holds.
    pub leased: u64,
    /// Executions that a worker could claim: their lane is open and no budget or quota is known to refuse them.
    pub claimable: u64,
    /// Timers whose instant has come and that have not fired.
    pub due: u64,
    /// Ended executions whose flows, parents or quotas have not been told.
    pub owed: u64,
    /// The store's time.
    pub now: i64,
}

impl WaitUntilIdleArgs {
    /// Refuses waits that are too long.
    pub fn validate(&self) -> Result<()> {
        self.timeout_ms.map_or(Ok(()), |timeout_ms| text::within("timeout_ms", timeout_ms, 0..=limits::WAIT_MAX_MS))
    }
}
