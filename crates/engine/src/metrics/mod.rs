//! The counters of the engine. Plain atomics; [`Metrics::families`] shows them all as values.

mod family;
mod undecodable;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::Code;
use ff_core::event::EventType;
use ff_core::execution::Execution;
use ff_core::provider::ProviderStatus;

use self::undecodable::Undecodable;

pub use family::{Family, FamilyKind, Sample, SampleValue};

/// Names that people choose become labels; past this many they are counted together.
const LABELS_MAX: usize = 200;
/// The label that they are counted under.
const OTHER: &str = "other";

/// Upper bounds of the histogram buckets, in microseconds.
pub const BUCKETS_US: [u64; 16] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    30_000_000,
    u64::MAX,
];

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_US.len()],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&self, us: i64) {
        let us = u64::try_from(us).unwrap_or(0);
        let bucket = BUCKETS_US.iter().position(|bound| us <= *bound).unwrap_or(BUCKETS_US.len() - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Observations in each bucket, and the sum of all in microseconds.
    pub fn snapshot(&self) -> ([u64; BUCKETS_US.len()], u64) {
        let mut counts = [0; BUCKETS_US.len()];
        for (count, bucket) in counts.iter_mut().zip(&self.buckets) {
            *count = bucket.load(Ordering::Relaxed);
        }
        (counts, self.sum_us.load(Ordering::Relaxed))
    }
}

/// Everything the engine counts.
#[derive(Debug, Default)]
pub struct Metrics {
    /// How long commits took.
    pub commits: Histogram,
    /// How late timers fired.
    pub timer_lateness: Histogram,
    /// From the decision to claim a candidate to its lease.
    pub claims: Histogram,
    /// How long executions waited from creation to their first claim.
    pub queue_wait: Histogram,
    /// Commits that met a conflict.
    pub conflicts: AtomicU64,
    /// Partitions a claim could not read.
    pub partitions_passed_over: AtomicU64,
    /// Stored entries that could not be decoded.
    pub undecodable: AtomicU64,
    /// The last of them.
    pub(crate) undecodable_entries: Undecodable,
    /// Things the reconcilers repaired.
    pub repairs: AtomicU64,
    /// How often the reconciler has been through everything that it is to look at.
    pub reconciled: AtomicU64,
    /// Reads sent to the store.
    pub reads: AtomicU64,
    operations: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    events: Mutex<BTreeMap<&'static str, u64>>,
    refusals: Mutex<BTreeMap<String, u64>>,
    budget_refusals: Mutex<BTreeMap<String, u64>>,
    quota_refusals: Mutex<BTreeMap<&'static str, u64>>,
    service_restarts: Mutex<BTreeMap<&'static str, u64>>,
    claim_exits: Mutex<BTreeMap<(String, &'static str), Arc<Histogram>>>,
    charges: Mutex<BTreeMap<BudgetLabel, BudgetCharges>>,
    providers: Mutex<BTreeMap<(String, String), ProviderStatus>>,
}

/// Namespace and name of a budget, and one of its dimensions.
pub type BudgetLabel = (String, String, String);

/// The effect of this engine's commits on one dimension of a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetCharges {
    /// The amount that was spent.
    pub spent: u64,
    /// The amount that was held after the last commit.
    pub reserved: u64,
    /// Reservations that were refused.
    pub refused: u64,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimExit {
    /// With work.
    Taken,
    /// Without work, after the whole wait.
    Empty,
    /// Its caller has gone.
    Gone,
    /// With an error.
    Failed,
}

impl ClaimExit {
    const fn as_str(self) -> &'static str {
        match self {
            ClaimExit::Taken => "taken",
            ClaimExit::Empty => "empty",
            ClaimExit::Gone => "gone",
            ClaimExit::Failed => "failed",
        }
    }
}

impl Metrics {
    pub(crate) fn commit(&self, us: i64) {
        self.commits.observe(us);
    }

    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn partition_passed_over(&self) {
        self.partitions_passed_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn repaired(&self, entries: u64) {
        self.repairs.fetch_add(entries, Ordering::Relaxed);
    }

    /// A service runs, and is counted from nothing.
    pub(crate) fn service_started(&self, name: &'static str) {
        self.service_restarts.lock().expect("no holder of this lock panics").entry(name).or_default();
    }

    /// A service panicked.
    pub(crate) fn service_panicked(&self, name: &'static str) {
        *self.service_restarts.lock().expect("no holder of this lock panics").entry(name).or_default() += 1;
    }

    /// How often each service, or something it did, panicked and was begun again.
    pub fn service_restarts(&self) -> BTreeMap<&'static str, u64> {
        self.service_restarts.lock().expect("no holder of this lock panics").clone()
    }

    pub(crate) fn undecodable(&self) {
        self.undecodable.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn claimed(&self, execution: &Execution, us: i64, now: i64) {
        self.claims.observe(us);
        if execution.started_at == 0 {
            self.queue_wait.observe((now - execution.created_at).max(0) * 1_000);
        }
    }

    pub(crate) fn operation(&self, name: &'static str, code: Option<Code>) {
        let outcome = code.map_or("ok", Code::as_str);
        *self.operations.lock().expect("no holder of this lock panics").entry((name, outcome)).or_default() += 1;
    }

    /// An admission was refused, and by what.
    pub(crate) fn refused(&self, why: &str) {
        *self.refusals.lock().expect("no holder of this lock panics").entry(why.to_owned()).or_default() += 1;
    }

    /// A budget refused an admission for what is used up in a dimension.
    pub(crate) fn refused_by_budget(&self, dimension: &str) {
        self.refused("budget");
        let mut refusals = self.budget_refusals.lock().expect("no holder of this lock panics");
        let known = refusals.contains_key(dimension) || refusals.len() < LABELS_MAX;
        *refusals.entry(if known { dimension } else { OTHER }.to_owned()).or_default() += 1;
    }

    /// A quota refused an admission: by its rate, by its concurrency, or because it does not exist.
    pub(crate) fn refused_by_quota(&self, limit: &'static str) {
        self.refused("quota");
        *self.quota_refusals.lock().expect("no holder of this lock panics").entry(limit).or_default() += 1;
    }

    /// A commit charged a budget.
    pub(crate) fn charged(
        &self,
        (namespace, budget): (&str, &str),
        spent: &BTreeMap<String, i64>,
        reserved: &BTreeMap<String, i64>,
        refused: u64,
    ) {
        let mut charges = self.charges.lock().expect("no holder of this lock panics");
        let amount = |amount: i64| u64::try_from(amount).unwrap_or(0);
        for (dimension, held) in reserved {
            let label = (namespace.to_owned(), budget.to_owned(), dimension.clone());
            let known = charges.contains_key(&label) || charges.len() < LABELS_MAX;
            let label = if known { label } else { (OTHER.to_owned(), OTHER.to_owned(), OTHER.to_owned()) };
            let charged = charges.entry(label).or_default();
            charged.spent += amount(spent.get(dimension).copied().unwrap_or(0));
            charged.refused += refused;
            charged.reserved = if known { amount(*held) } else { 0 };
        }
    }

    /// The amounts spent, held and refused of budgets that this engine charged, by dimension.
    pub fn charges(&self) -> BTreeMap<BudgetLabel, BudgetCharges> {
        self.charges.lock().expect("no holder of this lock panics").clone()
    }

    /// A commit changed a provider.
    pub(crate) fn provider_changed(&self, status: &ProviderStatus) {
        let mut providers = self.providers.lock().expect("no holder of this lock panics");
        let label = (status.namespace.clone(), status.name.clone());
        if providers.contains_key(&label) || providers.len() < LABELS_MAX {
            providers.insert(label, status.clone());
        }
    }

    /// The providers that this engine asked, as its last commit left them.
    pub fn providers(&self) -> Vec<ProviderStatus> {
        self.providers.lock().expect("no holder of this lock panics").values().cloned().collect()
    }

    /// A claim ended this way after this long. It counts for every lane it got work from, or asked in vain.
    pub(crate) fn claim_ended<'l>(&self, lanes: impl Iterator<Item = &'l str>, exit: ClaimExit, us: i64) {
        let mut exits = self.claim_exits.lock().expect("no holder of this lock panics");
        for lane in lanes {
            let label = (lane.to_owned(), exit.as_str());
            let known = exits.contains_key(&label) || exits.len() < LABELS_MAX;
            let label = if known { label } else { (OTHER.to_owned(), exit.as_str()) };
            exits.entry(label).or_default().observe(us);
        }
    }

    /// Something happened to an execution that subscribers hear of.
    pub(crate) fn happened(&self, events: &[EventType]) {
        if events.is_empty() {
            return;
        }
        let mut counts = self.events.lock().expect("no holder of this lock panics");
        for event in events {
            *counts.entry(event.as_str()).or_default() += 1;
        }
    }

    /// The events of executions, by their names.
    pub fn events(&self) -> BTreeMap<&'static str, u64> {
        self.events.lock().expect("no holder of this lock panics").clone()
    }

    /// Admissions refused by budgets, by dimension.
    pub fn budget_refusals(&self) -> BTreeMap<String, u64> {
        self.budget_refusals.lock().expect("no holder of this lock panics").clone()
    }

    /// Admissions refused by quotas: `rate`, `concurrency` or `missing`.
    pub fn quota_refusals(&self) -> BTreeMap<&'static str, u64> {
        self.quota_refusals.lock().expect("no holder of this lock panics").clone()
    }

    /// How long claims took, by lane and by how they ended.
    pub fn claim_exits(&self) -> BTreeMap<(String, &'static str), Arc<Histogram>> {
        self.claim_exits.lock().expect("no holder of this lock panics").clone()
    }

    /// Operations by name and outcome.
    pub fn operations(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.operations.lock().expect("no holder of this lock panics").clone()
    }

    /// Refused admissions by reason.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        self.refusals.lock().expect("no holder of this lock panics").clone()
    }
}
