//! Re-derives what can be derived, and repairs what differs: index entries from documents, slots from their quota.
//!
//! Commits are atomic, so there is nothing to repair unless a store lost something, a newer version left something this
//! one derives differently, or there is a defect. The reconciler exists so that such a thing is found, repaired under
//! version guards and reported, rather than felt by an execution that is never run again.
//!
//! Cost: a round looks at no more than [`ROUND_MAX`] entries of each partition and goes on where it stopped; an empty
//! partition costs one read.

mod entries;
mod quotas;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ff_core::{IndexName, Key, Partition};

use crate::scheduler::Scheduler;
use crate::servers::Servers;
use crate::transaction::Transactor;

/// Entries of one partition looked at in one round.
const ROUND_MAX: usize = 1_000;
/// Entries read at once.
const PAGE: usize = 200;

/// The findings of a round of the reconciler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Entries and documents looked at.
    pub checked: u64,
    /// Entries and counters put right.
    pub repaired: u64,
    /// Documents that cannot be read; they are left alone.
    pub unreadable: u64,
}

impl Reconciled {
    fn add(&mut self, other: Self) {
        self.checked += other.checked;
        self.repaired += other.repaired;
        self.unreadable += other.unreadable;
    }
}

/// Where a round of one partition stopped.
#[derive(Debug, Clone, Default)]
struct Position {
    index: Option<IndexName>,
    after: Option<(i64, Key)>,
}

/// Checks partitions.
#[derive(Clone)]
pub(crate) struct Reconciler {
    transactor: Transactor,
    servers: Servers,
    scheduler: Scheduler,
}

impl Reconciler {
    pub(crate) fn new(servers: Servers, scheduler: Scheduler) -> Self {
        Self { transactor: scheduler.transactor().clone(), servers, scheduler }
    }

    /// Checks one partition after the other, for as long as the engine lives.
    pub(crate) async fn run(self) {
        let period_ms = self.transactor.options().reconcile_ms;
        if period_ms <= 0 {
            return;
        }
        let partitions: Vec<Partition> = self.transactor.partitions().all().collect();
        let mut positions = vec![Position::default(); partitions.len()];
        let pause_ms = (period_ms / i64::try_from(partitions.len()).unwrap_or(i64::MAX)).max(1);
        let mut unfinished: BTreeSet<Partition> = partitions.iter().copied().collect();
        loop {
            for (partition, position) in partitions.iter().zip(&mut positions) {
                self.transactor.env().sleep(pause_ms).await;
                if self.servers.rank(*partition) == 0 {
                    let found = self.reconcile_round(*partition, position).await;
                    self.report(*partition, found);
                    if position.index.is_some() {
                        continue;
                    }
                }
                unfinished.remove(partition);
            }
            if unfinished.is_empty() {
                self.transactor.metrics().reconciled.fetch_add(1, Ordering::Relaxed);
                unfinished.extend(&partitions);
            }
        }
    }

    /// Checks everything in one partition now.
    pub(crate) async fn reconcile(&self, partition: Partition) -> Reconciled {
        let mut total = Reconciled::default();
        let mut position = Position::default();
        loop {
            total.add(self.reconcile_round(partition, &mut position).await);
            if position.index.is_none() {
                break;
            }
        }
        self.report(partition, total);
        total
    }

    async fn reconcile_round(&self, partition: Partition, position: &mut Position) -> Reconciled {
        let mut found = self.reconcile_entries(partition, position).await;
        if position.index.is_none() && partition.family == ff_core::Family::Quota {
            found.add(self.reconcile_quotas(partition).await);
            found.add(self.reconcile_keys(partition).await);
        }
        found
    }

    fn report(&self, partition: Partition, found: Reconciled) {
        self.transactor.metrics().repairs.fetch_add(found.repaired, Ordering::Relaxed);
        if found.repaired > 0 || found.unreadable > 0 {
            tracing::warn!(%partition, checked = found.checked, repaired = found.repaired, unreadable = found.unreadable,
                "the reconciler found something to repair");
        }
    }
}
