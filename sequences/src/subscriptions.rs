//! Subscriptions: each event once, by the contract's sequence 53.

use std::collections::BTreeSet;

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, text};

/// A subscription whose deliveries are executions of kind `told` in a lane of their own.
async fn subscribe(world: &World, name: &str, filter: Value, retries: u32) -> Value {
    let policy = json!({ "retry": { "max_retries": retries, "backoff": { "fixed": { "delay_ms": 10 } } } });
    let template = json!({ "kind": "told", "lane": "told", "policy": policy });
    let args = json!({ "name": name, "filter": filter, "target": { "execution": template } });
    world.must("create_subscription", args).await
}

async fn get(world: &World, name: &str) -> Value {
    world.must("get_subscription", json!({ "name": name })).await
}

/// Takes a delivery.
async fn delivery(world: &World) -> Value {
    let more = json!({ "lanes": ["told"] });
    world.claim_with(more).await.unwrap_or_else(|| panic!("{}: nothing was delivered", world.namespace))
}

/// The execution that a delivery is about, and what happened to it.
fn delivered(world: &World, task: &Value) -> (String, String) {
    let message = &task["input"]["payload"];
    assert_eq!(message["namespace"], json!(world.namespace));
    assert_eq!(message["type"], message["data"]["event"]["event_type"]);
    (text(&message["data"]["event"]["execution_id"]), text(&message["type"]))
}

/// A receiver that fails and recovers gets each event once; one that never does leaves a dead letter, which is
/// replayed. Events about deliveries are not delivered.
pub(crate) async fn s53_each_event_is_delivered_once_or_is_a_dead_letter(world: World) {
    let created = subscribe(&world, "ends", json!({ "event_types": ["completed", "failed"] }), 1).await;
    assert_eq!(created["outcome"], "created");
    let again = subscribe(&world, "ends", json!({ "event_types": ["completed", "failed"] }), 1).await;
    assert_eq!((&again["outcome"], &again["subscription_id"]), (&json!("already_exists"), &created["subscription_id"]));
    let other = json!({ "name": "ends", "target": { "execution": { "kind": "other" } } });
    world.refused("create_subscription", other, Code::DefinitionConflict).await;
    let mut expected = BTreeSet::new();
    for number in 0..3 {
        let (id, fence) = world.in_hand(json!({})).await;
        world.complete(&id, &fence, json!(number)).await;
        expected.insert((id, "completed".to_owned()));
    }
    // The receiver fails with each of them once. The first fails for good.
    let mut got = BTreeSet::new();
    let mut tasks = BTreeSet::new();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(delivery(&world).await);
    }
    for task in held {
        got.insert(delivered(&world, &task));
        tasks.insert(text(&task["execution_id"]));
        let args = json!({ "execution_id": task["execution_id"], "fence": task["fence"], "reason": "down" });
        assert_eq!(world.must("fail", args).await["outcome"], "retry_scheduled");
    }
    assert_eq!(got, expected, "each event, once");
    let letter = delivery(&world).await;
    assert!(tasks.contains(&text(&letter["execution_id"])), "the same delivery again");
    world.fail_for_good(&letter).await;
    for _ in 0..2 {
        let task = delivery(&world).await;
        assert!(tasks.contains(&text(&task["execution_id"])));
        world.complete(&text(&task["execution_id"]), &task["fence"], json!("received")).await;
    }
    // A dead letter is a failed execution; replayed, it arrives.
    let letter = text(&letter["execution_id"]);
    world.is(&letter, "failed").await;
    world.must("replay_execution", json!({ "execution_id": letter })).await;
    let task = delivery(&world).await;
    assert_eq!(text(&task["execution_id"]), letter);
    world.complete(&letter, &task["fence"], json!("received")).await;
    // One event more; the events about the deliveries before it were not delivered.
    let (id, fence) = world.in_hand(json!({})).await;
    world.complete(&id, &fence, json!("last")).await;
    let task = delivery(&world).await;
    assert_eq!(delivered(&world, &task), (id, "completed".to_owned()));
    world.complete(&text(&task["execution_id"]), &task["fence"], json!("received")).await;
    let shown = get(&world, "ends").await;
    assert_eq!((&shown["delivery_count"], &shown["gaps"], &shown["refused_count"]), (&json!(4), &json!(0), &json!(0)));
    let deliveries = shown["deliveries"].as_array().expect("a list");
    assert_eq!(deliveries.len(), 4);
    assert!(deliveries.iter().all(|one| one["public_state"] == "completed"), "{deliveries:?}");
    assert!(world.claim_with(json!({ "lanes": ["told"], "wait_ms": 0 })).await.is_none());
}

/// A filter passes over what it does not name; a paused subscription goes on where it stopped; a removed one is gone, and one
/// made anew begins with what happens then.
pub(crate) async fn s53_a_subscription_is_filtered_paused_tested_and_removed(world: World) {
    let filter = json!({ "event_types": ["completed"], "kinds": ["test"], "tags": { "team": "a" } });
    subscribe(&world, "some", filter.clone(), 0).await;
    let run = async |more: Value| {
        let (id, fence) = world.in_hand(more).await;
        world.complete(&id, &fence, json!(null)).await;
        id
    };
    run(json!({})).await;
    run(json!({ "tags": { "team": "b" } })).await;
    let wanted = run(json!({ "tags": { "team": "a", "more": "x" } })).await;
    let task = delivery(&world).await;
    assert_eq!(delivered(&world, &task).0, wanted, "the others were passed over");
    world.complete(&text(&task["execution_id"]), &task["fence"], json!(null)).await;
    let paused = world.must("pause_subscription", json!({ "name": "some", "note": "moved" })).await;
    assert_eq!((&paused["state"], &paused["note"]["text"]), (&json!("paused"), &json!("moved")));
    // A pause holds everywhere within a second of its answer. Events that come meanwhile wait.
    let mut waiting = BTreeSet::new();
    for _ in 0..3 {
        waiting.insert(run(json!({ "tags": { "team": "a" } })).await);
    }
    let resumed = world.must("resume_subscription", json!({ "name": "some" })).await;
    assert_eq!(resumed["state"], "active");
    let mut got = BTreeSet::new();
    for _ in 0..3 {
        let task = delivery(&world).await;
        got.insert(delivered(&world, &task).0);
        world.complete(&text(&task["execution_id"]), &task["fence"], json!(null)).await;
    }
    assert_eq!(got, waiting);
    let tested = world.must("test_subscription", json!({ "name": "some" })).await;
    let task = delivery(&world).await;
    assert_eq!(task["execution_id"], tested["execution_id"]);
    assert_eq!(task["input"]["payload"]["type"], "test");
    world.complete(&text(&task["execution_id"]), &task["fence"], json!(null)).await;
    let listed = world.must("list_subscriptions", json!({})).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    // Removed, and made anew: events in between are delivered to neither.
    world.must("delete_subscription", json!({ "name": "some" })).await;
    world.refused("get_subscription", json!({ "name": "some" }), Code::SubscriptionNotFound).await;
    run(json!({ "tags": { "team": "a" } })).await;
    subscribe(&world, "some", filter, 0).await;
    let after = run(json!({ "tags": { "team": "a" } })).await;
    let task = delivery(&world).await;
    assert_eq!(delivered(&world, &task).0, after);
    world.must("delete_subscription", json!({ "name": "some" })).await;
    // The lane of webhooks is the engine's own.
    let own = "ff:deliveries";
    world.refused("create_execution", json!({ "kind": "k", "lane": own }), Code::Forbidden).await;
    world.refused("claim", json!({ "instance_id": "w", "lanes": [own] }), Code::Forbidden).await;
    let bad = json!({ "name": "bad", "target": { "webhook": { "url": "ftp://example.com" } } });
    let details = world.refused("create_subscription", bad, Code::Invalid).await;
    assert_eq!(details["field"], "target.webhook.url");
    let bad =
        json!({ "name": "bad", "target": { "execution": merged(json!({ "kind": "k" }), json!({ "input": 1 })) } });
    world.refused("create_subscription", bad, Code::Invalid).await;
}

/// Takes deliveries until there are so many; answers with their messages in no order that means anything.
async fn messages(world: &World, count: usize) -> Vec<Value> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let task = delivery(world).await;
        world.complete(&text(&task["execution_id"]), &task["fence"], json!(null)).await;
        messages.push(task["input"]["payload"].clone());
    }
    messages
}

/// Suspensions, resumptions and breaches of budgets are events. A creation is one where a subscription asks for it, and
/// nowhere else.
pub(crate) async fn s53_waits_breaches_and_creations_are_events_too(world: World) {
    let (id, fence) = world.in_hand(json!({})).await;
    subscribe(&world, "waits", json!({ "event_types": ["suspended", "resumed", "breached"] }), 0).await;
    let condition = json!({ "execution_id": id, "fence": fence, "reason": "approval",
        "condition": { "any": [{ "name": "approve" }] } });
    let suspended = world.must("suspend", condition).await;
    let approve = json!({ "execution_id": id, "waitpoint_id": suspended["waitpoint_id"],
        "token": suspended["token"], "name": "approve" });
    world.must("deliver_signal", approve).await;
    let mut told: Vec<(String, String)> = messages(&world, 2)
        .await
        .iter()
        .map(|message| {
            assert_eq!(message["data"]["event"]["execution_id"], json!(id));
            (text(&message["type"]), text(&message["data"]["event"]["detail"]))
        })
        .collect();
    told.sort();
    let told: Vec<(&str, &str)> = told.iter().map(|(name, detail)| (name.as_str(), detail.as_str())).collect();
    assert_eq!(told, [("resumed", "signals"), ("suspended", "approval")]);
    let task = world.claim().await;
    world.complete(&id, &task["fence"], json!(null)).await;

    let budget = json!({ "name": "team", "dimensions": { "tokens": { "hard": 100, "soft": 50 } } });
    world.must("create_budget", budget).await;
    let spend = async |amount: i64| {
        let args = json!({ "name": "team", "usage": { "tokens": amount } });
        text(&world.must("report_budget_usage", args).await["outcome"])
    };
    let spent = [spend(60).await, spend(1).await, spend(60).await, spend(60).await];
    assert_eq!(spent, ["soft_breach", "soft_breach", "hard_breach", "hard_breach"]);
    world.must("reset_budget", json!({ "name": "team" })).await;
    assert_eq!(spend(101).await, "hard_breach", "a new window breaches anew");
    let mut breaches = Vec::new();
    for message in messages(&world, 3).await {
        let event = &message["data"]["event"];
        assert_eq!((&message["type"], &event["execution_id"]), (&json!("breached"), &Value::Null));
        let breach = &event["breach"];
        assert_eq!((&breach["budget"], &breach["dimension"]), (&json!("team"), &json!("tokens")));
        breaches.push((text(&breach["level"]), breach["current"].as_i64(), breach["limit"].as_i64()));
    }
    breaches.sort();
    let expected = [("hard", 0, 100), ("hard", 61, 100), ("soft", 60, 50)];
    assert_eq!(breaches, expected.map(|(level, current, limit)| (level.to_owned(), Some(current), Some(limit))));

    // No subscription asked for creations so far, so the log has none.
    let page = world.must("list_events", json!({ "kinds": ["creation"] })).await;
    assert_eq!(page["items"], json!([]));
    subscribe(&world, "births", json!({ "event_types": ["created"], "kinds": ["test"] }), 0).await;
    // Every server knows of it within a second.
    world
        .until("a creation is told", async || {
            world.submit(json!({ "lane": "elsewhere" })).await;
            let wait = json!({ "lanes": ["told"], "wait_ms": 100 });
            let Some(task) = world.claim_with(wait).await else { return false };
            world.complete(&text(&task["execution_id"]), &task["fence"], json!(null)).await;
            delivered(&world, &task).1 == "created"
        })
        .await;
    world.must("delete_subscription", json!({ "name": "births" })).await;
    world.must("delete_subscription", json!({ "name": "waits" })).await;
}
