//! A caller that wants ended work back at the last moment: when its retention is over, and while it is being removed.

use std::sync::Arc;

use ff_core::op::ReplayExecution;
use ff_core::{CommandId, ExecutionId, Partition};
use serde_json::json;

use crate::world::World;

/// Work that goes within this time is about to go.
const SOON_MS: i64 = 300;

/// Replays until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(10, 300);
        world.wait(pause).await;
        if let Some(id) = about_to_go(&world) {
            let command = CommandId::mint(&world.mint());
            drop(world.insist::<ReplayExecution>(&json!({ "execution_id": id, "command_id": command })).await);
        }
    }
}

/// Something that is being removed, or will be soon.
fn about_to_go(world: &World) -> Option<ExecutionId> {
    let now = world.times();
    let going: Vec<ExecutionId> = {
        let checker = world.checker();
        let soon = |partition: Partition, at: Option<i64>| at.is_some_and(|at| at <= now(partition) + SOON_MS);
        let facts = &checker.facts;
        let goes = |seen: &&crate::checker::Seen| {
            let document = &seen.document;
            match document.flow.and_then(|flow| facts.flows.get(&flow)) {
                Some(flow) => {
                    let until = flow.ended.as_ref().and_then(|end| end.retain_until);
                    flow.removing || soon(flow.id.partition(), until)
                }
                None => document.removal.is_some() || soon(document.id.partition(), document.removable_at()),
            }
        };
        facts.executions.values().filter(goes).map(|seen| seen.document.id).collect()
    };
    world.random().pick(&going).copied()
}
