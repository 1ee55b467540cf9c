//! Submit, claim, complete and read the result, over HTTP.

use std::sync::Arc;

use crate::support::{Running, settings};
use ff_store::Store;
use serde_json::json;

async fn work_through(store: Arc<dyn Store>) {
    let server = Running::start_on(settings(), store).await;
    let client = server.client();
    let body = r#"{"kind": "echo", "input": {"n": 1.10, "big": 12345678901234567890123}}"#;
    let json_client = client.with("content-type", "application/json");
    let created = json_client.send(hyper::Method::POST, "/v1/executions", body).await.ok();
    let id = created["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(created["duplicate"], false);
    assert_eq!(client.get(&format!("/v1/executions/{id}")).await.ok()["public_state"], "waiting");

    let claim = json!({ "lanes": ["default"], "wait_ms": 5_000 });
    let claimed = client.post("/v1/workers/w1/claim", &claim).await;
    assert_eq!(claimed.status, 200);
    let text = std::str::from_utf8(&claimed.body).unwrap();
    assert!(text.contains(r#""payload":{"n": 1.10, "big": 12345678901234567890123}"#), "{text}");
    let task = claimed.json()["tasks"][0].clone();
    assert_eq!(task["execution_id"], id.as_str());
    assert_eq!(client.get(&format!("/v1/executions/{id}/result")).await.code(), "result_not_ready");

    // The result is raw bytes, the fence stands in the query.
    let fence: String =
        percent_encoding::utf8_percent_encode(&task["fence"].to_string(), percent_encoding::NON_ALPHANUMERIC)
            .to_string();
    let path = format!("/v1/executions/{id}/complete?fence={fence}&content_type=image%2Fpng");
    let raw = client.with("content-type", "application/octet-stream");
    let completed = raw.send(hyper::Method::POST, &path, &b"\x00\xff\x01"[..]).await.ok();
    assert_eq!(completed["public_state"], "completed");

    let result = client.get(&format!("/v1/executions/{id}/result")).await;
    assert_eq!((result.status, &result.body[..]), (200, &b"\x00\xff\x01"[..]));
    assert_eq!(result.headers["content-type"], "image/png");
    assert_eq!(result.headers["x-content-type-options"], "nosniff");
    let content = client.with("accept", "application/json").get(&format!("/v1/executions/{id}/result")).await.ok();
    assert_eq!(content["payload_base64"], "AP8B");
    let waited = client.get(&format!("/v1/executions/{id}/wait?wait_ms=1000")).await.ok();
    assert_eq!(waited["terminal"], true);

    let nothing = client.post("/v1/workers/w1/claim", &json!({ "lanes": ["default"] })).await;
    assert_eq!((nothing.status, nothing.body.len()), (204, 0));
    server.stop().await;
}

#[tokio::test]
async fn an_execution_runs_to_its_end_in_memory() {
    work_through(Arc::new(ff_store::memory::MemoryStore::new())).await;
}

#[tokio::test]
async fn an_execution_runs_to_its_end_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let options = ff_store_sqlite::Options::new(directory.path().join("ff.db"));
    work_through(ff_store_sqlite::open(&options).unwrap()).await;
}

#[tokio::test]
async fn an_idempotency_key_makes_a_repeat_the_same_submission() {
    let server = Running::start(settings()).await;
    let client = server.client().with("idempotency-key", "order-1").with("traceparent", "00-aa-bb-01");
    let body = json!({ "kind": "echo" });
    let first = client.post("/v1/executions", &body).await.ok();
    let again = client.post("/v1/executions", &body).await.ok();
    assert_eq!((&again["execution_id"], &again["duplicate"]), (&first["execution_id"], &json!(true)));
    let other = client.post("/v1/executions", &json!({ "kind": "other" })).await;
    assert_eq!((other.status, other.code().as_str()), (409, "idempotency_conflict"));
    let differs = client.post("/v1/executions", &json!({ "kind": "echo", "idempotency_key": "order-2" })).await;
    assert_eq!((differs.status, differs.code().as_str()), (400, "invalid"));
    let claimed = server.client().post("/v1/workers/w/claim", &json!({ "lanes": ["default"] })).await.ok();
    assert_eq!(claimed["tasks"][0]["trace_context"], "00-aa-bb-01");
    server.stop().await;
}
