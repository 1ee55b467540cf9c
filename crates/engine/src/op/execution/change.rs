//! Changes that operators and owners make to an execution from outside.

use ff_core::event::Effects;
use ff_core::execution::{CancelSource, Cancelled, Execution, Hold};
use ff_core::journal::{StepIdentity, StepState};
use ff_core::lease::LeaseEnd;
use ff_core::op::{
    CancelExecution, CancelExecutionArgs, CancelExecutionOutcome, ChangePriority, ChangePriorityArgs,
    ChangePriorityOutcome, HoldExecution, HoldExecutionArgs, HoldExecutionOutcome, ReleaseExecution,
    ReleaseExecutionArgs, ReleaseExecutionOutcome, RepinBuild, RepinBuildArgs, RepinBuildOutcome, ReplayExecution,
    ReplayExecutionArgs, ReplayExecutionOutcome, ResumeExecution, ResumeExecutionArgs, ResumeExecutionOutcome,
    RevokeLease, RevokeLeaseArgs, RevokeLeaseOutcome, SetTags, SetTagsArgs, SetTagsOutcome,
};
use ff_core::{Error, LeaseId, Result};

use crate::caller::Caller;
use crate::cancellation::release_hold;
use crate::execution_data::close_waitpoints;
use crate::journal;
use crate::op::{Handle, Request};
use crate::replay::replay;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::view::some_text;
use crate::visibility::load_visible;

impl Handle<ChangePriority> for Services {
    async fn handle(&self, caller: &Caller, args: ChangePriorityArgs) -> Result<ChangePriorityOutcome> {
        self.transactor
            .change(caller, &args.execution_id, None, |execution, context| {
                execution.change_priority(args.priority, context.now)?;
                Ok(ChangePriorityOutcome { priority: execution.priority })
            })
            .await
    }
}

impl Handle<SetTags> for Services {
    async fn handle(&self, caller: &Caller, args: SetTagsArgs) -> Result<SetTagsOutcome> {
        self.transactor
            .change(caller, &args.execution_id, None, |execution, context| {
                execution.set_tags(args.tags.clone(), context.now)?;
                Ok(SetTagsOutcome { tags: execution.tags.clone() })
            })
            .await
    }
}

impl Handle<HoldExecution> for Services {
    async fn handle(&self, caller: &Caller, args: HoldExecutionArgs) -> Result<HoldExecutionOutcome> {
        let identity = self.transactor.identity::<HoldExecution>(caller, &args, None);
        self.transactor
            .change_once(identity, caller, &args.execution_id, None, |execution, context| {
                let changed = !execution.holds.has(Hold::Operator);
                // The first hold's reason stands, so that a repeated call is the same call.
                if changed {
                    execution.hold(args.reason.as_deref().unwrap_or_default(), context.now)?;
                }
                Ok(HoldExecutionOutcome { changed, public_state: execution.public_state() })
            })
            .await
    }
}

impl Handle<ReleaseExecution> for Services {
    async fn handle(&self, caller: &Caller, args: ReleaseExecutionArgs) -> Result<ReleaseExecutionOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<ReleaseExecution>(caller, &args, None);
        self.transactor.transact_once(partition, identity, &Request::<ReleaseExecution> { caller, args: &args }).await
    }
}

impl Command for Request<'_, ReleaseExecution> {
    type Outcome = ReleaseExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ReleaseExecutionOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let changed = release_hold(tx, &mut execution).await?;
        if changed {
            tx.save_execution(&execution, Effects::default());
        }
        Ok(ReleaseExecutionOutcome { changed, public_state: execution.public_state() })
    }
}

impl Handle<CancelExecution> for Services {
    async fn handle(&self, caller: &Caller, args: CancelExecutionArgs) -> Result<CancelExecutionOutcome> {
        let reason = args.reason.as_deref().unwrap_or_default();
        let shown = |cancelled, execution: &Execution, cancelled_at| match cancelled {
            Cancelled::Now => CancelExecutionOutcome::Cancelled { cancelled_at },
            Cancelled::AlreadyEnded => {
                CancelExecutionOutcome::AlreadyTerminal { public_state: execution.public_state() }
            }
        };
        let Some(fence) = &args.fence else {
            let identity = self.transactor.identity::<CancelExecution>(caller, &args, None);
            return self
                .transactor
                .change_once(identity, caller, &args.execution_id, None, |execution, context| {
                    let cancelled = execution.cancel(CancelSource::Operator, reason, context.now, context.effects)?;
                    Ok(shown(cancelled, execution, execution.ended_at))
                })
                .await;
        };
        // A holder's cancellation is known by its lease.
        self.transactor
            .change_and_record(caller, &args.execution_id, (fence, args.new_entries()?), |execution, context| {
                let cancelled = execution.cancel_held(fence, reason, context.now, context.effects)?;
                Ok(shown(cancelled, execution, execution.ended_by(fence)))
            })
            .await
    }
}

impl Handle<RepinBuild> for Services {
    async fn handle(&self, caller: &Caller, args: RepinBuildArgs) -> Result<RepinBuildOutcome> {
        let identity = self.transactor.identity::<RepinBuild>(caller, &args, args.command_id);
        self.transactor
            .change_once(identity, caller, &args.execution_id, None, |execution, context| {
                execution.repin(args.build_id.as_deref(), context.now)?;
                Ok(RepinBuildOutcome {
                    build_id: some_text(&execution.pinned_build),
                    public_state: execution.public_state(),
                })
            })
            .await
    }
}

/// Runs an execution that has ended once more. A flow it belongs to goes on; a member that never ran waits again for
/// the edges that had become impossible.
impl Handle<ReplayExecution> for Services {
    async fn handle(&self, caller: &Caller, args: ReplayExecutionArgs) -> Result<ReplayExecutionOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<ReplayExecution>(caller, &args, args.command_id);
        self.transactor.transact_once(partition, identity, &Request::<ReplayExecution> { caller, args: &args }).await
    }
}

impl Command for Request<'_, ReplayExecution> {
    type Outcome = ReplayExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ReplayExecutionOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let below = match &self.args.from_step {
            // Of an execution that may not be replayed at all this is not worth reading.
            Some(step) if execution.is_terminal() => Some(first_number_of(tx, &execution, step).await?),
            _ => None,
        };
        replay(tx, &mut execution, below).await?;
        Ok(replay_answer(&execution))
    }
}

fn replay_answer(execution: &Execution) -> ReplayExecutionOutcome {
    ReplayExecutionOutcome {
        attempt: execution.next_attempt_index(),
        replay_count: execution.replays,
        public_state: execution.public_state(),
    }
}

/// Where the journal first speaks of a step.
async fn first_number_of(tx: &mut Tx<'_>, execution: &Execution, step: &StepIdentity) -> Result<u64> {
    execution.check_journal_copied()?;
    let found = journal::find(tx, execution, step).await?;
    let missing = || Error::invalid("from_step", format!("the journal has no entry {}", step.label()));
    found.first.ok_or_else(missing)
}

impl Handle<RevokeLease> for Services {
    async fn handle(&self, caller: &Caller, args: RevokeLeaseArgs) -> Result<RevokeLeaseOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<RevokeLease>(caller, &args, args.command_id);
        self.transactor.transact_once(partition, identity, &Request::<RevokeLease> { caller, args: &args }).await
    }
}

impl Command for Request<'_, RevokeLease> {
    type Outcome = RevokeLeaseOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RevokeLeaseOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let lease = execution.lease.clone();
        let named = |id: LeaseId| self.args.expected_lease_id.is_none_or(|expected| expected == id);
        let Some(lease) = lease.filter(|lease| named(lease.id)) else { return Ok(self.not_held(&execution)) };
        if lease.ended_at != 0 {
            return Ok(self.not_held(&execution));
        }
        let mut effects = Effects::default();
        let fence = execution.revoke_lease(self.args.expected_lease_id, tx.now, &mut effects)?;
        tracing::info!(
            execution = %execution.id,
            reason = self.args.reason.as_deref().unwrap_or_default(),
            "an operator revoked a lease"
        );
        tx.save_execution(&execution, effects);
        Ok(RevokeLeaseOutcome::Revoked { lease_id: fence.lease_id, epoch: fence.epoch })
    }
}

impl Request<'_, RevokeLease> {
    /// No worker holds it by that lease: how the lease was lost, if it was taken away, or that there is none.
    fn not_held(&self, execution: &Execution) -> RevokeLeaseOutcome {
        let asked = self.args.expected_lease_id.or_else(|| execution.lease.as_ref().map(|lease| lease.id));
        let ending = execution.endings.iter().find(|ending| Some(ending.lease_id) == asked);
        match ending.map(|ending| ending.end) {
            Some(end @ (LeaseEnd::Revoked | LeaseEnd::Expired | LeaseEnd::ExecutionCancelled)) => {
                RevokeLeaseOutcome::AlreadyRevoked { reason: end.as_str().to_owned() }
            }
            _ => match execution.held_lease() {
                Some(held) => RevokeLeaseOutcome::OtherLease { lease_id: held.fence.lease_id, epoch: held.fence.epoch },
                None => RevokeLeaseOutcome::NoActiveLease,
            },
        }
    }
}

impl Handle<ResumeExecution> for Services {
    async fn handle(&self, caller: &Caller, args: ResumeExecutionArgs) -> Result<ResumeExecutionOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<ResumeExecution>(caller, &args, args.command_id);
        self.transactor.transact_once(partition, identity, &Request::<ResumeExecution> { caller, args: &args }).await
    }
}

impl Command for Request<'_, ResumeExecution> {
    type Outcome = ResumeExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ResumeExecutionOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let suspension = execution.suspension.clone().unwrap_or_default();
        let waits = execution.waits.clone();
        let mut effects = Effects::default();
        execution.resume_by_operator(tx.now, &mut effects)?;
        // A parked function finds its signals ended without a payload.
        let signals = waits.iter().filter(|wait| wait.waitpoint.is_some());
        let entries: Vec<_> = signals.map(|wait| wait.ended(StepState::Completed)).collect();
        journal::append_decided(tx, &execution, &entries).await?;
        close_waitpoints(tx, &suspension, &execution).await?;
        tx.save_execution(&execution, effects);
        Ok(ResumeExecutionOutcome { suspension_id: suspension.id, public_state: execution.public_state() })
    }
}
