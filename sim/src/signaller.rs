//! Whoever answers waitpoints: approvals, webhooks, their repeats, and forgers.

use std::sync::Arc;

use ff_core::SignalOutcome;
use ff_core::op::DeliverSignal;
use serde_json::json;

use crate::checker::FORGED;
use crate::world::World;

/// Signals until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 300);
        world.wait(pause).await;
        let waitpoints = world.desk().waitpoints.clone();
        if waitpoints.is_empty() {
            continue;
        }
        let open = waitpoints[world.random().below(waitpoints.len())].clone();
        let forged = world.chance(100);
        // Few keys, so that many signals are repeats of others.
        let key = world.between(0, 5);
        let key = if forged { format!("{FORGED}-{key}") } else { format!("key-{key}") };
        let token = if forged { open.token.replace(['a', 'b', 'c'], "d") } else { open.token.clone() };
        if forged && token == open.token {
            continue;
        }
        let mut args = json!({
            "execution_id": open.execution, "waitpoint_id": open.waitpoint, "token": token,
            "name": world.pick(&["approve", "reject", "note"]), "idempotency_key": key, "correlation_id": key,
            "source_type": "person", "source_identity": world.pick(&["ann", "bob"]),
        });
        if world.chance(100) {
            args["resume_delay_ms"] = json!(world.between(0, 3_000));
        }
        let generation = world.checker().generation;
        let Some(Ok(outcome)) = world.insist::<DeliverSignal>(&args).await else { continue };
        let signal = match outcome {
            SignalOutcome::Accepted { signal_id, .. } | SignalOutcome::TriggeredResume { signal_id } => signal_id,
            SignalOutcome::Duplicate { existing_signal_id } => existing_signal_id,
        };
        let mut checker = world.checker();
        if checker.generation == generation {
            checker.acknowledged_signal(signal);
        }
    }
}
