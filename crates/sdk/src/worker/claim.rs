//! Claims work. A permit is taken before anything is claimed, so a full worker never claims a task that it cannot run.

use std::time::Duration;

use ff_core::lease::ClaimGrant;
use ff_core::limits;
use ff_core::op::ClaimMode;
use ff_core::op::view::Task;
use ff_core::op::{Claim, ClaimFromGrant, ClaimFromReclaimGrant, ReturnGrant, claim, claim_from_grant, return_grant};
use tokio::sync::OwnedSemaphorePermit;

use super::{FlowFabricWorker, Shared};
use crate::error::{Result, SdkError};
use crate::task::ClaimedTask;

impl FlowFabricWorker {
    /// Claims one task, waiting for it as long as the configuration says; `None` when there was none.
    /// [`SdkError::WorkerAtCapacity`] at once when all permits are taken.
    pub async fn claim_next(&self) -> Result<Option<ClaimedTask>> {
        Ok(self.claim_up_to(1).await?.pop())
    }

    /// Claims up to so many tasks in one call, but not more than there are permits; waits for the first of them.
    pub async fn claim_up_to(&self, max_tasks: usize) -> Result<Vec<ClaimedTask>> {
        let first = self.permit()?;
        self.claim_with(first, max_tasks).await
    }

    /// Waits for a permit, then claims as many tasks as there are permits, in one call. This is the call for a loop:
    /// an empty answer means that there was no work for the whole wait, or that the worker is stopping.
    pub async fn claim_all_it_can(&self) -> Result<Vec<ClaimedTask>> {
        let permit = tokio::select! {
            biased;
            () = self.shared.stopping.cancelled() => return Ok(Vec::new()),
            permit = self.shared.permits.clone().acquire_owned() => permit,
        };
        match permit {
            Ok(permit) => self.claim_with(permit, limits::CLAIM_TASKS_MAX).await,
            Err(_closed) => Ok(Vec::new()),
        }
    }

    /// A grant for one execution of a lane, which no other worker gets while it lasts (1 ms to 60 s); `None` when nothing
    /// was claimable for the whole wait. It takes no permit: it is claimed by
    /// [`claim_from_grant`](Self::claim_from_grant), handed back, or lapses.
    pub async fn obtain_grant(&self, lane: &str, grant_ttl: Duration) -> Result<Option<ClaimGrant>> {
        let args = claim::Args {
            lanes: [lane.to_owned()].into(),
            mode: Some(ClaimMode::Grant),
            grant_ttl_ms: Some(i64::try_from(grant_ttl.as_millis()).unwrap_or(i64::MAX)),
            ..self.ask(1)
        };
        Ok(self.unless_stopping(args).await?.grants.pop())
    }

    /// Hands a grant back: its execution is queued again at once. Returns whether the grant was still there.
    pub async fn hand_back_grant(&self, grant: &ClaimGrant) -> Result<bool> {
        let args = return_grant::Args {
            instance_id: self.config().instance_id.clone(),
            grant_id: grant.grant_id,
            execution_id: grant.execution_id,
            namespace: None,
        };
        Ok(self.shared.client.call::<ReturnGrant>(args).await?.changed)
    }

    /// Turns a grant into a task; an interrupted attempt continues.
    pub async fn claim_from_grant(&self, grant: &ClaimGrant) -> Result<ClaimedTask> {
        let permit = self.permit()?;
        let claimed = self.shared.client.call::<ClaimFromGrant>(self.granted(grant)).await;
        self.shared.log_claim(claimed.as_ref().map(|_| 1));
        Ok(self.task(claimed?.task, permit))
    }

    /// Claims from a grant, but only an attempt that was interrupted or lost.
    pub async fn claim_from_reclaim_grant(&self, grant: &ClaimGrant) -> Result<ClaimedTask> {
        let permit = self.permit()?;
        let claimed = self.shared.client.call::<ClaimFromReclaimGrant>(self.granted(grant)).await;
        self.shared.log_claim(claimed.as_ref().map(|_| 1));
        Ok(self.task(claimed?.task, permit))
    }

    /// Claims one task of a lane in two steps: the engine's scheduler grants it for so long, then the grant is claimed. A
    /// grant that cannot be claimed is handed back.
    pub async fn claim_via_server(&self, lane: &str, grant_ttl: Duration) -> Result<Option<ClaimedTask>> {
        let permit = self.permit()?;
        let Some(grant) = self.obtain_grant(lane, grant_ttl).await? else { return Ok(None) };
        let claimed = self.shared.client.call::<ClaimFromGrant>(self.granted(&grant)).await;
        self.shared.log_claim(claimed.as_ref().map(|_| 1));
        match claimed {
            Ok(claimed) => Ok(Some(self.task(claimed.task, permit))),
            Err(error) => {
                // If this fails, too, the grant lapses by itself.
                let _ = self.hand_back_grant(&grant).await;
                Err(error)
            }
        }
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let max_concurrent_tasks = self.config().max_concurrent_tasks;
        let full = |_| SdkError::WorkerAtCapacity { max_concurrent_tasks };
        self.shared.permits.clone().try_acquire_owned().map_err(full)
    }

    /// Claims with one permit and any others that are free; unused permits go back.
    pub(super) async fn claim_with(&self, first: OwnedSemaphorePermit, max_tasks: usize) -> Result<Vec<ClaimedTask>> {
        let max_tasks = max_tasks.clamp(1, limits::CLAIM_TASKS_MAX);
        let mut permits = vec![first];
        while permits.len() < max_tasks
            && let Ok(permit) = self.permit()
        {
            permits.push(permit);
        }
        let claimed = self.unless_stopping(self.ask(permits.len())).await?;
        Ok(claimed.tasks.into_iter().zip(permits).map(|(task, permit)| self.task(task, permit)).collect())
    }

    /// Makes a claim that ends when the worker stops; the engine then gives back the work that it took.
    async fn unless_stopping(&self, args: claim::Args) -> Result<claim::Outcome> {
        tokio::select! {
            biased;
            () = self.shared.stopping.cancelled() => Ok(claim::Outcome { tasks: Vec::new(), grants: Vec::new() }),
            claimed = self.shared.client.call::<Claim>(args) => {
                let found = |claimed: &claim::Outcome| claimed.tasks.len() + claimed.grants.len();
                self.shared.log_claim(claimed.as_ref().map(found));
                claimed
            }
        }
    }

    fn ask(&self, max_tasks: usize) -> claim::Args {
        let (config, resolved) = (self.config(), &self.shared.resolved);
        claim::Args {
            instance_id: config.instance_id.clone(),
            namespace: None,
            lanes: config.lanes.clone(),
            capabilities: resolved.capabilities.clone(),
            kinds: config.kinds.clone(),
            max_tasks: Some(max_tasks),
            wait_ms: Some(resolved.claim_wait_ms),
            mode: None,
            lease_ids: Vec::new(),
            retry: false,
            lease_ttl_ms: Some(resolved.lease_ttl_ms),
            grant_ttl_ms: None,
        }
    }

    fn granted(&self, grant: &ClaimGrant) -> claim_from_grant::Args {
        claim_from_grant::Args {
            instance_id: self.config().instance_id.clone(),
            grant_id: grant.grant_id,
            execution_id: grant.execution_id,
            namespace: None,
            capabilities: self.shared.resolved.capabilities.clone(),
            lease_ttl_ms: Some(self.shared.resolved.lease_ttl_ms),
        }
    }

    fn task(&self, task: Task, permit: OwnedSemaphorePermit) -> ClaimedTask {
        ClaimedTask::new(self.shared.clone(), task, permit)
    }
}

impl Shared {
    /// One line for every claim that was answered: how much it brought, or why it was refused and what the worker lacks.
    pub(super) fn log_claim(&self, answer: Result<usize, &SdkError>) {
        let (instance, digest) = (&self.config.instance_id, &self.resolved.digest);
        match answer {
            Ok(0) => tracing::debug!(instance, digest, "a claim found nothing"),
            Ok(tasks) => tracing::debug!(instance, digest, tasks, "a claim was answered"),
            Err(error) => {
                let missing = match error {
                    SdkError::Refused(refusal) => refusal.details.get("missing"),
                    _ => None,
                };
                tracing::debug!(instance, digest, missing = missing.map(tracing::field::display), %error, "a claim failed");
            }
        }
    }
}
