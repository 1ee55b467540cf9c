//! A caller with subscriptions, and the receiver of their webhooks, which fails now and then. The caller creates,
//! pauses, tests and removes them while the storm lasts, and takes all of them away afterwards, so that the world can
//! come to rest.

use std::fmt;
use std::sync::{Arc, Weak};

use ff_core::op::{
    CreateHook, CreateSubscription, DeleteHook, DeleteSubscription, GetHook, GetSubscription, ListHooks,
    ListSubscriptions, PauseSubscription, ResumeSubscription, TestSubscription,
};
use ff_core::{Code, CommandId};
use ff_engine::env::BoxFuture;
use ff_engine::{Courier, Undelivered, Webhook};
use serde_json::{Value, json};

use crate::worker::LANES;
use crate::world::World;

/// The subscriptions of a run.
const NAMES: [&str; 5] = ["ends", "leases", "hooks", "waits", "births"];
/// The longest that the receiver takes for an answer.
const ANSWER_MAX_MS: i64 = 12_000;
/// How often it fails, in a thousand.
const FAILS: i64 = 400;

/// Acts until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 4_000);
        world.wait(pause).await;
        act(&world).await;
    }
    for name in NAMES {
        while !remove(&world, name).await {}
    }
    while world.insist::<DeleteHook>(&json!({ "name": "hook" })).await.is_none() {}
}

/// Whether the subscription is gone.
async fn remove(world: &Arc<World>, name: &str) -> bool {
    match world.insist::<DeleteSubscription>(&json!({ "name": name })).await {
        Some(Ok(_)) => true,
        Some(Err(error)) => error.code == Code::SubscriptionNotFound,
        None => false,
    }
}

async fn act(world: &Arc<World>) {
    let name = world.pick(&NAMES);
    match world.between(0, 17) {
        14 => {
            let target = json!({ "execution": { "kind": "simulated", "lane": LANES[0] } });
            drop(world.insist::<CreateHook>(&json!({ "name": "hook", "target": target })).await);
        }
        15 => drop(world.insist::<GetHook>(&json!({ "name": "hook" })).await),
        16 => drop(world.insist::<ListHooks>(&json!({})).await),
        17 => drop(world.insist::<DeleteHook>(&json!({ "name": "hook" })).await),
        0..=5 => drop(world.insist::<CreateSubscription>(&definition(world, name)).await),
        6 => drop(world.insist::<PauseSubscription>(&json!({ "name": name, "note": "a look" })).await),
        7 | 8 => drop(world.insist::<ResumeSubscription>(&json!({ "name": name })).await),
        9 => {
            let command = CommandId::mint(&world.mint());
            drop(world.insist::<TestSubscription>(&json!({ "name": name, "command_id": command })).await);
        }
        10 => drop(world.insist::<DeleteSubscription>(&json!({ "name": name })).await),
        11 => drop(world.insist::<ListSubscriptions>(&json!({})).await),
        _ => drop(world.insist::<GetSubscription>(&json!({ "name": name })).await),
    }
}

fn definition(world: &Arc<World>, name: &str) -> Value {
    let request = json!({
        "kind": "simulated", "lane": LANES[0], "policy": { "retention_ms": 100_000, "retry": { "max_retries": 0 } },
    });
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    match name {
        "ends" => json!({
            "name": name, "target": { "execution": request }, "filter": { "event_types": ["completed", "failed"] },
        }),
        "leases" => json!({
            "name": name, "target": { "execution": request }, "filter": { "event_types": ["lease_expired"] },
        }),
        "waits" => json!({
            "name": name, "target": { "execution": request },
            "filter": { "event_types": ["suspended", "resumed", "breached"] },
        }),
        "births" => json!({
            "name": name, "target": { "execution": request }, "filter": { "event_types": ["created"] },
        }),
        _ => json!({
            "name": name, "target": { "webhook": { "url": "https://example.com/", "secret": secret } },
            "retry": { "max_retries": world.between(0, 3), "backoff": { "fixed": { "delay_ms": 500 } } },
        }),
    }
}

/// The receiver of all webhooks.
pub(crate) fn courier(world: &Arc<World>) -> Arc<dyn Courier> {
    Arc::new(Receiver(Arc::downgrade(world)))
}

/// Held weakly: an engine must not keep its world alive.
struct Receiver(Weak<World>);

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

impl Courier for Receiver {
    fn send(&self, _webhook: Webhook) -> BoxFuture<'static, Result<u16, Undelivered>> {
        let world = self.0.upgrade();
        Box::pin(async move {
            let down = Undelivered { reason: "it is down".into(), category: "connection", retry_after_ms: None };
            let Some(world) = world else { return Err(down) };
            let takes = if world.stormy() { world.between(0, ANSWER_MAX_MS) } else { 10 };
            world.wait(takes).await;
            if world.stormy() && world.chance(FAILS) { Err(down) } else { Ok(200) }
        })
    }
}
