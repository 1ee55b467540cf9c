//! Every route of the table: which callers are refused, and how.

use bytes::Bytes;
use ff_core::Role;
use ff_core::op::{Method, OPERATIONS, OperationInfo};
use serde_json::{Value, json};

use crate::support::{ADMIN, Answer, Client, Running, with_tokens};

pub(crate) const NOBODY: &str = "0000-0190a0a0-0000-7000-8000-000000000000";
const PLAIN: &str = "0190a0a0-0000-7000-8000-000000000000";

/// A path of a route, with these executions and flows in it.
pub(crate) fn path(info: &OperationInfo, execution: &str, flow: &str, waitpoint: &str) -> String {
    let filled = info.path.replace("{execution_id}", execution).replace("{flow_id}", flow);
    let filled = filled.replace("{waitpoint_id}", waitpoint).replace("{grant_id}", PLAIN).replace("{bulk_id}", PLAIN);
    let filled = filled.replace("{attempt}", "0").replace("{instance_id}", "w1");
    filled.replace("{name}", "n1").replace("{lane}", "default").replace("{kind}", "k1")
}

/// The least body an operation can be read from.
pub(crate) fn body(name: &str, execution: &str) -> Value {
    let fence = json!({ "attempt": 0, "lease_id": PLAIN, "epoch": 1 });
    match name {
        "complete" | "delay" | "wait_children" | "create_pending_waitpoint" => match name {
            "delay" => json!({ "fence": fence, "delay_ms": 1_000 }),
            _ => json!({ "fence": fence }),
        },
        "fail" => json!({ "fence": fence, "reason": "r" }),
        "progress" => json!({ "fence": fence, "pct": 1 }),
        "append_frames" => json!({ "fence": fence, "first_sequence": 1, "frames": [{ "type": "t" }] }),
        "record_steps" => {
            json!({ "fence": fence, "first_number": 1, "entries": [{ "name": "s", "state": "completed" }] })
        }
        "park" => {
            json!({ "fence": fence, "first_number": 1, "sleeps": [{ "step": { "name": "s" }, "sleep_ms": 60_000 }] })
        }
        "decide_step" => json!({ "answer": "fail" }),
        "continue_as_new" => json!({ "fence": fence }),
        "report_usage" => json!({ "fence": fence, "usage": { "tokens": 1 } }),
        "reserve_spend" => json!({ "fence": fence, "key": "k", "amounts": { "tokens": 1 } }),
        "acquire_provider" | "settle_provider" => json!({ "fence": fence, "provider": "n", "key": "k" }),
        "decide_budget" => json!({ "answer": "no" }),
        "settle_spend" | "release_spend" => json!({ "fence": fence, "key": "k" }),
        "suspend" => json!({ "fence": fence, "condition": { "any": [] }, "reason": "signal" }),
        "create_schedule" => {
            json!({ "name": "n2", "spec": { "every_ms": 60_000 }, "template": { "execution": { "kind": "k" } } })
        }
        "update_schedule" => {
            json!({ "spec": { "every_ms": 60_000 }, "template": { "execution": { "kind": "k" } } })
        }
        "create_bulk" => json!({ "filter": {}, "action": "hold" }),
        "create_hook" => json!({ "name": "n2", "target": { "execution": { "kind": "k" } } }),
        "create_subscription" => {
            json!({ "name": "n2", "target": { "webhook": { "url": "https://example.com/" } } })
        }
        "backfill_schedule" => json!({ "from": 1, "to": 2 }),
        "advance_test_clock" => json!({ "advance_ms": 1_000 }),
        "change_priority" => json!({ "priority": 1 }),
        "set_tags" => json!({ "tags": { "a": "b" } }),
        "deliver_signal" | "signal_waitpoint" => json!({ "name": "go" }),
        "stage_dependency_edge" => json!({ "upstream": execution, "downstream": NOBODY }),
        "apply_dependency_to_child" => json!({ "edge_id": PLAIN }),
        "add_execution_to_flow" => json!({ "execution_id": execution }),
        "claim_from_grant" | "claim_from_reclaim_grant" | "return_grant" => json!({ "execution_id": execution }),
        _ => json!({}),
    }
}

pub(crate) async fn send(client: &Client, info: &OperationInfo, path: &str, body: impl Into<Bytes>) -> Answer {
    let method = info.method.as_str().parse().unwrap();
    let body = if matches!(info.method, Method::Get | Method::Delete) { Bytes::new() } else { body.into() };
    client.with("content-type", "application/json").send(method, path, body).await
}

async fn token(admin: &Client, name: &str, namespace: &str, role: Role) -> String {
    let body = json!({ "name": name, "namespace": namespace, "role": role });
    admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_route_asks_for_a_token() {
    let server = Running::start(with_tokens()).await;
    for info in OPERATIONS {
        let path = path(info, NOBODY, NOBODY, NOBODY);
        for client in [server.client(), server.client_with("wrong"), server.client_with(&format!("ff_{PLAIN}_00"))] {
            let refused = send(&client, info, &path, "{}").await;
            assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{}", info.name);
        }
    }
    let stream = server.client().get(&format!("/v1/executions/{NOBODY}/stream")).await;
    assert_eq!(stream.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn every_route_refuses_the_wrong_role() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let mut clients = Vec::new();
    for role in [Role::Reader, Role::Submitter, Role::Worker, Role::Operator, Role::Approver] {
        let token = token(&admin, role.as_str(), "default", role).await;
        clients.push((role, server.client_with(&token)));
    }
    let mut refusals = 0;
    for info in OPERATIONS {
        let path = path(info, NOBODY, NOBODY, NOBODY);
        for (role, client) in &clients {
            // An operation that a submitter may use on its own work is refused by its target, not by the role.
            if info.any_role || role.allows(info.role) || info.own && *role == Role::Submitter {
                continue;
            }
            for sent in [body(info.name, NOBODY).to_string(), "{\"nonsense\":1}".to_owned()] {
                // An approver may signal what waits for a decision, which nonsense does not say.
                let expected = match info.waitpoint_token && *role == Role::Approver && sent.contains("nonsense") {
                    true => (400, "invalid"),
                    false => (403, "forbidden"),
                };
                let refused = send(client, info, &path, sent).await;
                assert_eq!((refused.status, refused.code().as_str()), expected, "{} as {role}", info.name);
                refusals += 1;
            }
        }
    }
    assert!(refusals > 100);
    server.stop().await;
}

#[tokio::test]
async fn every_route_refuses_garbage_and_too_much() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    for info in OPERATIONS {
        let path = path(info, NOBODY, NOBODY, NOBODY);
        let unknown = send(&admin, info, &format!("{path}?nonsense=1"), body(info.name, NOBODY).to_string()).await;
        assert_eq!(unknown.status, 400, "{}: {:?}", info.name, unknown.body);
        assert!(["invalid", "invalid_filter"].contains(&unknown.code().as_str()), "{}", info.name);
        assert_eq!(unknown.json()["details"]["field"], "nonsense", "{}", info.name);
        if matches!(info.method, Method::Get | Method::Delete) {
            continue;
        }
        for garbage in ["{", "[]", "\u{feff}{}", "{\"a\":1}}"] {
            let refused = send(&admin, info, &path, garbage).await;
            assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{} {garbage:?}", info.name);
        }
        let full = send(&admin, info, &path, vec![b' '; info.body_max_bytes]).await;
        assert_ne!(full.status, 413, "{} at its limit", info.name);
        let refused = send(&admin, info, &path, vec![b' '; info.body_max_bytes + 1]).await;
        assert_eq!((refused.status, refused.code().as_str()), (413, "payload_too_large"), "{}", info.name);
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_in_another_namespace_is_not_there() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let submitted = admin.post("/v1/executions", &json!({ "kind": "k", "namespace": "theirs" })).await.ok();
    let execution = submitted["execution_id"].as_str().unwrap().to_owned();
    let made = admin.post("/v1/flows", &json!({ "kind": "k", "namespace": "theirs" })).await.ok();
    let flow = made["flow_id"].as_str().unwrap().to_owned();
    let token = token(&admin, "mine", "mine", Role::Operator).await;
    let mine = server.client_with(&token);
    let mut checked = 0;
    for info in OPERATIONS {
        let names_theirs = info.path.contains("{execution_id}") || info.path.contains("{flow_id}");
        let names_theirs = names_theirs || body(info.name, &execution)["execution_id"].is_string();
        if !names_theirs || info.method == Method::Delete {
            continue;
        }
        let path = path(info, &execution, &flow, NOBODY);
        let refused = send(&mine, info, &path, body(info.name, &execution).to_string()).await;
        let code = refused.code();
        assert_eq!(refused.status, 404, "{}: {:?}", info.name, refused.body);
        assert!(
            ["execution_not_found", "flow_not_found", "waitpoint_not_found"].contains(&code.as_str()),
            "{}: {code}",
            info.name
        );
        checked += 1;
    }
    assert!(checked > 35, "{checked}");
    let stream = mine.get(&format!("/v1/executions/{execution}/stream")).await;
    assert_eq!((stream.status, stream.code().as_str()), (404, "execution_not_found"));
    // Lists show nothing of it, and naming the namespace is refused.
    let listed = mine.get("/v1/executions").await.ok();
    assert_eq!(listed["items"], json!([]));
    assert_eq!(mine.get("/v1/executions?namespace=theirs").await.status, 403);
    assert_eq!(admin.get(&format!("/v1/executions/{execution}")).await.status, 200);
    server.stop().await;
}
