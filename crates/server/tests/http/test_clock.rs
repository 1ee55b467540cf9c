//! A server whose clock a test moves.

use ff_core::Role;
use serde_json::json;

use crate::support::{ADMIN, Running, settings, with_tokens};

#[tokio::test]
async fn time_passes_when_the_test_says_so() {
    let server = Running::start_on_test_clock(settings()).await;
    let client = server.client();
    let clock = client.get("/v1/test/clock").await.ok();
    let began = clock["now"].as_i64().unwrap();
    assert_eq!(client.get("/v1/deployment").await.ok()["test_clock"], true);
    let body = json!({ "kind": "k", "delay_until": began + 3_600_000 });
    let id = client.post("/v1/executions", &body).await.ok()["execution_id"].as_str().unwrap().to_owned();
    // A long poll ends in real time.
    let claim = json!({ "lanes": ["default"], "wait_ms": 20 });
    assert_eq!(client.post("/v1/workers/w/claim", &claim).await.status, 204);
    let moved = client.post("/v1/test/clock", &json!({ "advance_ms": 3_600_000 })).await.ok();
    assert_eq!((&moved["now"], &moved["due"]), (&json!(began + 3_600_000), &json!(0)));
    let busy = client.post("/v1/test/idle", &json!({ "timeout_ms": 0 })).await.ok();
    assert_eq!((&busy["idle"], &busy["claimable"]), (&json!(false), &json!(1)));
    let task = client.post("/v1/workers/w/claim", &claim).await.ok()["tasks"][0].clone();
    let ended = json!({ "fence": task["fence"] });
    client.post(&format!("/v1/executions/{id}/complete"), &ended).await.ok();
    let idle = client.post("/v1/test/idle", &json!({})).await.ok();
    assert_eq!(idle["idle"], true, "{idle}");
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_move_is_one_move() {
    let server = Running::start_on_test_clock(settings()).await;
    let client = server.client();
    let keyed = client.with("idempotency-key", "k");
    let first = keyed.post("/v1/test/clock", &json!({ "advance_ms": 1_000 })).await.ok();
    assert_eq!(keyed.post("/v1/test/clock", &json!({ "advance_ms": 1_000 })).await.ok(), first);
    let other = keyed.post("/v1/test/clock", &json!({ "advance_ms": 2_000 })).await;
    assert_eq!((other.status, other.code().as_str()), (409, "idempotency_conflict"));
    let second = client.post("/v1/test/clock", &json!({ "advance_ms": 1_000 })).await.ok();
    assert_eq!(second["now"].as_i64().unwrap() - first["now"].as_i64().unwrap(), 1_000);
    let idle = client.with("idempotency-key", "i").post("/v1/test/idle", &json!({})).await.ok();
    assert_eq!(client.with("idempotency-key", "i").post("/v1/test/idle", &json!({})).await.ok(), idle);
    server.stop().await;
}

#[tokio::test]
async fn tokens_are_asked_for_as_everywhere_and_other_servers_have_no_such_clock() {
    let server = Running::start_on_test_clock(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let body = json!({ "name": "reader", "role": Role::Reader });
    let token = admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned();
    let reader = server.client_with(&token);
    reader.get("/v1/test/clock").await.ok();
    assert_eq!(reader.post("/v1/test/clock", &json!({ "advance_ms": 1 })).await.status, 403);
    assert_eq!(server.client().post("/v1/test/clock", &json!({ "advance_ms": 1 })).await.status, 401);
    admin.post("/v1/test/clock", &json!({ "advance_ms": 1 })).await.ok();
    server.stop().await;

    let server = Running::start(settings()).await;
    for refused in [
        server.client().get("/v1/test/clock").await,
        server.client().post("/v1/test/clock", &json!({ "advance_ms": 1 })).await,
        server.client().post("/v1/test/idle", &json!({})).await,
    ] {
        assert_eq!((refused.status, refused.code().as_str()), (404, "no_test_clock"));
        assert!(refused.json()["detail"].as_str().is_some_and(|detail| detail.contains("--test-clock")), "{refused:?}");
    }
    server.stop().await;
}
