//! The profile of a seed's run: how many of everything, and how bad the weather.

use ff_core::PartitionConfig;

use crate::random::Random;
use crate::store::Weather;

/// The largest of the small chunks: less than the graphs of a run have members and edges.
const SMALL_CHUNK_MAX: usize = 5;
/// Where there are so many workers, they fight for one budget.
const MANY_WORKERS: usize = 5;
/// How long a call is on its way that its caller has given up: past the engine's patience with its store, and around
/// the age at which a slot is taken for an orphan.
const STUCK_MS: (i64, i64) = (6_000, 16_000);

/// Calls in a thousand that are stuck, where slots are looked at.
const STUCK_OFTEN: i64 = 40;

/// The kind of trouble that a run is about. Without one the seed decides, and brings each of them now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// Claims that are late for the slots that they took.
    Slots,
    /// Holders that spend from one budget.
    Budgets,
}

/// Decided once by the seed.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// Processes with an engine.
    pub servers: usize,
    /// Processes that take work.
    pub workers: usize,
    /// Processes that submit and administer.
    pub clients: usize,
    /// How the deployment is partitioned.
    pub partitions: PartitionConfig,
    /// Calls in a thousand that are slow, and by how much at the most.
    pub slow: i64,
    /// The longest ordinary delay.
    pub slow_ms: i64,
    /// Calls in a thousand that do not get through, or whose reply does not.
    pub lossy: i64,
    /// Commits in a thousand that another command overtakes.
    pub overtaken: i64,
    /// Commits in a thousand whose hints are lost.
    pub deaf: i64,
    /// A server is killed about this often; 0 for never.
    pub crash_ms: i64,
    /// The store's clock jumps about this often; 0 for never.
    pub jump_ms: i64,
    /// The store forgets about this often; 0 for never.
    pub failover_ms: i64,
    /// Tasks in a thousand whose worker stops for longer than its lease and then goes on.
    pub zombies: i64,
    /// One partition cannot be reached for seconds, about this often; 0 for never.
    pub outage_ms: i64,
    /// When the storm is over, one partition stays out of reach for a while.
    pub calm_outage: bool,
    /// One partition alone forgets, about this often; 0 for never.
    pub partition_failover_ms: i64,
    /// The clocks of two partitions differ by up to twice this.
    pub skew_ms: i64,
    /// Of a thousand servers that end, so many are stopped and not killed.
    pub stops: i64,
    /// Every server but the first leaves timers, resolver and sweeps to the others.
    pub lone_services: bool,
    /// The first server is of a newer version, whose documents have keys that the others do not know.
    pub mixed: bool,
    /// The reconciler runs, and finds nothing.
    pub reconcile: bool,
    /// Work comes in masses that no page or chunk holds.
    pub large: bool,
    /// One read or commit of an engine's own work takes so much at the most.
    pub chunk_max: usize,
    /// Calls in a thousand that are on their way for longer than their callers wait.
    pub stuck: i64,
    /// Nearly everything is charged to the quota with few slots.
    pub gated: bool,
    /// Most work is charged to the smallest budget, and its holders spend from it.
    pub charged: bool,
    /// Work comes in two namespaces.
    pub two_namespaces: bool,
    /// When everything has ended, time goes on until everything is gone.
    pub drain: bool,
}

impl Profile {
    /// The profile of a seed.
    pub(crate) fn new(random: &mut Random) -> Self {
        let flow = *random.pick(&[1u32, 2, 4]).unwrap_or(&1);
        let gates = *random.pick(&[1u32, 2]).unwrap_or(&1);
        let mut often = |low: i64, high: i64, per_mille: i64| {
            let drawn = random.between(low, high);
            if random.chance(per_mille) { drawn } else { 0 }
        };
        let (slow, slow_ms) = (often(10, 400, 800), often(1, 60, 1000));
        let (lossy, overtaken, deaf) = (often(1, 30, 700), often(1, 60, 700), often(1, 100, 500));
        let (crash_ms, jump_ms, failover_ms) =
            (often(2_000, 20_000, 700), often(5_000, 30_000, 400), often(5_000, 30_000, 250));
        let zombies = often(20, 200, 800);
        let (outage_ms, partition_failover_ms) = (often(4_000, 30_000, 300), often(4_000, 20_000, 250));
        let (skew_ms, stops) = (often(1, 2_000, 300), often(100, 1_000, 600));
        let mut sometimes = |per_mille: i64| random.chance(per_mille);
        let (calm_outage, lone_services, mixed, reconcile) =
            (sometimes(300), sometimes(200), sometimes(300), sometimes(300));
        let (large, two_namespaces, drain) = (sometimes(20), sometimes(400), sometimes(150));
        let (small_chunks, stuck, gated) = (sometimes(600), sometimes(300), sometimes(200));
        let chunk_max = if small_chunks { 1 + random.below(SMALL_CHUNK_MAX) } else { usize::MAX };
        let stuck = if stuck { random.between(2, 15) } else { 0 };
        let (servers, workers) = (1 + random.below(3), 2 + random.below(4));
        Self {
            servers,
            workers,
            clients: 2 + random.below(2),
            partitions: PartitionConfig { flow, budget: gates, quota: gates },
            slow,
            slow_ms,
            lossy,
            overtaken,
            deaf,
            crash_ms,
            jump_ms,
            failover_ms,
            zombies,
            outage_ms,
            calm_outage: calm_outage && flow > 1,
            partition_failover_ms,
            skew_ms,
            stops,
            lone_services,
            mixed,
            reconcile,
            large,
            chunk_max: if large { usize::MAX } else { chunk_max },
            stuck,
            gated,
            charged: workers == MANY_WORKERS,
            two_namespaces,
            drain,
        }
    }

    /// The same with what brings out one kind of trouble.
    pub(crate) fn focus(self, focus: Focus) -> Self {
        match focus {
            Focus::Slots => Self { gated: true, stuck: STUCK_OFTEN, failover_ms: 0, partition_failover_ms: 0, ..self },
            Focus::Budgets => Self { charged: true, workers: MANY_WORKERS, ..self },
        }
    }

    /// Whether the store ever forgets anything.
    pub(crate) fn forgets(&self) -> bool {
        self.failover_ms > 0 || self.partition_failover_ms > 0
    }

    /// The namespaces that work comes in.
    pub(crate) fn namespaces(&self) -> &'static [&'static str] {
        if self.two_namespaces { &["default", "other"] } else { &["default"] }
    }

    /// The longest that a claim can be on its way: retries where calls are quick, everything that is slow otherwise.
    pub(crate) fn admission_lag_ms(&self) -> i64 {
        let quick = self.slow == 0 && self.lossy == 0 && self.jump_ms == 0 && self.outage_ms == 0;
        // A budget and what it governs stand in two partitions, whose clocks may differ and stand still.
        let stuck_ms = if self.stuck > 0 { STUCK_MS.1 } else { 0 };
        2 * self.skew_ms + stuck_ms + if quick { 3_000 } else { 12_000 }
    }

    /// The weather of the next call.
    pub(crate) fn weather(&self, random: &mut Random) -> Weather {
        let mut weather = Weather::default();
        if random.chance(self.slow) {
            weather.before_ms = random.between(0, self.slow_ms);
            weather.after_ms = random.between(0, self.slow_ms);
            // Now and then something takes longer than a lease.
            if random.chance(15) {
                weather.before_ms = random.between(500, 4_000);
            }
        }
        if random.chance(self.stuck) {
            weather.before_ms = random.between(STUCK_MS.0, STUCK_MS.1);
        }
        if random.chance(self.lossy) {
            match random.below(3) {
                0 => weather.unavailable = true,
                1 => weather.lost_request = true,
                _ => weather.lost_reply = true,
            }
        }
        weather.overtaken = random.chance(self.overtaken);
        weather.lose_hints = random.chance(self.deaf);
        weather
    }
}
