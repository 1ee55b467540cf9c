//! What is submitted, and the numbers that the checker holds it against.

use std::time::Duration;

/// How much work there is, of what kind, and how many hands do it.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Between two submits of a submitter.
    pub pace: Duration,
    /// Nine of ten submits are of this kind; without one, every kind has its share.
    pub focus: Option<&'static str>,
    /// Worker processes.
    pub workers: usize,
    /// Tasks that each of them works on at once.
    pub threads: usize,
    /// Submitters wait while more executions than this are open, so that work is not old when it is claimed, whatever the
    /// machine can do.
    pub open_max: u64,
}

impl Load {
    /// A load that leaves the machine some room.
    pub const USUAL: Load =
        Load { pace: Duration::from_millis(40), focus: None, workers: 4, threads: 3, open_max: 400 };
    /// As much work as gets done: submitters wait for nothing but a queue that is too long.
    pub const FULL: Load = Load { pace: Duration::from_millis(2), focus: None, workers: 8, threads: 3, open_max: 200 };
}

/// The budget whose usage is counted, and the one whose ceiling must hold.
pub const COUNTED: &str = "counted";
/// The budget that is reserved from.
pub const CEILING: &str = "ceiling";
/// The amount that may be reserved of the ceiling, and the amount that each attempt reserves. The ceiling is no
/// multiple of it, so that calls are refused while the budget is not used up, which would keep work from starting.
pub const CEILING_TOKENS: i64 = 2_000;
/// What each attempt reserves.
pub const CALL_TOKENS: i64 = 3;

/// A budget that many reserve from at once, and spend nothing of. What a killed worker had reserved counts as spent, and
/// leaves the rolling window after a while.
pub const RACE: &str = "race";
/// The amount that may be reserved; no multiple of an amount, as above.
pub const RACE_TOKENS: i64 = 91;
/// How long spent amounts count.
pub const RACE_WINDOW_MS: i64 = 5_000;
/// How often an attempt reserves and settles.
pub const RACE_ROUNDS: u64 = 10;

/// The quota of so many at once.
pub const SLOTS: &str = "slots";
/// How many.
pub const SLOTS_MAX: i64 = 3;
/// The first part of the names of quotas of so many in a window. A load without a focus uses the first of them, so that
/// it is always full.
pub const RATE: &str = "rate";
/// How many such quotas there are.
pub const RATES: u64 = 30;
/// How many start in a window.
pub const RATE_MAX: i64 = 10;
/// How long the window is.
pub const RATE_WINDOW_S: i64 = 2;

/// The schedule that runs once a second.
pub const SCHEDULE: &str = "tick";
/// Between two of its instants.
pub const SCHEDULE_EVERY_MS: i64 = 1_000;

/// The lane of everything.
pub const LANE: &str = "torture";
/// How long a lease lasts.
pub const LEASE_TTL_MS: i64 = 4_000;
/// How far a store's time may leap ahead when it has lost its memory of what it told (Valkey without its functions, or
/// another server in its place): it then goes on from an instant that it surely has not told yet.
pub const STORE_LEAP_MS: i64 = 100;

/// The kinds of work.
pub mod kind {
    /// Spends, records a step, writes frames, fails now and then, ends.
    pub const PLAIN: &str = "plain";
    /// Takes longer than a lease lasts and renews it.
    pub const LONG: &str = "long";
    /// Suspends until a signal comes.
    pub const WAITS: &str = "waits";
    /// A member of a graph.
    pub const MEMBER: &str = "member";
    /// Reserves and settles in turn, many at once, under one ceiling.
    pub const RACES: &str = "races";
    /// Under the quota of so many at once.
    pub const SLOTTED: &str = "slotted";
    /// Under a quota of so many in a window.
    pub const RATED: &str = "rated";
    /// Not before an instant.
    pub const DELAYED: &str = "delayed";
    /// A run of the schedule.
    pub const SCHEDULED: &str = "scheduled";
}
