//! The leases that a worker holds, and what this process knows of each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ff_core::lease::LeaseFence;
use ff_core::op::parts::{LeaseLoss, Renewal, RenewalOutcome};
use ff_core::{ExecutionId, LeaseId, limits};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One lease, as its worker knows it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) execution_id: ExecutionId,
    pub(crate) fence: LeaseFence,
    ttl: Duration,
    /// Fires when the lease is lost.
    lost: CancellationToken,
    loss: OnceLock<LeaseLoss>,
    failures: AtomicU32,
    /// When it runs out, as far as this process knows.
    until: Mutex<Instant>,
}

impl Lease {
    pub(crate) fn new(execution_id: ExecutionId, fence: LeaseFence, ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            execution_id,
            fence,
            ttl,
            lost: CancellationToken::new(),
            loss: OnceLock::new(),
            failures: AtomicU32::new(0),
            until: Mutex::new(Instant::now() + ttl),
        })
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal { execution_id: self.execution_id, fence: self.fence, lease_ttl_ms: None }
    }

    /// Records the outcome of a renewal that was requested at this moment.
    pub(crate) fn note(&self, outcome: &RenewalOutcome, asked_at: Instant) {
        match outcome {
            RenewalOutcome::Renewed { .. } => {
                self.failures.store(0, Ordering::Relaxed);
                *self.until.lock().expect("no holder of this lock panics") = asked_at + self.ttl;
            }
            RenewalOutcome::Lost { reason, .. } => self.lose(*reason),
            RenewalOutcome::Failed { .. } | RenewalOutcome::Unknown(_) => self.failed(),
        }
    }

    /// Records a renewal without an answer. A lease whose time is up by now is lost.
    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if *self.until.lock().expect("no holder of this lock panics") <= Instant::now() {
            self.lose(LeaseLoss::Expired);
        }
    }

    pub(crate) fn lose(&self, reason: LeaseLoss) {
        if self.loss.set(reason).is_ok() {
            tracing::warn!(execution = %self.execution_id, %reason, "a lease is lost");
        }
        self.lost.cancel();
    }

    pub(crate) fn loss(&self) -> Option<LeaseLoss> {
        self.loss.get().copied()
    }

    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.loss().is_none() && self.failures() < limits::RENEWAL_FAILURES_MAX
    }
}

/// All leases of a worker.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_id: Mutex<BTreeMap<LeaseId, Arc<Lease>>>,
    /// Notified whenever a lease is removed.
    let_go: Notify,
}

impl Leases {
    pub(crate) fn add(&self, lease: Arc<Lease>) {
        self.by_id().insert(lease.fence.lease_id, lease);
    }

    pub(crate) fn remove(&self, lease_id: &LeaseId) {
        self.by_id().remove(lease_id);
        self.let_go.notify_waiters();
    }

    /// The leases worth renewing.
    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        self.by_id().values().filter(|lease| lease.loss().is_none()).cloned().collect()
    }

    /// Returns when no lease is held.
    pub(crate) async fn none_left(&self) {
        loop {
            let let_go = self.let_go.notified();
            if self.by_id().is_empty() {
                return;
            }
            let_go.await;
        }
    }

    fn by_id(&self) -> std::sync::MutexGuard<'_, BTreeMap<LeaseId, Arc<Lease>>> {
        self.by_id.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ff_core::{AttemptIndex, Error, LeaseEpoch};

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_unhealthy_after_three_failures_in_a_row_and_a_success_resets_the_count() {
        let fence = LeaseFence { attempt: AttemptIndex(0), lease_id: LeaseId::default(), epoch: LeaseEpoch(1) };
        let execution_id = ExecutionId::default();
        let lease = Lease::new(execution_id, fence, Duration::from_secs(30));
        let lease_id = fence.lease_id;
        let failed = || RenewalOutcome::Failed { execution_id, lease_id, error: Error::of(ff_core::Code::Unavailable) };
        lease.failed();
        lease.note(&failed(), Instant::now());
        assert!(lease.is_healthy() && lease.failures() == 2);
        lease.note(&RenewalOutcome::Renewed { execution_id, lease_id, expires_at: 1 }, Instant::now());
        assert_eq!(lease.failures(), 0);
        (0..3).for_each(|_| lease.failed());
        assert!(!lease.is_healthy() && lease.loss().is_none(), "the lease may still be renewed");
        lease.note(&RenewalOutcome::Renewed { execution_id, lease_id, expires_at: 1 }, Instant::now());
        assert!(lease.is_healthy());
        tokio::time::advance(Duration::from_secs(30)).await;
        lease.failed();
        assert_eq!(lease.loss(), Some(LeaseLoss::Expired), "its time is up and no renewal came through");
        assert!(lease.lost().is_cancelled());
    }
}
