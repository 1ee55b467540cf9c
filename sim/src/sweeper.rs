//! A caller with bulk jobs: begins, watches and stops them while the storm lasts. Jobs that are under way then come to
//! their end.

use std::sync::Arc;

use ff_core::op::{CancelBulk, CreateBulk, GetBulk, ListBulk};
use ff_core::{BulkId, CommandId};
use serde_json::{Value, json};

use crate::worker::LANES;
use crate::world::World;

/// Acts until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    let mut jobs: Vec<BulkId> = Vec::new();
    while world.stormy() {
        let pause = world.between(0, 4_000);
        world.wait(pause).await;
        act(&world, &mut jobs).await;
    }
}

async fn act(world: &Arc<World>, jobs: &mut Vec<BulkId>) {
    match (world.between(0, 9), jobs.as_slice()) {
        (0..=5, _) | (_, []) => {
            if let Some(Ok(job)) = world.insist::<CreateBulk>(&request(world)).await {
                jobs.push(job.bulk_id);
            }
        }
        (6, known) => drop(world.insist::<CancelBulk>(&json!({ "bulk_id": world.pick(known) })).await),
        (7, _) => drop(world.insist::<ListBulk>(&json!({ "limit": 2 })).await),
        (_, known) => drop(world.insist::<GetBulk>(&json!({ "bulk_id": world.pick(known) })).await),
    }
}

fn request(world: &Arc<World>) -> Value {
    let filter = match world.between(0, 4) {
        0 => json!({ "state": ["failed", "cancelled", "expired"] }),
        1 => json!({ "tag": format!("color={}", world.pick(&["red", "blue", "green"])) }),
        2 => json!({ "lane": world.pick(&LANES) }),
        3 => json!({ "state": ["waiting", "delayed", "suspended"] }),
        _ => json!({}),
    };
    let action = world.pick(&["cancel", "replay", "hold", "release", "set_priority", "set_tags", "remove"]);
    let mut args = json!({
        "filter": filter, "action": action, "max": world.between(1, 40), "dry_run": world.chance(200),
        "command_id": CommandId::mint(&world.mint()),
    });
    if world.chance(300) {
        args["rate_per_second"] = json!(world.between(5, 100));
    }
    match action {
        "set_priority" => args["priority"] = json!(world.between(0, 9)),
        "set_tags" => args["tags"] = json!({ "color": world.pick(&["red", "blue", "green"]) }),
        "cancel" | "hold" => args["reason"] = json!("all of them"),
        _ => {}
    }
    args
}
