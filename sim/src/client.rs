//! A client: submits work of every kind, and asks about it.

use std::sync::Arc;

use ff_core::op::{CreateExecution, GetExecution};
use serde_json::{Value, json};

use crate::worker::LANES;
use crate::world::World;

/// Submits until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    let mut known = Vec::new();
    while world.stormy() {
        let pause = world.between(0, 400);
        world.wait(pause).await;
        if world.chance(750) || known.is_empty() {
            known.extend(submit(&world).await);
        } else {
            let id = world.pick(&known);
            let _ = world.insist::<GetExecution>(&json!({ "execution_id": id })).await;
        }
    }
}

async fn submit(world: &Arc<World>) -> Option<ff_core::ExecutionId> {
    let mut args = json!({
        "kind": "simulated",
        "lane": world.pick(&LANES),
        "priority": world.between(0, 3),
        "policy": policy(world),
    });
    match world.between(0, 3) {
        0 | 1 => args["execution_id"] = json!(world.mint_execution()),
        _ => args["idempotency_key"] = json!(format!("key-{}", world.executor.entropy())),
    }
    if world.chance(200) {
        args["delay_until"] = json!(world.store.now() + world.between(0, 8_000));
    }
    if world.chance(150) {
        args["required_capabilities"] = json!(["gpu"]);
    }
    if world.chance(300) {
        let color = world.pick(&["red", "blue"]);
        args["tags"] = json!({ "color": color });
    }
    let generation = world.checker().generation;
    let outcome = world.insist::<CreateExecution>(&args).await?.ok()?;
    let mut checker = world.checker();
    if checker.generation == generation {
        checker.acknowledged_create(outcome.execution_id);
    }
    Some(outcome.execution_id)
}

fn policy(world: &World) -> Value {
    let mut policy = json!({
        "retry": {
            "max_retries": world.between(0, 3),
            "backoff": { "fixed": { "delay_ms": world.between(0, 2_000) } },
            "non_retryable_categories": ["fatal"],
        },
        "max_reclaim_count": world.between(0, 4),
        "retention_ms": world.between(20_000, 100_000_000),
    });
    if world.chance(100) {
        policy["timeout"] = json!({ "attempt_timeout_ms": world.between(500, 5_000) });
    }
    if world.chance(100) {
        policy["timeout"] = json!({ "execution_deadline_ms": world.between(2_000, 20_000) });
    }
    policy
}
