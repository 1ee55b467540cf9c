//! A caller with schedules: creates, changes, pauses, triggers and backfills them while the storm lasts, and takes all
//! of them away afterwards, so that the world can come to rest.

use std::sync::Arc;

use ff_core::op::{
    BackfillSchedule, CreateSchedule, DeleteSchedule, GetSchedule, ListSchedules, PauseSchedule, ResumeSchedule,
    TriggerSchedule, UpdateSchedule,
};
use ff_core::{Code, CommandId};
use serde_json::{Value, json};

use crate::worker::LANES;
use crate::world::World;

/// The schedules of a run.
const NAMES: [&str; 4] = ["beat", "graph", "buffer", "replace"];

/// Acts until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 2_000);
        world.wait(pause).await;
        act(&world).await;
    }
    for name in NAMES {
        while !remove(&world, name).await {}
    }
}

/// Whether the schedule is gone.
async fn remove(world: &Arc<World>, name: &str) -> bool {
    match world.insist::<DeleteSchedule>(&json!({ "name": name })).await {
        Some(Ok(_)) => true,
        Some(Err(error)) => error.code == Code::ScheduleNotFound,
        None => false,
    }
}

async fn act(world: &Arc<World>) {
    let name = world.pick(&NAMES);
    let command = CommandId::mint(&world.mint());
    match world.between(0, 19) {
        0..=9 => drop(world.insist::<CreateSchedule>(&definition(world, name)).await),
        10 => {
            let mut args = definition(world, name);
            args["expected_revision"] = json!(world.between(1, 3));
            drop(world.insist::<UpdateSchedule>(&args).await);
        }
        11 => drop(world.insist::<PauseSchedule>(&json!({ "name": name, "note": "a look" })).await),
        12 | 13 => drop(world.insist::<ResumeSchedule>(&json!({ "name": name })).await),
        14 => drop(world.insist::<TriggerSchedule>(&json!({ "name": name, "command_id": command })).await),
        15 => {
            let to = world.store.now();
            let args = json!({ "name": name, "from": to - 20_000, "to": to, "command_id": command });
            drop(world.insist::<BackfillSchedule>(&args).await);
        }
        16 => drop(world.insist::<DeleteSchedule>(&json!({ "name": name })).await),
        17 => drop(world.insist::<ListSchedules>(&json!({})).await),
        _ => drop(world.insist::<GetSchedule>(&json!({ "name": name })).await),
    }
}

/// Every late instant is caught up on, so that each one is accounted for whatever crashes.
fn definition(world: &Arc<World>, name: &str) -> Value {
    let request = json!({
        "kind": "simulated", "lane": world.pick(&LANES), "policy": { "retention_ms": 100_000, "retry": { "max_retries": 0 } },
    });
    let node = |name: &str| json!({ "name": name, "request": request });
    let template = match name {
        "graph" => json!({ "flow": { "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] } }),
        _ => json!({ "execution": request }),
    };
    let overlap = match name {
        "buffer" => "buffer_one",
        "replace" => "cancel_previous",
        "graph" => "skip",
        _ => "allow",
    };
    json!({
        "name": name, "spec": { "every_ms": world.between(1, 4) * 2_500 }, "overlap": overlap, "template": template,
        "catch_up": { "all": { "max": 1_000 } }, "pause_after_failures": world.between(0, 4),
        "jitter_ms": world.between(0, 1) * 1_000,
    })
}
