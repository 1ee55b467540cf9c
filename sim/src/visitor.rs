//! Visitors and administrators: they look at everything there is to look at, rotate secrets, hand out and take back
//! tokens, and close and open lanes. Nothing they do may hinder the work for good.

use std::sync::Arc;

use ff_core::op::{
    CloseWaitpoint, ConfigureLane, CreateStreamTicket, CreateToken, DeleteTool, DisableLane, DrainLane,
    ExplainExecution, GetCounts, GetDeployment, GetFlowGraph, GetInput, GetResult, GetState, GetWaitpointToken,
    ListApprovals, ListAttempts, ListAudit, ListBudgets, ListExecutionEvents, ListFlows, ListLanes, ListNamespaces,
    ListPendingWaitpoints, ListQuotas, ListResumeSignals, ListTokens, ListTools, ListUpstreams, ListWorkers,
    ReadSummary, ResumeLane, RevokeToken, RotateWaitpointSecret, WaitExecution,
};
use serde_json::json;

use crate::invariant::Invariant;
use crate::journal;
use crate::viewer;
use crate::worker::LANES;
use crate::world::World;

/// Visits until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    let mut rotations = 0u32;
    while world.stormy() {
        let pause = world.between(0, 800);
        world.wait(pause).await;
        match world.between(0, 9) {
            0..=4 => look(&world).await,
            5 | 6 => viewer::browse(&world).await,
            7 => lists(&world).await,
            8 => lanes(&world).await,
            _ => {
                rotations += 1;
                administer(&world, rotations).await;
            }
        }
    }
}

async fn look(world: &Arc<World>) {
    let (executions, flows, waitpoints) = {
        let desk = world.desk();
        (desk.executions.clone(), desk.flows.clone(), desk.waitpoints.clone())
    };
    if executions.is_empty() {
        return;
    }
    let args = json!({ "execution_id": world.pick(&executions) });
    match world.between(0, 13) {
        0 | 1 => explain(world, &args).await,
        2 => drop(world.insist::<GetState>(&args).await),
        3 => drop(world.insist::<GetResult>(&args).await),
        4 => drop(world.insist::<ListAttempts>(&args).await),
        5 => drop(world.insist::<ListExecutionEvents>(&args).await),
        6 => drop(world.insist::<ListUpstreams>(&args).await),
        7 => drop(world.insist::<ListPendingWaitpoints>(&args).await),
        8 => drop(world.insist::<ListResumeSignals>(&args).await),
        9 => {
            let mut args = args;
            args["wait_ms"] = json!(world.between(0, 3_000));
            drop(world.insist::<WaitExecution>(&args).await);
        }
        12 => drop(world.insist::<GetInput>(&args).await),
        10 => journal::read(world, &args).await,
        11 => {
            let mut args = args;
            args["attempt"] = json!(0);
            drop(world.insist::<ReadSummary>(&args).await);
        }
        _ => {
            if !flows.is_empty() {
                drop(world.insist::<GetFlowGraph>(&json!({ "flow_id": world.pick(&flows) })).await);
            }
            if !waitpoints.is_empty() {
                let open = waitpoints[world.random().below(waitpoints.len())].clone();
                let args = json!({ "execution_id": open.execution, "waitpoint_id": open.waitpoint });
                drop(world.insist::<GetWaitpointToken>(&args).await);
                if world.chance(500) {
                    drop(world.insist::<CloseWaitpoint>(&args).await);
                }
            }
        }
    }
}

/// Whatever has not ended and does not run has a reason.
async fn explain(world: &Arc<World>, args: &serde_json::Value) {
    let Some(Ok(explanation)) = world.insist::<ExplainExecution>(args).await else { return };
    let idle = !explanation.public_state.is_terminal() && explanation.public_state != ff_core::PublicState::Active;
    world.checker().expect(!idle || !explanation.reasons.is_empty(), Invariant::LegalStates, || {
        format!("nothing explains why {args} is {:?}", explanation.public_state)
    });
}

async fn lists(world: &Arc<World>) {
    let args = json!({ "limit": world.between(1, 20) });
    match world.between(0, 12) {
        11 => drop(world.insist::<ListTools>(&args).await),
        0 => drop(world.insist::<ListFlows>(&args).await),
        1 => drop(world.insist::<ListBudgets>(&args).await),
        2 => drop(world.insist::<ListQuotas>(&args).await),
        3 => drop(world.insist::<ListLanes>(&args).await),
        4 => drop(world.insist::<ListWorkers>(&args).await),
        5 => drop(world.insist::<ListTokens>(&args).await),
        6 => drop(world.insist::<ListAudit>(&args).await),
        7 => drop(world.insist::<ListNamespaces>(&args).await),
        10 => drop(world.insist::<CreateStreamTicket>(&json!({})).await),
        9 => drop(world.insist::<ListApprovals>(&args).await),
        8 => drop(world.insist::<GetCounts>(&json!({})).await),
        _ => drop(world.insist::<GetDeployment>(&json!({})).await),
    }
}

/// Lanes close and open again at once: work must go on, and the gates open every lane when the storm is over.
async fn lanes(world: &Arc<World>) {
    let (lane, namespace) = (world.pick(&LANES), world.pick(world.profile.namespaces()));
    let args = json!({ "lane": lane, "namespace": namespace, "reason": "a look" });
    match world.between(0, 2) {
        0 => drop(world.insist::<DrainLane>(&args).await),
        1 => drop(world.insist::<DisableLane>(&args).await),
        _ => drop(world.insist::<ConfigureLane>(&json!({ "lane": "spare", "state": "active" })).await),
    }
    let pause = world.between(0, 500);
    world.wait(pause).await;
    drop(world.insist::<ResumeLane>(&json!({ "lane": lane, "namespace": namespace })).await);
}

async fn administer(world: &Arc<World>, number: u32) {
    let name = format!("token-{}", world.between(0, 3));
    match world.between(0, 4) {
        3 => drop(world.insist::<DeleteTool>(&json!({ "kind": "sum" })).await),
        0 => drop(world.insist::<CreateToken>(&json!({ "name": name, "role": "reader" })).await),
        1 => drop(world.insist::<RevokeToken>(&json!({ "name": name })).await),
        _ => {
            let secret = format!("{:016x}", world.executor.entropy()).repeat(4);
            let args = json!({ "new_kid": format!("sim-{number}"), "new_secret_hex": secret });
            drop(world.insist::<RotateWaitpointSecret>(&args).await);
        }
    }
}
