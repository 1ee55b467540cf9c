//! The effect of a flow's cancellation on one of its members, and what an operator's release leaves of it.

use ff_core::event::Effects;
use ff_core::execution::{Execution, Hold};
use ff_core::flow::{CancelFlowPolicy, Flow, FlowCancellation};
use ff_core::{BlockingReason, Result};

use crate::flow::{cancel_member, find_cancellation};
use crate::transaction::{Command, Transactor, Tx};

impl Transactor {
    /// Does to one member, found in a queue, what the cancellation of its flow will do to all.
    pub(crate) async fn stop_with_flow(&self, member: &Execution) -> Result<()> {
        self.transact(member.id.partition(), self.fresh_command(), &TellOne { member }).await
    }
}

struct TellOne<'a> {
    member: &'a Execution,
}

impl Command for TellOne<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(mut member) = tx.find_execution(&self.member.id).await? else { return Ok(()) };
        let Some(id) = member.flow.filter(|_| member.is_eligible()) else { return Ok(()) };
        let key = Flow::key_of(&id);
        let flow = tx.load::<Flow>(key.clone()).await?.map(|loaded| loaded.document);
        tx.pin(&key);
        match flow {
            Some(Flow { cancellation: Some(cancellation), .. }) => {
                tell_member(tx, member, &cancellation).await?;
            }
            Some(flow) if flow.admits_claims() => {}
            // A trace of damage: without a flow that goes on it must not run, nor stand in the way of others.
            _ => {
                if member.pause_with_flow("its flow is gone or has ended", tx.now) {
                    tx.save_execution(&member, Effects::default());
                }
            }
        }
        Ok(())
    }
}

/// Tells one member; says whether that changed it.
pub(crate) async fn tell_member(
    tx: &mut Tx<'_>,
    mut member: Execution,
    cancellation: &FlowCancellation,
) -> Result<bool> {
    let mut effects = Effects::default();
    if member.is_terminal() {
        return Ok(false);
    }
    let changed = match cancellation.policy_now() {
        CancelFlowPolicy::CancelAll => cancel_member(tx, &mut member, &cancellation.reason, &mut effects).await?,
        CancelFlowPolicy::CancelPending if member.has_started() => false,
        CancelFlowPolicy::CancelPending => cancel_member(tx, &mut member, &cancellation.reason, &mut effects).await?,
        CancelFlowPolicy::FlowOnly | CancelFlowPolicy::Unknown(_) => {
            member.pause_with_flow(&cancellation.reason, tx.now)
        }
    };
    if changed {
        tx.save_execution(&member, effects);
    }
    Ok(changed)
}

/// Ends an operator's hold; returns whether that changed the execution, which the caller saves. The cancellation of its
/// flow goes on to pause a member that has not started, because no claim would take it.
pub(crate) async fn release_hold(tx: &mut Tx<'_>, execution: &mut Execution) -> Result<bool> {
    if !execution.holds.has(Hold::Operator) {
        return Ok(false);
    }
    let cancellation = match execution.flow.filter(|_| !execution.has_started()) {
        Some(id) => {
            let key = Flow::key_of(&id);
            let cancellation = find_cancellation(tx, key.clone()).await?;
            tx.pin(&key);
            cancellation
        }
        None => None,
    };
    let was_paused = execution.state.blocking_reason == BlockingReason::PausedByFlowCancel;
    match cancellation.filter(|cancellation| !cancellation.ends_unstarted()) {
        Some(_) if was_paused => Ok(false),
        Some(cancellation) => {
            execution.release(tx.now)?;
            execution.pause_with_flow(&cancellation.reason, tx.now);
            Ok(true)
        }
        None => execution.release(tx.now).map(|()| true),
    }
}
