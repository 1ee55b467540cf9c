//! What operators and owners change about an execution from outside.

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
use ff_core::planted::{Bug, planted};
use ff_core::{Edge, EdgeRole, Error, Flow, Key, LeaseId, Result, index, limits};
use ff_store::Scan;

use crate::engine::{Caller, Engine, Handle};
use crate::execution_data::close_waitpoints;
use crate::flow::{cancel_siblings, connect, flow_not_found, save_flow};
use crate::journal;
use crate::op::Request;
use crate::op::execution::single::take_key_again;
use crate::transaction::{Command, Tx};
use crate::view::some_text;
use crate::visibility::{load_visible, not_found};

impl Handle<ChangePriority> for Engine {
    async fn handle(&self, caller: &Caller, args: ChangePriorityArgs) -> Result<ChangePriorityOutcome> {
        self.change(caller, &args.execution_id, None, |execution, context| {
            execution.change_priority(args.priority, context.now)?;
            Ok(ChangePriorityOutcome { priority: execution.priority })
        })
        .await
    }
}

impl Handle<SetTags> for Engine {
    async fn handle(&self, caller: &Caller, args: SetTagsArgs) -> Result<SetTagsOutcome> {
        self.change(caller, &args.execution_id, None, |execution, context| {
            execution.set_tags(args.tags.clone(), context.now)?;
            Ok(SetTagsOutcome { tags: execution.tags.clone() })
        })
        .await
    }
}

impl Handle<HoldExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: HoldExecutionArgs) -> Result<HoldExecutionOutcome> {
        let identity = self.identity::<HoldExecution>(caller, &args, None);
        self.change_once(identity, caller, &args.execution_id, None, |execution, context| {
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

impl Handle<ReleaseExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: ReleaseExecutionArgs) -> Result<ReleaseExecutionOutcome> {
        let identity = self.identity::<ReleaseExecution>(caller, &args, None);
        self.change_once(identity, caller, &args.execution_id, None, |execution, context| {
            let changed = execution.holds.has(Hold::Operator);
            if changed {
                execution.release(context.now)?;
            }
            Ok(ReleaseExecutionOutcome { changed, public_state: execution.public_state() })
        })
        .await
    }
}

impl Handle<CancelExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: CancelExecutionArgs) -> Result<CancelExecutionOutcome> {
        let reason = args.reason.as_deref().unwrap_or_default();
        // A holder's cancellation is known by its lease.
        let identity = match &args.fence {
            Some(_) => None,
            None => self.identity::<CancelExecution>(caller, &args, None),
        };
        self.change_once(identity, caller, &args.execution_id, args.fence.as_ref(), |execution, context| {
            let cancelled = match &args.fence {
                Some(fence) => execution.cancel_held(fence, reason, context.now, context.effects)?,
                None => execution.cancel(CancelSource::Operator, reason, context.now, context.effects)?,
            };
            Ok(match cancelled {
                Cancelled::Now => CancelExecutionOutcome::Cancelled { cancelled_at: execution.ended_at },
                Cancelled::AlreadyEnded => {
                    CancelExecutionOutcome::AlreadyTerminal { public_state: execution.public_state() }
                }
            })
        })
        .await
    }
}

impl Handle<RepinBuild> for Engine {
    async fn handle(&self, caller: &Caller, args: RepinBuildArgs) -> Result<RepinBuildOutcome> {
        let identity = self.identity::<RepinBuild>(caller, &args, args.command_id);
        self.change_once(identity, caller, &args.execution_id, None, |execution, context| {
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
impl Handle<ReplayExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: ReplayExecutionArgs) -> Result<ReplayExecutionOutcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<ReplayExecution>(caller, &args, args.command_id);
        self.transact_once(partition, identity, &Request::<ReplayExecution> { caller, args: &args }).await
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

/// Replays an execution, with the entries that its journal has below a number. A refusal leaves nothing to be written.
pub(crate) async fn replay(tx: &mut Tx<'_>, execution: &mut Execution, below: Option<u64>) -> Result<()> {
    let mut effects = Effects::default();
    match execution.flow {
        None => execution.replay(0, below, tx.now)?,
        Some(id) => {
            let loaded = tx.load::<Flow>(Flow::key_of(&id)).await?;
            let mut flow = loaded.ok_or_else(|| flow_not_found(&id))?.document;
            if flow.removing && !planted(Bug::RemovalReopened) {
                // It is as good as gone: parts of its flow are.
                return Err(not_found(&execution.id));
            }
            let reopened = edges_to_reopen(tx, execution).await?;
            let count = u32::try_from(reopened.len()).map_err(|_| Error::of(ff_core::Code::CommitTooLarge))?;
            execution.replay(count, below, tx.now)?;
            flow.reopen()?;
            connect_reopened(tx, execution, reopened, &mut effects).await?;
            // Saved even if it is unchanged: whoever is about to end the flow must notice.
            save_flow(tx, &flow);
        }
    }
    take_key_again(tx, execution).await?;
    tx.save_execution(execution, effects);
    cancel_siblings(tx, execution, &[]).await
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
    let found = journal::find(tx, execution, step).await?;
    let missing = || Error::invalid("from_step", format!("the journal has no entry {}", step.label()));
    found.first.ok_or_else(missing)
}

/// The edges that wait again when a member is replayed: those that had become impossible, if it never ran.
async fn edges_to_reopen(tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Edge>> {
    let mut reopened = Vec::new();
    if !execution.has_started() {
        for mut edge in edges_to(tx, execution).await? {
            if edge.role == EdgeRole::Dependency && edge.reopen() {
                reopened.push(edge);
            }
        }
    }
    Ok(reopened)
}

/// Connects the reopened edges of a replayed member; those whose upstream has succeeded since count at once.
async fn connect_reopened(
    tx: &mut Tx<'_>,
    execution: &mut Execution,
    reopened: Vec<Edge>,
    effects: &mut Effects,
) -> Result<()> {
    let upstreams = reopened.iter().map(|edge| Execution::key_of(&edge.upstream)).collect();
    for (edge, upstream) in reopened.into_iter().zip(tx.load_many::<Execution>(upstreams).await?) {
        let succeeded = |upstream: &Execution| upstream.state.terminal_outcome == ff_core::TerminalOutcome::Success;
        let edge = match upstream.map(|loaded| loaded.document) {
            Some(upstream) if succeeded(&upstream) || !upstream.is_terminal() => {
                connect(tx, edge, &upstream, execution, effects)?
            }
            // It waits for this one to be replayed as well.
            _ => edge,
        };
        tx.save(&edge);
    }
    Ok(())
}

/// Every edge that leads to an execution, made known to the transaction.
async fn edges_to(tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Edge>> {
    let mut edges = Vec::new();
    let mut after: Option<(i64, Key)> = None;
    loop {
        let mut scan = Scan::first(index::edges_to(execution.id.uuid), limits::PAGE_MAX).with_documents();
        scan.after = after.take();
        let page = tx.scan(scan).await?;
        let full = page.entries.len() == limits::PAGE_MAX;
        after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        for entry in page.entries {
            if let Some(loaded) = tx.adopt_readable::<Edge>(entry.member, entry.document) {
                edges.push(loaded.document);
            }
        }
        if !full {
            return Ok(edges);
        }
    }
}

impl Handle<RevokeLease> for Engine {
    async fn handle(&self, caller: &Caller, args: RevokeLeaseArgs) -> Result<RevokeLeaseOutcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<RevokeLease>(caller, &args, args.command_id);
        self.transact_once(partition, identity, &Request::<RevokeLease> { caller, args: &args }).await
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
    /// Nobody holds it by that lease: how the lease was lost, if it was taken away, or that there is none.
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

impl Handle<ResumeExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: ResumeExecutionArgs) -> Result<ResumeExecutionOutcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<ResumeExecution>(caller, &args, args.command_id);
        self.transact_once(partition, identity, &Request::<ResumeExecution> { caller, args: &args }).await
    }
}

impl Command for Request<'_, ResumeExecution> {
    type Outcome = ResumeExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ResumeExecutionOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let suspension = execution.suspension.clone().unwrap_or_default();
        let waits = execution.waits.clone();
        execution.resume_by_operator(tx.now)?;
        // A parked function finds its signals ended without a payload.
        let signals = waits.iter().filter(|wait| wait.waitpoint.is_some());
        let entries: Vec<_> = signals.map(|wait| wait.ended(StepState::Completed)).collect();
        journal::append_decided(tx, &execution, &entries).await?;
        close_waitpoints(tx, &suspension, &execution).await?;
        tx.save_execution(&execution, Effects::default());
        Ok(ResumeExecutionOutcome { suspension_id: suspension.id, public_state: execution.public_state() })
    }
}
