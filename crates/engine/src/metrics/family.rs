//! The counters as values: a program that embeds the engine puts them into a registry of its own, the server onto its
//! page. Names and units follow the conventions of Prometheus.

use std::sync::atomic::Ordering;

use super::{BUCKETS_US, Histogram, Metrics};

/// All samples of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name, unit and all.
    pub name: &'static str,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// How it moves.
    pub kind: FamilyKind,
    /// One for each set of labels.
    pub samples: Vec<Sample>,
}

/// How the values of a family move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations in buckets.
    Histogram,
}

impl FamilyKind {
    /// Its name in the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// One value with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: SampleValue,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// A number.
    Number(u64),
    /// A time in microseconds, shown in seconds.
    Time(u64),
    /// Observations: each bucket's upper bound in microseconds with the observations in it and all below, and their
    /// sum in microseconds. The last bound is [`u64::MAX`].
    Histogram {
        /// Cumulative.
        buckets: Vec<(u64, u64)>,
        /// Of all observations.
        sum_us: u64,
    },
}

impl Family {
    /// A family without samples.
    pub fn new(name: &'static str, kind: FamilyKind, help: &'static str) -> Self {
        Self { name, help, kind, samples: Vec::new() }
    }

    /// Adds a sample.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: SampleValue) -> Self {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value });
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(self, labels: &[(&'static str, &str)], value: u64) -> Self {
        self.with(labels, SampleValue::Number(value))
    }
}

impl Histogram {
    /// Its observations as a sample.
    pub fn sample(&self) -> SampleValue {
        let (counts, sum_us) = self.snapshot();
        let mut total = 0;
        let buckets = BUCKETS_US.iter().zip(counts).map(|(bound, count)| {
            total += count;
            (*bound, total)
        });
        SampleValue::Histogram { buckets: buckets.collect(), sum_us }
    }
}

impl Metrics {
    /// Everything the engine counts.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.labelled();
        for (name, help, counter) in [
            ("flowfabric_commit_conflicts_total", "Commits that met a conflict.", &self.conflicts),
            (
                "flowfabric_partitions_passed_over_total",
                "Partitions a claim could not read.",
                &self.partitions_passed_over,
            ),
            ("flowfabric_undecodable_total", "Stored entries that could not be decoded.", &self.undecodable),
            ("flowfabric_repairs_total", "Things the reconcilers repaired.", &self.repairs),
            ("flowfabric_reconciled_total", "Times the reconcilers have been through everything.", &self.reconciled),
            ("flowfabric_store_reads_total", "Reads sent to the store.", &self.reads),
        ] {
            let value = counter.load(Ordering::Relaxed);
            families.push(Family::new(name, FamilyKind::Counter, help).number(&[], value));
        }
        for (name, help, histogram) in [
            ("flowfabric_commit_seconds", "How long commits took.", &self.commits),
            ("flowfabric_timer_lateness_seconds", "How late timers fired.", &self.timer_lateness),
            ("flowfabric_lease_commit_seconds", "From a candidate to its lease.", &self.claims),
            ("flowfabric_queue_wait_seconds", "From creation to the first claim.", &self.queue_wait),
        ] {
            families.push(Family::new(name, FamilyKind::Histogram, help).with(&[], histogram.sample()));
        }
        families
    }

    /// The charges to budgets through this engine.
    fn spending(&self) -> [Family; 3] {
        let mut spent = Family::new("flowfabric_budget_spent_total", FamilyKind::Counter, "What was spent, by budget.");
        let help = "What reservations hold, by budget, as of this server's last charge.";
        let mut reserved = Family::new("flowfabric_budget_reserved", FamilyKind::Gauge, help);
        let help = "Reservations that were refused, by budget.";
        let mut refused = Family::new("flowfabric_budget_refused_total", FamilyKind::Counter, help);
        for ((namespace, budget, dimension), charges) in self.charges() {
            let labels = [("namespace", &*namespace), ("budget", &*budget), ("dimension", &*dimension)];
            spent = spent.number(&labels, charges.spent);
            reserved = reserved.number(&labels, charges.reserved);
            refused = refused.number(&labels, charges.refused);
        }
        [spent, reserved, refused]
    }

    /// The limits of providers that this engine asked, as they are in effect, and what is used of them.
    fn provider_limits(&self) -> [Family; 4] {
        let help = "Limits of a provider as they are in effect, as of this server's last call.";
        let mut effective = Family::new("flowfabric_provider_effective_limit", FamilyKind::Gauge, help);
        let help = "Calls to a provider under way and booked, as of this server's last call.";
        let mut calls = Family::new("flowfabric_provider_calls", FamilyKind::Gauge, help);
        let help = "Calls that a provider was let through, on all servers.";
        let mut granted = Family::new("flowfabric_provider_granted_total", FamilyKind::Counter, help);
        let help = "Calls that a provider itself refused as too many, on all servers.";
        let mut throttled = Family::new("flowfabric_provider_throttled_total", FamilyKind::Counter, help);
        for status in self.providers() {
            let labels = [("namespace", &*status.namespace), ("provider", &*status.name)];
            let of = |label: (&'static str, &'static str)| [labels[0], labels[1], label];
            effective = effective.number(&of(("limit", "requests")), status.effective.requests);
            effective = effective.number(&of(("limit", "tokens")), status.effective.tokens);
            effective = effective.number(&of(("limit", "concurrent")), u64::from(status.effective.concurrent));
            calls = calls.number(&of(("state", "under_way")), u64::from(status.in_use));
            calls = calls.number(&of(("state", "booked")), u64::from(status.booked));
            granted = granted.number(&labels, status.granted);
            throttled = throttled.number(&labels, status.throttled);
        }
        [effective, calls, granted, throttled]
    }

    fn labelled(&self) -> Vec<Family> {
        let counter = |name, help| Family::new(name, FamilyKind::Counter, help);
        let mut operations = counter("flowfabric_operations_total", "Operations by name and outcome.");
        for ((name, outcome), count) in self.operations() {
            operations = operations.number(&[("operation", name), ("outcome", outcome)], count);
        }
        let mut events = counter("flowfabric_transitions_total", "Ends, leases and signals of executions by outcome.");
        for (event, count) in self.events() {
            events = events.number(&[("outcome", event)], count);
        }
        let mut refusals = counter("flowfabric_admission_refusals_total", "Refused admissions by reason.");
        for (why, count) in self.refusals() {
            refusals = refusals.number(&[("reason", &why)], count);
        }
        let mut budgets = counter("flowfabric_budget_refusals_total", "Admissions refused by a budget, by dimension.");
        for (dimension, count) in self.budget_refusals() {
            budgets = budgets.number(&[("dimension", &dimension)], count);
        }
        let mut quotas = counter("flowfabric_quota_refusals_total", "Admissions refused by a quota, by limit.");
        for (limit, count) in self.quota_refusals() {
            quotas = quotas.number(&[("limit", limit)], count);
        }
        let help = "Services that panicked and were begun again, by name.";
        let mut services = counter("flowfabric_service_restarts_total", help);
        for (service, count) in self.service_restarts() {
            services = services.number(&[("service", service)], count);
        }
        let help = "How long claims took and waited, by lane and by how they ended.";
        let mut claims = Family::new("flowfabric_claim_seconds", FamilyKind::Histogram, help);
        for ((lane, exit), histogram) in self.claim_exits() {
            claims = claims.with(&[("lane", &lane), ("exit", exit)], histogram.sample());
        }
        let mut families = vec![operations, events, refusals, budgets, quotas, services, claims];
        families.extend(self.spending());
        families.extend(self.provider_limits());
        families
    }
}
