//! An operator: cancels, holds, reorders, revokes, replays and resumes, at random while the storm lasts, and afterwards
//! lets go of everything that was held.

use std::sync::Arc;

use ff_core::execution::Hold;
use ff_core::op::{
    CancelExecution, CancelFlow, ChangePriority, CloseFlow, DecideStep, ForkExecution, HoldExecution, ListForks,
    ReleaseExecution, RemoveExecution, RemoveFlow, RepinBuild, ReplayExecution, ResumeExecution, RevokeLease, SetTags,
};
use ff_core::{AttemptState, CommandId, LifecyclePhase};
use serde_json::{Value, json};

use crate::world::World;

/// Acts until the world ends.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 600);
        world.wait(pause).await;
        act(&world).await;
    }
    while !world.over() {
        let_go(&world).await;
        world.wait(1_000).await;
    }
}

async fn act(world: &Arc<World>) {
    let (executions, flows) = {
        let desk = world.desk();
        (desk.executions.clone(), desk.flows.clone())
    };
    if executions.is_empty() {
        return;
    }
    let id = world.pick(&executions);
    let command = CommandId::mint(&world.mint());
    match world.between(0, 99) {
        0..=14 => drop(world.insist::<CancelExecution>(&json!({ "execution_id": id, "reason": "no more" })).await),
        15..=29 => {
            let priority = world.between(0, 9);
            drop(world.insist::<ChangePriority>(&json!({ "execution_id": id, "priority": priority })).await);
        }
        30..=39 => {
            let color = world.pick(&["red", "blue", "green"]);
            drop(world.insist::<SetTags>(&json!({ "execution_id": id, "tags": { "color": color } })).await);
        }
        40..=49 => drop(world.insist::<HoldExecution>(&json!({ "execution_id": id, "reason": "wait" })).await),
        50..=59 => drop(world.insist::<ReleaseExecution>(&json!({ "execution_id": id })).await),
        60..=61 => drop(world.call::<RevokeLease>(&json!({ "execution_id": id })).await),
        // Most have not ended, or belong to a flow: they stay.
        68 if world.chance(500) => drop(world.insist::<RemoveExecution>(&json!({ "execution_id": id })).await),
        68 if !flows.is_empty() => {
            let flow = world.pick(&flows);
            drop(world.insist::<RemoveFlow>(&json!({ "flow_id": flow })).await);
        }
        // No worker here names a build, so nothing is pinned; letting go of a pin that is not there changes nothing.
        69 => drop(world.insist::<RepinBuild>(&json!({ "execution_id": id, "command_id": command })).await),
        70 => drop(world.call::<ReplayExecution>(&json!({ "execution_id": id })).await),
        71..=72 => {
            let args = json!({ "execution_id": id, "from_step": { "name": "store" }, "command_id": command });
            drop(world.insist::<ReplayExecution>(&args).await);
        }
        82..=83 => drop(world.call::<ResumeExecution>(&json!({ "execution_id": id })).await),
        62..=68 => drop(world.insist::<RevokeLease>(&json!({ "execution_id": id, "command_id": command })).await),
        73..=81 => drop(world.insist::<ReplayExecution>(&json!({ "execution_id": id, "command_id": command })).await),
        84..=91 => drop(world.insist::<ResumeExecution>(&json!({ "execution_id": id, "command_id": command })).await),
        92..=95 => {
            let said = world.pick(&["happened", "did_not_happen", "fail"]);
            decide(world, json!({ "execution_id": id, "answer": said, "command_id": command })).await;
        }
        96 => {
            let before = if world.chance(500) { json!({ "name": "store" }) } else { Value::Null };
            let args = json!({ "execution_id": id, "before_step": before, "command_id": command });
            if let Some(Ok(forked)) = world.insist::<ForkExecution>(&args).await {
                world.desk().executions.push(forked.execution_id);
            }
            drop(world.insist::<ListForks>(&json!({ "execution_id": id })).await);
        }
        _ if flows.is_empty() => {}
        // Most were created with their graph, and are closed by nature.
        97 => drop(world.insist::<CloseFlow>(&json!({ "flow_id": world.pick(&flows) })).await),
        _ => {
            let policy = world.pick(&["cancel_all", "cancel_pending", "flow_only"]);
            // Mostly a young one, whose members have not all started.
            let young = flows.len().saturating_sub(3);
            let flow = if world.chance(700) { world.pick(&flows[young..]) } else { world.pick(&flows) };
            let args = json!({ "flow_id": flow, "policy": policy, "reason": "over", "wait": world.chance(500) });
            drop(world.insist::<CancelFlow>(&args).await);
        }
    }
}

/// Answers what is asked about a journal, if anything is.
async fn decide(world: &Arc<World>, args: Value) {
    drop(world.insist::<DecideStep>(&args).await);
}

/// Releases what is held and resumes what is suspended, and cancels executions that wait for something that will not
/// come: members that the cancellation of their flow left alone, and replayed ones whose upstreams are not replayed.
async fn let_go(world: &Arc<World>) {
    let open: Vec<_> = {
        let checker = world.checker();
        let open = checker.facts.executions.values().filter(|seen| !seen.document.is_terminal());
        open.map(|seen| {
            let document = &seen.document;
            let held = document.holds.has(Hold::Operator);
            let suspended = document.state.lifecycle_phase == LifecyclePhase::Suspended;
            let flow = document.flow.and_then(|flow| checker.facts.flows.get(&flow));
            let replayed = document.state.attempt_state == AttemptState::PendingReplayAttempt;
            let hopeless = replayed && document.holds.has(Hold::Dependencies);
            let stranded = hopeless || flow.is_some_and(|flow| flow.cancellation.is_some());
            (document.id, held, suspended, stranded)
        })
        .collect()
    };
    let unclosed: Vec<_> = {
        let checker = world.checker();
        let flows = checker.facts.flows.values().filter(|flow| flow.stays_open && flow.node_count > 0);
        flows.map(|flow| flow.id).collect()
    };
    for flow in unclosed {
        drop(world.insist::<CloseFlow>(&json!({ "flow_id": flow })).await);
    }
    for (id, held, suspended, stranded) in open {
        let args = json!({ "execution_id": id });
        if held {
            drop(world.insist::<ReleaseExecution>(&args).await);
        }
        if suspended {
            decide(world, json!({ "execution_id": id, "answer": "did_not_happen" })).await;
            drop(world.insist::<ResumeExecution>(&args).await);
        }
        if stranded {
            drop(world.insist::<CancelExecution>(&args).await);
        }
    }
}
