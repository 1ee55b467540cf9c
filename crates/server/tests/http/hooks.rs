//! Inbound hooks: messages that a system outside signs lead to work, once each, and nothing else does.

use std::time::{SystemTime, UNIX_EPOCH};

use ff_core::signature;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{ADMIN, Answer, Client, Running, with_tokens};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PLAIN: &str = "canary secret of a hook";

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// A message signed by Standard Webhooks.
async fn send(client: &Client, path: &str, id: &str, at_s: i64, body: &str) -> Answer {
    let secret = signature::read_secret("secret", SECRET).unwrap();
    let signed = signature::sign(&secret, id, at_s, body.as_bytes());
    let client = client.with("webhook-id", id).with("webhook-timestamp", &at_s.to_string());
    let client = client.with("webhook-signature", &signed).with("content-type", "application/json");
    client.send(Method::POST, path, body.to_owned()).await
}

async fn create(admin: &Client, name: &str, more: Value) -> Value {
    let mut body = json!({ "name": name, "secret": SECRET });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    admin.post("/v1/hooks", &body).await.ok()
}

#[tokio::test]
async fn other_methods_are_told_that_messages_are_posted() {
    let server = Running::start(with_tokens()).await;
    let refused = server.client_with(ADMIN).send(hyper::Method::PATCH, "/v1/hooks/h", "").await;
    assert_eq!(refused.status, 405);
    let allowed = refused.headers["allow"].to_str().unwrap().to_owned();
    assert!(["GET", "DELETE", "POST"].iter().all(|method| allowed.contains(method)), "{allowed}");
    server.stop().await;
}

#[tokio::test]
async fn a_signed_message_creates_an_execution_once_and_needs_no_token() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create(&admin, "orders", json!({ "target": { "execution": { "kind": "order", "tags": { "from": "shop" } } } }))
        .await;
    let body = r#"{"order": 7,  "big": 12345678901234567890123}"#;
    let first = send(&stranger, "/v1/hooks/orders", "m1", now_s(), body).await.ok();
    assert_eq!(first["duplicate"], false);
    let again = send(&stranger, "/v1/hooks/orders", "m1", now_s(), body).await.ok();
    assert_eq!((&again["duplicate"], &again["execution_id"]), (&json!(true), &first["execution_id"]));
    let other = send(&stranger, "/v1/hooks/orders", "m2", now_s(), body).await.ok();
    assert_ne!(other["execution_id"], first["execution_id"]);
    let path = format!("/v1/executions/{}", first["execution_id"].as_str().unwrap());
    let shown = admin.get(&path).await.ok();
    assert_eq!((&shown["kind"], &shown["tags"]["from"]), (&json!("order"), &json!("shop")));
    let input = admin.get(&format!("{path}/input")).await;
    assert_eq!(input.body, body.as_bytes(), "to the letter");
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_signed_old_changed_or_for_nobody_is_refused_alike() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create(&admin, "orders", json!({ "target": { "execution": { "kind": "order" } } })).await;
    let json_client = stranger.with("content-type", "application/json");
    let unsigned = json_client.send(Method::POST, "/v1/hooks/orders", "{}").await;
    let old = send(&stranger, "/v1/hooks/orders", "m1", now_s() - 301, "{}").await;
    let nobody = send(&stranger, "/v1/hooks/nothing", "m1", now_s(), "{}").await;
    let elsewhere = send(&stranger, "/v1/hooks/orders?namespace=other", "m1", now_s(), "{}").await;
    let forged = json_client.with("webhook-id", "m1").with("webhook-timestamp", &now_s().to_string());
    let forged = forged.with("webhook-signature", "v1,AAAA").send(Method::POST, "/v1/hooks/orders", "{}").await;
    for refused in [&unsigned, &old, &nobody, &elsewhere, &forged] {
        assert_eq!((refused.status, refused.code().as_str()), (401, "invalid_signature"));
        assert_eq!(refused.json()["detail"], unsigned.json()["detail"]);
    }
    let large = "x".repeat(1024 * 1024 + 1);
    assert_eq!(send(&stranger, "/v1/hooks/orders", "m1", now_s(), &large).await.status, 413);
    assert_eq!(admin.get("/v1/executions").await.ok()["items"], json!([]), "nothing came of any of it");
    // The API token of an administrator is no signature.
    let token = admin.with("content-type", "application/json").send(Method::POST, "/v1/hooks/orders", "{}").await;
    assert_eq!(token.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn github_and_slack_are_verified_by_their_own_signatures() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    let target = json!({ "execution": { "kind": "k" } });
    for scheme in ["github", "slack"] {
        create(&admin, scheme, json!({ "scheme": scheme, "secret": PLAIN, "target": target })).await;
    }
    // Computed by `openssl dgst -sha256 -hmac 'canary secret of a hook'`.
    let github = "sha256=5296d37ddb3c2678a2ca7098d1da183b36f38a270b55ed9810ae08367ffb4796";
    let signed = stranger.with("x-hub-signature-256", github).with("x-github-delivery", "d1");
    let first = signed.send(Method::POST, "/v1/hooks/github", r#"{"zen":"Keep it logically awesome."}"#).await.ok();
    let again = signed.send(Method::POST, "/v1/hooks/github", r#"{"zen":"Keep it logically awesome."}"#).await.ok();
    assert_eq!((&again["duplicate"], &again["execution_id"]), (&json!(true), &first["execution_id"]));
    assert_eq!(signed.send(Method::POST, "/v1/hooks/github", "{}").await.status, 401);
    assert_eq!(signed.send(Method::POST, "/v1/hooks/slack", "{}").await.status, 401);
    // An instant long ago: the signature is right, and too old.
    let slack = stranger
        .with("x-slack-request-timestamp", "1531420618")
        .with("x-slack-signature", "v0=ef25b0de8e74e41ed13199411a6ba4eac62262bf0aa883232a0a1b96a14993f2");
    assert_eq!(slack.send(Method::POST, "/v1/hooks/slack", "{}").await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_message_makes_a_flow_and_another_signals_what_waits_for_it() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    let node = |name: &str| json!({ "name": name, "request": { "kind": name } });
    let flow = json!({ "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
    create(&admin, "graphs", json!({ "target": { "flow": flow } })).await;
    let made = send(&stranger, "/v1/hooks/graphs", "m1", now_s(), "{\"n\":1}").await.ok();
    let again = send(&stranger, "/v1/hooks/graphs", "m1", now_s(), "{\"n\":1}").await.ok();
    assert_eq!((&again["duplicate"], &again["flow_id"]), (&json!(true), &made["flow_id"]));
    let claimed = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["default"], "wait_ms": 5_000 })).await.ok();
    assert_eq!(
        (&claimed["tasks"][0]["kind"], &claimed["tasks"][0]["input"]["payload"]),
        (&json!("a"), &json!({ "n": 1 }))
    );
    // A signal to the execution that has the value as a tag.
    let signal = json!({ "correlation_id": "/order/id", "tag": "order", "name": "paid" });
    create(&admin, "payments", json!({ "target": { "signal": signal } })).await;
    let order = json!({ "kind": "order", "lane": "orders", "tags": { "order": "77" } });
    let id = admin.post("/v1/executions", &order).await.ok()["execution_id"].as_str().unwrap().to_owned();
    let claimed = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["orders"], "wait_ms": 5_000 })).await.ok();
    let fence = &claimed["tasks"][0]["fence"];
    let condition = json!({ "any": [{ "name": "paid" }] });
    let body = json!({ "fence": fence, "condition": condition, "reason": "signal" });
    admin.post(&format!("/v1/executions/{id}/suspend"), &body).await.ok();
    let unknown = send(&stranger, "/v1/hooks/payments", "p0", now_s(), r#"{"order":{"id":78}}"#).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "execution_not_found"));
    let nothing = send(&stranger, "/v1/hooks/payments", "p0", now_s(), "{}").await;
    assert_eq!((nothing.status, nothing.code().as_str()), (400, "invalid"));
    let paid = send(&stranger, "/v1/hooks/payments", "p1", now_s(), r#"{"order":{"id":77}}"#).await.ok();
    assert_eq!((&paid["execution_id"], &paid["duplicate"]), (&json!(id), &json!(false)));
    let again = send(&stranger, "/v1/hooks/payments", "p1", now_s(), r#"{"order":{"id":77}}"#).await.ok();
    assert_eq!(again["duplicate"], true, "it was resumed, and the message had its effect");
    let claimed = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["orders"], "wait_ms": 5_000 })).await.ok();
    let signals = &claimed["tasks"][0]["resume_signals"];
    assert_eq!((&signals[0]["name"], signals.as_array().map(Vec::len)), (&json!("paid"), Some(1)));
    server.stop().await;
}

const TO_ORDERS: &str = r#"{"order":{"id":77}}"#;

async fn create_signals(admin: &Client) {
    let signal = json!({ "correlation_id": "/order/id", "tag": "order", "name": "paid" });
    create(admin, "payments", json!({ "target": { "signal": signal } })).await;
}

async fn submit_order(admin: &Client) -> String {
    let order = json!({ "kind": "order", "tags": { "order": "77" } });
    admin.post("/v1/executions", &order).await.ok()["execution_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_signal_finds_the_open_execution_behind_many_that_have_ended() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create_signals(&admin).await;
    let open = submit_order(&admin).await;
    for _ in 0..250 {
        let ended = submit_order(&admin).await;
        admin.post(&format!("/v1/executions/{ended}/cancel"), &json!({})).await.ok();
    }
    let sent = send(&stranger, "/v1/hooks/payments", "p1", now_s(), TO_ORDERS).await.ok();
    assert_eq!(sent["execution_id"], json!(open));
    server.stop().await;
}

/// What is submitted meanwhile is the newest for a moment: each copy of the message could choose another one.
#[tokio::test]
async fn copies_of_a_message_that_come_at_once_signal_one_execution() {
    const MESSAGES: usize = 8;
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create_signals(&admin).await;
    submit_order(&admin).await;
    for message in 0..MESSAGES {
        let id = format!("p{message}");
        let copies = (0..6).map(|_| send(&stranger, "/v1/hooks/payments", &id, now_s(), TO_ORDERS));
        let submissions = (0..6).map(|_| submit_order(&admin));
        let (receipts, _) = futures_util::future::join(
            futures_util::future::join_all(copies),
            futures_util::future::join_all(submissions),
        )
        .await;
        let receipts: Vec<Value> = receipts.into_iter().map(Answer::ok).collect();
        assert!(receipts.iter().all(|receipt| receipt["execution_id"] == receipts[0]["execution_id"]), "{receipts:?}");
        let had_their_effect = receipts.iter().filter(|receipt| receipt["duplicate"] == false).count();
        assert_eq!(had_their_effect, 1, "{receipts:?}");
    }
    let events = admin.get("/v1/events?limit=1000").await.ok();
    let accepted = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["event"]["event_type"] == "signal_accepted")
        .count();
    assert_eq!(accepted, MESSAGES);
    server.stop().await;
}

#[tokio::test]
async fn a_message_is_for_the_next_execution_when_the_one_it_was_for_has_ended() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create_signals(&admin).await;
    let (older, newer) = (submit_order(&admin).await, submit_order(&admin).await);
    // Two waitpoints, so that the signal is refused: nobody knows which of them it is for.
    let claimed = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["default"], "max_tasks": 2 })).await.ok();
    let tasks = claimed["tasks"].as_array().unwrap();
    let fence = &tasks.iter().find(|task| task["execution_id"] == json!(newer)).unwrap()["fence"];
    for _ in 0..2 {
        admin.post(&format!("/v1/executions/{newer}/waitpoints"), &json!({ "fence": fence })).await.ok();
    }
    let refused = send(&stranger, "/v1/hooks/payments", "p1", now_s(), TO_ORDERS).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"));
    admin.post(&format!("/v1/executions/{newer}/cancel"), &json!({})).await.ok();
    let sent = send(&stranger, "/v1/hooks/payments", "p1", now_s(), TO_ORDERS).await.ok();
    assert_eq!((&sent["execution_id"], &sent["duplicate"]), (&json!(older), &json!(false)));
    server.stop().await;
}

#[tokio::test]
async fn a_message_that_comes_again_has_no_effect_on_the_next_execution_when_the_first_is_gone() {
    let server = Running::start(with_tokens()).await;
    let (admin, stranger) = (server.client_with(ADMIN), server.client());
    create_signals(&admin).await;
    let first = submit_order(&admin).await;
    let sent = send(&stranger, "/v1/hooks/payments", "p1", now_s(), TO_ORDERS).await.ok();
    assert_eq!((&sent["execution_id"], &sent["duplicate"]), (&json!(first), &json!(false)));
    admin.post(&format!("/v1/executions/{first}/cancel"), &json!({})).await.ok();
    for removed in [false, true] {
        if removed {
            admin.send(Method::DELETE, &format!("/v1/executions/{first}"), "").await.ok();
        }
        submit_order(&admin).await;
        let again = send(&stranger, "/v1/hooks/payments", "p1", now_s(), TO_ORDERS).await.ok();
        assert_eq!((&again["execution_id"], &again["duplicate"]), (&json!(first), &json!(true)), "{removed}");
    }
    server.stop().await;
}

#[tokio::test]
async fn administrators_define_hooks_and_readers_see_no_secrets() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let token = async |role: &str| {
        let body = json!({ "name": role, "role": role });
        let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
        server.client_with(&secret)
    };
    let (reader, operator) = (token("reader").await, token("operator").await);
    let body = json!({ "name": "h", "target": { "execution": { "kind": "k" } } });
    assert_eq!(operator.post("/v1/hooks", &body).await.status, 403);
    let created = admin.post("/v1/hooks", &body).await.ok();
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(admin.post("/v1/hooks", &body).await.ok()["outcome"], "already_exists");
    for path in ["/v1/hooks", "/v1/hooks/h"] {
        let shown = reader.get(path).await.ok().to_string();
        assert!(!shown.contains("secret") && shown.contains("\"kind\":\"k\""), "{shown}");
    }
    assert_eq!(reader.send(Method::DELETE, "/v1/hooks/h", "").await.status, 403);
    admin.send(Method::DELETE, "/v1/hooks/h", "").await.ok();
    assert_eq!(reader.get("/v1/hooks/h").await.code(), "hook_not_found");
    server.stop().await;
}
