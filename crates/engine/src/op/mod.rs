//! The operations, one small file for each verb: load documents, call transitions, save. Decisions live in `ff-core`.

mod add_execution_to_flow;
mod append_frames;
mod apply_dependency_to_child;
mod cancel_execution;
mod cancel_flow;
mod change_priority;
mod claim;
mod claim_from_grant;
mod close_waitpoint;
mod complete;
mod configure_lane;
mod create_budget;
mod create_execution;
mod create_executions;
mod create_flow;
mod create_member;
mod create_pending_waitpoint;
mod create_quota;
mod create_token;
mod delay;
mod deliver_signal;
mod deregister_worker;
mod disable_lane;
mod drain_lane;
mod explain_execution;
mod fail;
mod get_budget;
mod get_deployment;
mod get_execution;
mod get_flow;
mod get_flow_graph;
mod get_quota;
mod get_result;
mod get_state;
mod get_waitpoint_token;
mod heartbeat_worker;
mod hold_execution;
mod list_attempts;
mod list_audit;
mod list_budgets;
mod list_events;
mod list_execution_events;
mod list_executions;
mod list_flows;
mod list_lanes;
mod list_pending_waitpoints;
mod list_quotas;
mod list_resume_signals;
mod list_steps;
mod list_tokens;
mod list_upstreams;
mod list_workers;
pub(crate) mod park;
mod pause_lane;
mod progress;
mod read_stream;
mod read_summary;
mod record_steps;
mod register_worker;
mod release_execution;
mod renew_leases;
mod replay_execution;
mod report_budget_usage;
mod report_usage;
mod reset_budget;
mod resume_execution;
mod resume_lane;
mod return_grant;
mod revoke_lease;
mod revoke_token;
mod rotate_waitpoint_secret;
mod set_budget_limits;
mod set_tags;
mod stage_dependency_edge;
mod suspend;
mod tail_stream;
mod wait_children;
mod wait_execution;

mod belongings;
pub(crate) mod change;
pub(crate) mod flow;
pub(crate) mod named;
pub(crate) mod payload;
pub(crate) mod view;

pub(crate) use belongings::{Removal, close_waitpoints, remove_execution};
pub(crate) use create_execution::Submission;

use ff_core::execution::{ClaimedAttempt, Execution};
use ff_core::lease::LeaseFence;
use ff_core::{Code, Error, ExecutionId, Result};

use crate::engine::{Caller, Engine};
use crate::transaction::Tx;

impl Engine {
    /// Refuses an id whose partition this deployment does not have: nothing can live there.
    pub(crate) fn check_id(&self, id: &ExecutionId) -> Result<()> {
        id.check(self.partitions()).map_err(|_| not_found(id))
    }
}

/// An execution of somebody else's namespace reads as absent.
pub(crate) fn check_visible(caller: &Caller, execution: &Execution) -> Result<()> {
    if caller.sees(&execution.namespace) { Ok(()) } else { Err(not_found(&execution.id)) }
}

pub(crate) fn not_found(id: &ExecutionId) -> Error {
    Error::of(Code::ExecutionNotFound).with("execution_id", id)
}

/// The lease an execution is under now, as its claimer got it.
pub(crate) fn held_lease(execution: &Execution) -> Option<ClaimedAttempt> {
    let lease = execution.lease.as_ref().filter(|lease| lease.ended_at == 0)?;
    let fence = LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch };
    Some(ClaimedAttempt { kind: lease.kind, fence })
}

/// Loads an execution for a caller that may see it.
pub(crate) async fn load_visible(tx: &mut Tx<'_>, caller: &Caller, id: &ExecutionId) -> Result<Execution> {
    let execution = tx.execution(id).await?;
    check_visible(caller, &execution)?;
    Ok(execution)
}
