//! Claiming in two steps: a grant that becomes a lease, or is given back.

use ff_core::event::Effects;
use ff_core::execution::{Claim, ClaimedAttempt, Execution};
use ff_core::flow::Flow;
use ff_core::lease::GrantKind;
use ff_core::op::{
    ClaimFromGrant, ClaimFromGrantArgs, ClaimFromGrantOutcome, ClaimFromReclaimGrant, ReturnGrant, ReturnGrantArgs,
    ReturnGrantOutcome,
};
use ff_core::planted::{Bug, planted};
use ff_core::worker::Worker;
use ff_core::{Code, Error, LeaseId, LifecyclePhase, Result};

use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::not_found;

/// Turns a grant into a lease; an interrupted attempt continues. Everything that can be refused is refused before the
/// grant is touched, so that a refused worker can still use it.
impl Handle<ClaimFromGrant> for Services {
    async fn handle(&self, caller: &Caller, args: ClaimFromGrantArgs) -> Result<ClaimFromGrantOutcome> {
        self.claim_granted(caller, args, false).await
    }
}

impl Handle<ClaimFromReclaimGrant> for Services {
    async fn handle(&self, caller: &Caller, args: ClaimFromGrantArgs) -> Result<ClaimFromGrantOutcome> {
        self.claim_granted(caller, args, true).await
    }
}

impl Services {
    async fn claim_granted(
        &self,
        caller: &Caller,
        args: ClaimFromGrantArgs,
        reclaim_only: bool,
    ) -> Result<ClaimFromGrantOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        if execution.namespace != namespace {
            return Err(not_found(&args.execution_id));
        }
        caller.check_lane(&execution.lane)?;
        if let Some(claimed) = held_already(&execution, args.grant_id, &args.instance_id) {
            return Ok(ClaimFromGrantOutcome { task: self.task(&execution, &claimed, lease_until, true).await? });
        }
        let worker =
            self.shared.system.system_document::<Worker>(&Worker::key_of(&namespace, &args.instance_id)).await?;
        let claim = Claim {
            lease_id: args.grant_id,
            worker_id: worker.as_ref().map_or_else(|| args.instance_id.clone(), |worker| worker.worker_id.clone()),
            instance_id: args.instance_id.clone(),
            ttl_ms: self.transactor.limits().lease_ttl(args.lease_ttl_ms)?,
            slot: None,
            build_id: args.capabilities.build().unwrap_or_default().to_owned(),
        };
        check_grant(&execution, &claim, self.transactor.now_in(execution.id.partition()))?;
        if reclaim_only && execution.grant_kind() != GrantKind::Reclaim {
            return Err(Error::of(Code::NotAResumedExecution));
        }
        execution.capabilities.admit(&args.capabilities)?;
        if let Some(lane) = self.shared.system.lane(&namespace, &execution.lane).await?
            && !lane.admits_claims()
        {
            return Err(Error::of(Code::ExecutionNotEligible).with("lane_state", lane.state));
        }
        let _turn = self.check_capacity(&namespace, worker.as_ref()).await?;
        self.take_granted(&execution, claim).await
    }

    /// The grant was admitted when it was issued, and its lease takes over its concurrency slot.
    async fn take_granted(&self, execution: &Execution, claim: Claim) -> Result<ClaimFromGrantOutcome> {
        let verb = TakeGranted { claim: &claim, id: execution.id };
        let Granted { execution, claimed, found } =
            self.transactor.transact(execution.id.partition(), self.transactor.fresh_command(), &verb).await?;
        // No worker is promised more than the store keeps, and only the store knows how long that is.
        let (_, lease_until) = self.transactor.visible_execution(&Caller::system(), &execution.id).await?;
        Ok(ClaimFromGrantOutcome { task: self.task(&execution, &claimed, lease_until, found).await? })
    }
}

/// The lease that this very grant has become, when the answer to the first call was lost or is still under way.
fn held_already(execution: &Execution, grant: LeaseId, instance_id: &str) -> Option<ClaimedAttempt> {
    execution.held_lease().filter(|claimed| {
        let lease = execution.lease.as_ref();
        claimed.fence.lease_id == grant && lease.is_some_and(|lease| lease.instance_id == instance_id)
    })
}

/// Whether the execution knows this grant: as the one that is outstanding, or as a lease that it became.
fn is_known(execution: &Execution, grant: LeaseId) -> bool {
    let lease = execution.lease.as_ref().map(|lease| lease.id);
    let outstanding = execution.grant.as_ref().map(|grant| grant.id);
    let ended = execution.endings.iter().any(|ending| ending.lease_id == grant);
    ended || [lease, outstanding].contains(&Some(grant))
}

/// Whether the grant is there, this worker's, and has not lapsed.
fn check_grant(execution: &Execution, claim: &Claim, now: i64) -> Result<()> {
    match &execution.grant {
        Some(grant) if grant.id == claim.lease_id && grant.worker_id == claim.worker_id => {
            if grant.expires_at <= now {
                return Err(Error::of(Code::ClaimGrantExpired).with("expires_at", grant.expires_at));
            }
            Ok(())
        }
        None if planted(Bug::GrantUsedTwice) => Ok(()),
        // A hold that came after the grant has ended it.
        _ if execution.grant_is_over(claim.lease_id) && !execution.holds.is_empty() => Err(execution.not_eligible()),
        _ if execution.grant_is_over(claim.lease_id) => Err(Error::of(Code::ClaimGrantExpired)),
        // It was used, or it belongs to another worker.
        _ if is_known(execution, claim.lease_id) => Err(Error::of(Code::InvalidClaimGrant)),
        Some(other) if other.expires_at > now => {
            Err(Error::of(Code::GrantAlreadyExists).with("expires_at", other.expires_at))
        }
        _ if execution.state.lifecycle_phase != LifecyclePhase::Runnable => {
            Err(Error::of(Code::ExecutionNotLeaseable).with("public_state", execution.public_state()))
        }
        _ => Err(Error::of(Code::InvalidClaimGrant)),
    }
}

struct TakeGranted<'a> {
    claim: &'a Claim,
    id: ff_core::ExecutionId,
}

/// The lease that a grant became.
struct Granted {
    execution: Box<Execution>,
    claimed: ClaimedAttempt,
    /// The same call, sent twice, had taken it before.
    found: bool,
}

impl Command for TakeGranted<'_> {
    type Outcome = Granted;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let mut execution = tx.execution(&self.id).await?;
        if let Some(claimed) = held_already(&execution, self.claim.lease_id, &self.claim.instance_id) {
            return Ok(Granted { execution: Box::new(execution), claimed, found: true });
        }
        if let Some(flow) = &execution.flow {
            let key = Flow::key_of(flow);
            let flow = tx.load::<Flow>(key.clone()).await?.ok_or_else(|| Error::of(Code::FlowNotFound))?;
            let flow = flow.document;
            let admits = if execution.has_started() { flow.admits_continuations() } else { flow.admits_claims() };
            if !admits {
                return Err(Error::of(Code::FlowAlreadyTerminal));
            }
            tx.pin(&key);
        }
        check_grant(&execution, self.claim, tx.now)?;
        let mut effects = Effects::default();
        let claimed = execution.claim_granted(self.claim, tx.now, &mut effects)?;
        tx.save_execution(&execution, effects);
        Ok(Granted { execution: Box::new(execution), claimed, found: false })
    }
}

impl Handle<ReturnGrant> for Services {
    async fn handle(&self, caller: &Caller, args: ReturnGrantArgs) -> Result<ReturnGrantOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let worker =
            self.shared.system.system_document::<Worker>(&Worker::key_of(&namespace, &args.instance_id)).await?;
        let worker_id = worker.map_or_else(|| args.instance_id.clone(), |worker| worker.worker_id);
        self.transactor
            .change(caller, &args.execution_id, None, |execution, context| {
                if execution.namespace != namespace {
                    return Err(not_found(&args.execution_id));
                }
                let own = execution.grant.as_ref().is_some_and(|grant| grant.worker_id == worker_id);
                if own && execution.drop_grant(args.grant_id, context.now).is_ok() {
                    return Ok(ReturnGrantOutcome { changed: true });
                }
                if execution.grant_is_over(args.grant_id) {
                    return Ok(ReturnGrantOutcome { changed: false });
                }
                Err(Error::of(Code::InvalidClaimGrant))
            })
            .await
    }
}
