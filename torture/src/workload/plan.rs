//! What is submitted, and the numbers that the checker holds it against.

/// The budget whose usage is counted, and the one whose ceiling must hold.
pub const COUNTED: &str = "counted";
/// The budget that is reserved from.
pub const CEILING: &str = "ceiling";
/// The amount that may be reserved of the ceiling, and the amount that each attempt reserves. The ceiling is no
/// multiple of it, so that calls are refused while the budget is not used up, which would keep work from starting.
pub const CEILING_TOKENS: i64 = 2_000;
/// What each attempt reserves.
pub const CALL_TOKENS: i64 = 3;

/// The quota of so many at once.
pub const SLOTS: &str = "slots";
/// How many.
pub const SLOTS_MAX: i64 = 3;
/// The quota of so many in a window.
pub const RATE: &str = "rate";
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
    /// Under the quota of so many at once.
    pub const SLOTTED: &str = "slotted";
    /// Under the quota of so many in a window.
    pub const RATED: &str = "rated";
    /// Not before an instant.
    pub const DELAYED: &str = "delayed";
    /// A run of the schedule.
    pub const SCHEDULED: &str = "scheduled";
}
