//! Signallers that answer waitpoints: approvals, webhooks, their repeats, and forgers.

use std::sync::Arc;

use ff_core::op::{DeliverSignal, ReadQuestion, SignalWaitpoint};
use ff_core::{Code, SignalOutcome, Waitpoint};
use serde_json::json;

use crate::checker::FORGED;
use crate::desk::OpenWaitpoint;
use crate::invariant::Invariant;
use crate::world::World;

/// The names of signals, and the people who send them.
const NAMES: [&str; 3] = ["approve", "reject", "note"];
const PEOPLE: [&str; 2] = ["ann", "bob"];

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
        let number = world.between(0, 5);
        let key = if forged { format!("{FORGED}-{number}") } else { format!("key-{number}") };
        let token = if forged { open.token.replace(['a', 'b', 'c'], "d") } else { open.token.clone() };
        if forged && token == open.token {
            continue;
        }
        // A key stands for one signal, now and then by mistake for two: the second is taken for the first.
        let spoken = usize::try_from(number).unwrap_or(0) + usize::from(world.chance(30));
        let mut args = json!({
            "execution_id": open.execution, "waitpoint_id": open.waitpoint, "token": token,
            "name": NAMES[spoken % NAMES.len()], "idempotency_key": key, "correlation_id": key,
            "source_type": "person", "source_identity": PEOPLE[spoken % PEOPLE.len()],
        });
        if !forged && world.chance(150) {
            // Without a key it counts as often as it is sent, which is once.
            if let Some(args) = args.as_object_mut() {
                args.remove("idempotency_key");
            }
            args["correlation_id"] = json!(format!("once-{}", world.executor.entropy()));
            if world.chance(500) {
                if let Some(args) = args.as_object_mut() {
                    args.remove("execution_id");
                }
                // A person behind a link reads what is asked, and answers.
                let asked = json!({ "waitpoint_id": args["waitpoint_id"], "token": args["token"] });
                drop(world.call::<ReadQuestion>(&asked).await);
                drop(world.call::<SignalWaitpoint>(&args).await);
            } else {
                drop(world.call::<DeliverSignal>(&args).await);
            }
            continue;
        }
        if world.chance(100) {
            args["resume_delay_ms"] = json!(world.between(0, 3_000));
        }
        let generation = world.checker().generation;
        let there = is_there(&world, &open);
        let answer = world.insist::<DeliverSignal>(&args).await;
        if let Some(Err(error)) = &answer
            && matches!(error.code, Code::InvalidToken | Code::TokenExpired)
            && there
            && !forged
            && is_there(&world, &open)
        {
            let mut checker = world.checker();
            // A store that forgets may forget a secret, and with it every token that it signed.
            let remembers = checker.generation == 0;
            checker.expect(!remembers, Invariant::SignalsOnce, || {
                format!("the token of {} was refused: {error}", open.waitpoint)
            });
        }
        let Some(Ok(outcome)) = answer else { continue };
        let signal = match outcome {
            SignalOutcome::Accepted { signal_id, .. } | SignalOutcome::TriggeredResume { signal_id } => signal_id,
            SignalOutcome::Duplicate { existing_signal_id } => existing_signal_id,
            SignalOutcome::Unknown(_) => continue,
        };
        let mut checker = world.checker();
        if checker.generation == generation {
            checker.acknowledged_signal(signal);
        }
    }
}

/// Whether the waitpoint is still stored: one that its execution's retention took away is unknown to the server.
fn is_there(world: &World, open: &OpenWaitpoint) -> bool {
    let key = Waitpoint::key_of(&open.waitpoint);
    world.store.inspect(|contents| {
        contents.partition(open.execution.partition()).is_some_and(|contents| contents.document(&key).is_some())
    })
}
