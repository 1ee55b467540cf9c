//! Taking work. A permit is taken before anything is claimed, so a full worker never touches what it cannot run.

use ff_core::lease::ClaimGrant;
use ff_core::limits;
use ff_core::op::ClaimMode;
use ff_core::op::view::Task;
use ff_core::op::{Claim, ClaimFromGrant, ClaimFromReclaimGrant, ReturnGrant, claim, claim_from_grant, return_grant};
use tokio::sync::OwnedSemaphorePermit;

use super::FlowFabricWorker;
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

    /// Turns a grant into a task; an interrupted attempt continues.
    pub async fn claim_from_grant(&self, grant: &ClaimGrant) -> Result<ClaimedTask> {
        let permit = self.permit()?;
        let claimed = self.shared.client.call::<ClaimFromGrant>(self.granted(grant)).await?;
        Ok(self.task(claimed.task, permit))
    }

    /// Claims from a grant, but only an attempt that was interrupted or lost.
    pub async fn claim_from_reclaim_grant(&self, grant: &ClaimGrant) -> Result<ClaimedTask> {
        let permit = self.permit()?;
        let claimed = self.shared.client.call::<ClaimFromReclaimGrant>(self.granted(grant)).await?;
        Ok(self.task(claimed.task, permit))
    }

    /// Claims one task in two steps: the engine's scheduler grants it, then the grant is claimed. A grant that cannot
    /// be claimed is handed back.
    pub async fn claim_via_server(&self) -> Result<Option<ClaimedTask>> {
        let permit = self.permit()?;
        let args = claim::Args { mode: Some(ClaimMode::Grant), ..self.ask(1) };
        let Some(grant) = self.unless_stopping(args).await?.grants.pop() else { return Ok(None) };
        match self.shared.client.call::<ClaimFromGrant>(self.granted(&grant)).await {
            Ok(claimed) => Ok(Some(self.task(claimed.task, permit))),
            Err(error) => {
                let returned = return_grant::Args {
                    instance_id: self.config().instance_id.clone(),
                    grant_id: grant.grant_id,
                    execution_id: grant.execution_id,
                    namespace: None,
                };
                // It lapses by itself if this fails, too.
                let _ = self.shared.client.call::<ReturnGrant>(returned).await;
                Err(error)
            }
        }
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let max_concurrent_tasks = self.config().max_concurrent_tasks;
        let full = |_| SdkError::WorkerAtCapacity { max_concurrent_tasks };
        self.shared.permits.clone().try_acquire_owned().map_err(full)
    }

    /// Claims with one permit and whatever others are free; those of no use go back.
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

    /// A claim that ends with the worker; what it took meanwhile is given back by the engine.
    async fn unless_stopping(&self, args: claim::Args) -> Result<claim::Outcome> {
        tokio::select! {
            biased;
            () = self.shared.stopping.cancelled() => Ok(claim::Outcome { tasks: Vec::new(), grants: Vec::new() }),
            claimed = self.shared.client.call::<Claim>(args) => claimed,
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
