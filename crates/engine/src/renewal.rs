//! Renewing leases: all leases of one partition in one commit call, each an independent batch with its own outcome.
//!
//! A renewal moves only the instant beside the document, under the fence and while the lease lives. The store decides
//! it; this module finds the reason of a refusal.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::lease::LeaseEnd;
use ff_core::op::parts::{LeaseLoss, Renewal, RenewalOutcome};
use ff_core::{Code, Document, Error, Key, Partition, Result};
use ff_store::{Conflict, ConflictReason, Fence, StoredDocument};

use crate::caller::Caller;
use crate::env;
use crate::transaction::{Command, Transactor, Tx};
use crate::visibility::{check_reachable, not_found};

/// The time limit for one partition. After it, the renewals there are answered as failed, so that a slow partition does
/// not hold up the renewals of the others until their worker gives up all of them.
const PATIENCE_MS: i64 = 3_000;

/// An execution as it was read, if it is there.
type Found = Result<Option<Execution>>;

impl Transactor {
    /// Renews each lease on its own, and returns the outcome of each, in order.
    pub(crate) async fn renew_all(&self, caller: &Caller, leases: &[Renewal]) -> Vec<RenewalOutcome> {
        let mut outcomes: BTreeMap<usize, RenewalOutcome> = BTreeMap::new();
        let mut groups: BTreeMap<Partition, Vec<(usize, &Renewal)>> = BTreeMap::new();
        for (place, renewal) in leases.iter().enumerate() {
            match self.check_id(&renewal.execution_id) {
                Ok(()) => groups.entry(renewal.execution_id.partition()).or_default().push((place, renewal)),
                Err(error) => drop(outcomes.insert(place, lost(renewal, LeaseLoss::NotFound, error))),
            }
        }
        let renewing = groups.into_iter().map(|(partition, group)| async move {
            let all = group.clone();
            let renewed = self.renew_group(caller, partition, group);
            env::within(self.env_handle(), PATIENCE_MS, renewed).await.unwrap_or_else(|| {
                let slow = Error::of(Code::Unavailable).retry_after(1_000);
                all.into_iter().map(|(place, one)| (place, failed(one, slow.clone()))).collect()
            })
        });
        outcomes.extend(futures_util::future::join_all(renewing).await.into_iter().flatten());
        outcomes.into_values().collect()
    }

    async fn renew_group(
        &self,
        caller: &Caller,
        partition: Partition,
        group: Vec<(usize, &Renewal)>,
    ) -> Vec<(usize, RenewalOutcome)> {
        let mut outcomes = Vec::with_capacity(group.len());
        let (known, unknown): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|(place, renewal)| (place, renewal, self.cached_ttl(caller, renewal)))
            .partition(|(_, _, ttl_ms)| ttl_ms.is_some());
        let mut ready: Vec<(usize, &Renewal, i64)> =
            known.into_iter().filter_map(|(place, renewal, ttl_ms)| Some((place, renewal, ttl_ms?))).collect();
        let unknown: Vec<(usize, &Renewal)> = unknown.into_iter().map(|(place, renewal, _)| (place, renewal)).collect();
        match self.look_up(partition, &unknown).await {
            Ok(found) => {
                for ((place, renewal), found) in unknown.into_iter().zip(found) {
                    match found
                        .map_err(|error| Box::new(failed(renewal, error)))
                        .and_then(|found| judge(caller, renewal, found.as_ref()))
                    {
                        Ok(ttl_ms) => ready.push((place, renewal, ttl_ms)),
                        Err(outcome) => outcomes.push((place, *outcome)),
                    }
                }
            }
            Err(error) => outcomes.extend(unknown.into_iter().map(|(place, one)| (place, failed(one, error.clone())))),
        }
        outcomes.extend(self.send_renewals(caller, partition, ready).await);
        outcomes
    }

    /// The TTL of the renewal, if the engine knows the lease: the one that the caller asks for, or the lease's own.
    fn cached_ttl(&self, caller: &Caller, renewal: &Renewal) -> Option<i64> {
        let cached = self.cache().get(&Execution::key_of(&renewal.execution_id))?;
        judge(caller, renewal, Some(&cached.execution)).ok()
    }

    /// Reads the executions. One that cannot be decoded is an error of its own and does not affect the others.
    async fn look_up(&self, partition: Partition, renewals: &[(usize, &Renewal)]) -> Result<Vec<Found>> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        let keys = renewals.iter().map(|(_, renewal)| Execution::key_of(&renewal.execution_id)).collect();
        let found = self.store().documents(partition, keys).await?;
        let read = |stored: StoredDocument| {
            Execution::decode(&stored.body).inspect_err(|error| self.pass_over(&stored.key, error))
        };
        Ok(found.into_iter().map(|stored| stored.map(read).transpose()).collect())
    }

    async fn send_renewals(
        &self,
        caller: &Caller,
        partition: Partition,
        ready: Vec<(usize, &Renewal, i64)>,
    ) -> Vec<(usize, RenewalOutcome)> {
        let mut prepared = Vec::with_capacity(ready.len());
        let mut sent = Vec::with_capacity(ready.len());
        let mut outcomes = Vec::with_capacity(ready.len());
        for (place, renewal, ttl_ms) in ready {
            let key = Execution::key_of(&renewal.execution_id);
            let fence = Fence { epoch: renewal.fence.epoch, lease: renewal.fence.lease_id };
            match self.prepare(partition, self.fresh_command(), &Renew { key: key.clone(), fence, ttl_ms }).await {
                Ok(((), batch)) => {
                    prepared.push(batch);
                    sent.push((place, renewal, ttl_ms, key, fence));
                }
                Err(error) => outcomes.push((place, failed(renewal, error))),
            }
        }
        if prepared.is_empty() {
            return outcomes;
        }
        let results = match self.send_all_timed(partition, prepared).await {
            Ok(results) => results,
            Err(error) => {
                outcomes.extend(sent.into_iter().map(|(place, one, ..)| (place, failed(one, error.clone()))));
                return outcomes;
            }
        };
        let mut refused = Vec::new();
        for ((place, renewal, ttl_ms, key, fence), result) in sent.into_iter().zip(results) {
            match result {
                Ok(at) => {
                    let expires_at = self.cache().renewed(&key, fence, at + ttl_ms);
                    let (execution_id, lease_id) = (renewal.execution_id, renewal.fence.lease_id);
                    let outcome = RenewalOutcome::Renewed { execution_id, lease_id, expires_at };
                    outcomes.push((place, outcome));
                }
                Err(refusal) => refused.push((place, renewal, refusal.conflict)),
            }
        }
        outcomes.extend(self.explain_refusals(caller, partition, refused).await);
        outcomes
    }

    /// Finds the reasons of refused renewals in the documents.
    async fn explain_refusals(
        &self,
        caller: &Caller,
        partition: Partition,
        refused: Vec<(usize, &Renewal, Conflict)>,
    ) -> Vec<(usize, RenewalOutcome)> {
        let asked: Vec<(usize, &Renewal)> = refused.iter().map(|(place, renewal, _)| (*place, *renewal)).collect();
        let found = match self.look_up(partition, &asked).await {
            Ok(found) => found,
            Err(error) => return asked.into_iter().map(|(place, one)| (place, failed(one, error.clone()))).collect(),
        };
        let explained = refused.into_iter().zip(found).map(|((place, renewal, conflict), found)| {
            let judged = found.map_err(|error| Box::new(failed(renewal, error)));
            let judged = judged.and_then(|found| judge(caller, renewal, found.as_ref()));
            let outcome = match (judged, conflict.why) {
                (Err(outcome), _) => *outcome,
                // The lease ran out and its timer has not fired yet.
                (Ok(_), ConflictReason::LeaseOver(at)) => {
                    lost(renewal, LeaseLoss::Expired, Error::of(Code::LeaseExpired).with("ended_at", at))
                }
                (Ok(_), _) => failed(renewal, Error::of(Code::Contention).retry_after(100)),
            };
            (place, outcome)
        });
        explained.collect()
    }
}

/// Whether a document allows a renewal, and for how long; otherwise the reason why not.
fn judge(caller: &Caller, renewal: &Renewal, found: Option<&Execution>) -> Result<i64, Box<RenewalOutcome>> {
    let not_there = || Box::new(lost(renewal, LeaseLoss::NotFound, not_found(&renewal.execution_id)));
    let execution = found.ok_or_else(not_there)?;
    check_reachable(caller, execution).map_err(|error| Box::new(lost(renewal, LeaseLoss::NotFound, error)))?;
    execution.check_fence(&renewal.fence).map_err(|error| {
        let cancelled = execution.lease.as_ref().is_some_and(|lease| lease.end == LeaseEnd::ExecutionCancelled);
        let reason = match error.code {
            Code::LeaseExpired => LeaseLoss::Expired,
            Code::LeaseRevoked if cancelled => LeaseLoss::Cancelled,
            Code::LeaseRevoked => LeaseLoss::Revoked,
            _ => LeaseLoss::Stale,
        };
        Box::new(lost(renewal, reason, error))
    })?;
    Ok(renewal.lease_ttl_ms.unwrap_or_else(|| execution.lease.as_ref().map_or(0, |lease| lease.ttl_ms)))
}

fn lost(renewal: &Renewal, reason: LeaseLoss, error: Error) -> RenewalOutcome {
    let (execution_id, lease_id) = (renewal.execution_id, renewal.fence.lease_id);
    RenewalOutcome::Lost { execution_id, lease_id, reason, error }
}

fn failed(renewal: &Renewal, error: Error) -> RenewalOutcome {
    let (execution_id, lease_id) = (renewal.execution_id, renewal.fence.lease_id);
    RenewalOutcome::Failed { execution_id, lease_id, error }
}

/// Moves the instant beside a document, without reading the document.
pub(crate) struct Renew {
    pub(crate) key: Key,
    pub(crate) fence: Fence,
    pub(crate) ttl_ms: i64,
}

impl Command for Renew {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        tx.renew_unread(&self.key, self.fence, self.ttl_ms);
        Ok(())
    }
}
