//! The heartbeat: one call in the background keeps the registration and renews every lease.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ff_core::op::parts::RenewalOutcome;
use ff_core::op::{HeartbeatWorker, RegisterWorker, RenewLeases, heartbeat_worker, register_worker, renew_leases};
use ff_core::{Code, limits};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::Instrument;

use super::Shared;
use crate::error::{Result, SdkError};
use crate::task::Lease;

/// Beats until the worker and all of its tasks are dropped.
pub(super) async fn run(worker: Weak<Shared>, lease_ttl: Duration) {
    let period = lease_ttl / 3;
    let mut tick = tokio::time::interval_at(Instant::now() + period, period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut last = Instant::now();
    loop {
        tick.tick().await;
        let Some(worker) = worker.upgrade() else { return };
        let leases = worker.leases.all();
        // A registration lives twice as long as a lease, so an idle worker beats half as often.
        if leases.is_empty() && last.elapsed() < period * 3 / 2 {
            continue;
        }
        last = Instant::now();
        worker.beat(&leases, period).await;
    }
}

impl Shared {
    /// Renews everything once, within a period.
    async fn beat(&self, leases: &[Arc<Lease>], period: Duration) {
        let mut chunks: Vec<&[Arc<Lease>]> = leases.chunks(limits::RENEWALS_MAX).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let asked_at = Instant::now();
            let span = tracing::debug_span!("renew_lease", instance = self.config.instance_id, leases = chunk.len());
            let renewed = match tokio::time::timeout(period, self.renew(chunk).instrument(span)).await {
                Ok(renewed) => renewed,
                Err(_) => Err(SdkError::Unreachable("a heartbeat has no answer".into())),
            };
            match renewed {
                Ok(outcomes) => {
                    for (lease, outcome) in chunk.iter().zip(&outcomes) {
                        lease.note(outcome, asked_at);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, leases = chunk.len(), "a heartbeat failed");
                    chunk.iter().for_each(|lease| lease.failed());
                }
            }
        }
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Result<Vec<RenewalOutcome>> {
        let leases: Vec<_> = leases.iter().map(|lease| lease.renewal()).collect();
        let args = heartbeat_worker::Args {
            instance_id: self.config.instance_id.clone(),
            namespace: None,
            nonce: self.nonce.clone(),
            leases: leases.clone(),
        };
        match self.client.call::<HeartbeatWorker>(args).await {
            Ok(answer) => return Ok(answer.leases),
            Err(error) => match error.code() {
                // The registration ran out, or an operator removed it. The leases are not affected.
                Some(Code::WorkerNotFound) => {
                    let digest = &self.resolved.digest;
                    tracing::warn!(digest, "the worker's registration is gone; it registers again");
                    self.register().await?;
                }
                Some(Code::DuplicateWorkerInstance) => {
                    tracing::error!("another process has taken this worker's instance id; it claims nothing more");
                    self.stopping.cancel();
                }
                // Leases live in other partitions than registrations, so renewing them may still work.
                _ if !leases.is_empty() => tracing::warn!(%error, "a heartbeat failed; its leases are renewed alone"),
                _ => return Err(error),
            },
        }
        Ok(self.client.call::<RenewLeases>(renew_leases::Args { leases }).await?.results)
    }

    /// Registers the worker, or replaces its earlier registration.
    pub(super) async fn register(&self) -> Result<()> {
        let args = register_worker::Args {
            instance_id: self.config.instance_id.clone(),
            worker_id: self.config.worker_id.clone(),
            namespace: None,
            lanes: self.config.lanes.clone(),
            capabilities: self.resolved.capabilities.clone(),
            kinds: self.config.kinds.clone(),
            capacity: Some(self.resolved.capacity),
            version: self.config.version.clone(),
            nonce: self.nonce.clone(),
            lease_ttl_ms: Some(self.resolved.lease_ttl_ms),
            tools: self.config.tools.clone(),
        };
        self.client.call::<RegisterWorker>(args).await.map(drop)
    }
}
