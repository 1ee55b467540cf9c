//! Changing and removing what people have made, as a client sees it.

use hyper::Method;
use serde_json::json;

use crate::support::{ADMIN, Client, Running, settings, with_tokens, within};

pub(crate) async fn delete(client: &Client, path: &str) -> crate::support::Answer {
    client.send(Method::DELETE, path, "").await
}

async fn put(client: &Client, path: &str, body: serde_json::Value) -> crate::support::Answer {
    client.with("content-type", "application/json").send(Method::PUT, path, body.to_string()).await
}

#[tokio::test]
async fn budgets_and_quotas_are_changed_and_deleted_unless_they_are_in_use() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let budget = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } } });
    client.post("/v1/budgets", &budget).await.ok();
    let changed =
        put(&client, "/v1/budgets/team", json!({ "on_hard": "fail", "reset_interval_ms": 60_000 })).await.ok();
    assert_eq!(changed["definition"]["on_hard"], "fail");
    assert_eq!(changed["definition"]["dimensions"]["tokens"]["hard"], 10);
    client.post("/v1/quotas", &json!({ "name": "api", "max_requests": 1 })).await.ok();
    let changed = put(&client, "/v1/quotas/api", json!({ "max_requests": 5 })).await.ok();
    assert_eq!(changed["definition"]["max_requests"], 5);
    let work = json!({ "kind": "k", "lane": "gpu", "budget_ids": ["team"], "quota_policy_id": "api" });
    let made = client.post("/v1/executions", &work).await.ok();
    let execution = format!("/v1/executions/{}", made["execution_id"].as_str().unwrap());
    client.post("/v1/lanes/gpu/pause", &json!({})).await.ok();
    for path in ["/v1/budgets/team", "/v1/quotas/api", "/v1/lanes/gpu"] {
        let refused = delete(&client, path).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "in_use"), "{path}");
        assert_eq!(refused.json()["details"]["execution_id"], made["execution_id"], "{path}");
    }
    let refused = delete(&client, &execution).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "execution_not_terminal"));
    assert_eq!(delete(&client, "/v1/budgets/team?force=true").await.ok()["outcome"], "removed");
    client.post(&format!("{execution}/cancel"), &json!({})).await.ok();
    for path in ["/v1/quotas/api", "/v1/lanes/gpu", execution.as_str()] {
        assert_eq!(delete(&client, path).await.ok()["outcome"], "removed", "{path}");
        let again = delete(&client, path).await;
        assert_eq!(again.status, 404, "{path}: {:?}", again.body);
    }
    assert_eq!(client.get(&execution).await.code(), "execution_not_found");
    assert_eq!(client.get("/v1/budgets/team").await.code(), "budget_not_found");
    assert_eq!(client.get("/v1/quotas/api").await.code(), "quota_not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_removal_with_a_key_is_repeated_with_the_same_answer() {
    let server = Running::start(settings()).await;
    let client = server.client();
    client.post("/v1/quotas", &json!({ "name": "api", "max_requests": 1 })).await.ok();
    let keyed = client.with("idempotency-key", "k");
    let first = delete(&keyed, "/v1/quotas/api").await.ok();
    assert_eq!(delete(&keyed, "/v1/quotas/api").await.ok(), first);
    server.stop().await;
}

#[tokio::test]
async fn a_flow_made_step_by_step_is_closed_and_then_removed() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let flow = client.post("/v1/flows", &json!({ "kind": "k" })).await.ok()["flow_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/flows/{flow}");
    client.post("/v1/executions", &json!({ "kind": "k", "flow_id": flow })).await.ok();
    let task = client.post("/v1/workers/w/claim", &json!({ "lanes": ["default"] })).await.ok()["tasks"][0].clone();
    let member = format!("/v1/executions/{}", task["execution_id"].as_str().unwrap());
    client.post(&format!("{member}/complete"), &json!({ "fence": task["fence"] })).await.ok();
    assert_eq!(client.get(&path).await.ok()["state"], "open");
    let refused = delete(&client, &path).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "flow_not_terminal"));
    let closed = client.post(&format!("{path}/close"), &json!({})).await.ok();
    assert_eq!(closed, json!({ "changed": true, "state": "completed" }));
    let refused = delete(&client, &member).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "in_use"), "a member goes with its flow");
    delete(&client, &path).await.ok();
    assert_eq!(client.get(&path).await.code(), "flow_not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_submitter_may_cancel_signal_and_replay_its_own_and_nothing_else() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let mut clients = Vec::new();
    for name in ["one", "other"] {
        let body = json!({ "name": name, "namespace": "default", "role": "submitter" });
        let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
        clients.push(server.client_with(&secret));
    }
    let [one, other] = &clients[..] else { unreachable!() };
    let made = one.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let path = format!("/v1/executions/{}", made["execution_id"].as_str().unwrap());
    for verb in ["cancel", "replay", "signal"] {
        let body = if verb == "signal" { json!({ "name": "go" }) } else { json!({}) };
        let refused = other.post(&format!("{path}/{verb}"), &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{verb}");
    }
    assert_eq!(one.post(&format!("{path}/cancel"), &json!({})).await.ok()["outcome"], "cancelled");
    assert_eq!(one.post(&format!("{path}/replay"), &json!({})).await.ok()["replay_count"], 1);
    assert_eq!(delete(one, &path).await.status, 403);
    server.stop().await;
}

#[tokio::test]
async fn old_words_for_waits_and_limits_are_still_read() {
    let server = Running::start(settings()).await;
    let client = server.client();
    client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let task = client.post("/v1/workers/w/claim", &json!({ "lanes": ["default"] })).await.ok()["tasks"][0].clone();
    let path = format!("/v1/executions/{}", task["execution_id"].as_str().unwrap());
    let frames = json!([{ "type": "t", "payload": 1 }, { "type": "t", "payload": 2 }]);
    let append = json!({ "fence": task["fence"], "first_sequence": 1, "frames": frames });
    client.post(&format!("{path}/frames"), &append).await.ok();
    for words in ["limit=1", "count=1"] {
        let read = client.get(&format!("{path}/attempts/0/stream?{words}")).await.ok();
        assert_eq!(read["frames"].as_array().map(Vec::len), Some(1), "{words}");
    }
    for words in ["wait_ms=1&limit=1", "block_ms=1&count=1"] {
        let read = client.get(&format!("{path}/attempts/0/stream/tail?{words}")).await.ok();
        assert_eq!(read["frames"].as_array().map(Vec::len), Some(1), "{words}");
    }
    let refused = client.get(&format!("{path}/attempts/0/stream?limit=1&count=2")).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"));
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_open_polls() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let body = json!({ "name": "w", "namespace": "default", "role": "worker" });
    let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
    let worker = server.client_with(&secret);
    let claim = json!({ "lanes": ["default"], "wait_ms": 25_000 });
    let began = std::time::Instant::now();
    let (ended, _) = tokio::join!(worker.post("/v1/workers/w/claim", &claim), async {
        // A call of the same token is answered, so the poll beside it is good until here.
        worker.get("/v1/lanes").await;
        within(delete(&admin, "/v1/admin/tokens/w")).await.ok()
    });
    assert_eq!((ended.status, ended.code().as_str()), (401, "unauthenticated"));
    assert!(began.elapsed().as_secs() < 20, "it ended long before its wait was over");
    server.stop().await;
}

#[tokio::test]
async fn a_reader_is_shown_no_fence() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let body = json!({ "name": "r", "namespace": "default", "role": "reader" });
    let secret = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
    let reader = server.client_with(&secret);
    admin.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let task = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["default"] })).await.ok()["tasks"][0].clone();
    let path = format!("/v1/executions/{}", task["execution_id"].as_str().unwrap());
    let lease = task["fence"]["lease_id"].as_str().unwrap();
    assert_eq!(admin.get(&path).await.ok()["lease"]["lease_id"], lease);
    for path in [path.clone(), format!("{path}/attempts"), format!("{path}/explain")] {
        let shown = reader.get(&path).await;
        assert_eq!(shown.status, 200, "{path}");
        assert!(!String::from_utf8_lossy(&shown.body).contains(lease), "{path} shows the lease");
    }
    server.stop().await;
}

#[tokio::test]
async fn probes_are_answered_whatever_host_they_name_and_learn_nothing() {
    let named = ff_server::Settings { allowed_hosts: Some(vec!["ff.example".into()]), ..with_tokens() };
    let server = Running::start(named).await;
    let client = server.client();
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(client.with("host", "10.0.0.7:7171").get(path).await.status, 200, "{path}");
    }
    assert_eq!(client.with("host", "evil.example").get("/v1/lanes").await.code(), "host_not_allowed");
    let admin = server.client_with(ADMIN);
    for host in ["ff.example", "localhost", "127.0.0.1:7171"] {
        assert_eq!(admin.with("host", host).get("/v1/lanes").await.status, 200, "{host}");
    }
    assert_eq!(client.with("host", "localhost").get("/readyz").await.body, "ready\n");
    server.stop().await;
}
