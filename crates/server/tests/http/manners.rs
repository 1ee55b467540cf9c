//! Manners of HTTP in every call: 201 where something is new, an id for each request, no body where none is needed.

use hyper::Method;
use serde_json::json;

use crate::canary::noted;
use crate::support::{Running, settings};

#[tokio::test]
async fn what_is_new_is_201_with_its_place_and_a_repeat_is_200() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let keyed = client.with("idempotency-key", "k");
    let cases = [
        ("/v1/executions", json!({ "kind": "k" })),
        ("/v1/flows", json!({ "kind": "k" })),
        ("/v1/budgets", json!({ "name": "team-ä", "dimensions": { "tokens": { "hard": 1 } } })),
        ("/v1/quotas", json!({ "name": "q", "max_concurrent": 1 })),
    ];
    for (path, body) in cases {
        let made = keyed.post(path, &body).await;
        assert_eq!(made.status, 201, "{path}: {:?}", made.body);
        let location = made.headers["location"].to_str().unwrap().to_owned();
        assert_eq!(client.get(&location).await.status, 200, "{location}");
        let again = client.post(path, &body).await;
        if path == "/v1/budgets" || path == "/v1/quotas" {
            assert_eq!((again.status, again.headers.get("location")), (200, None), "{path}");
        }
    }
    assert_eq!(keyed.post("/v1/executions", &json!({ "kind": "k" })).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_request_has_a_name_in_its_answer_and_in_its_refusal() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let named = client.with("x-request-id", "mine-1").get("/v1/nothing").await;
    assert_eq!((named.status, named.headers["x-request-id"].to_str().unwrap()), (404, "mine-1"));
    assert_eq!(named.json()["request_id"], "mine-1");
    let own = client.with("x-request-id", "a b").get("/v1/executions").await;
    let name = own.headers["x-request-id"].to_str().unwrap();
    assert!(uuid::Uuid::parse_str(name).is_ok(), "{name}");
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_is_found_in_the_log_by_the_name_of_its_request() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let refused = client.with("x-request-id", "noted-request-refused").get("/v1/budgets/none").await;
    assert_eq!((refused.status, refused.json()["request_id"].as_str()), (404, Some("noted-request-refused")));
    let lines = noted("noted-request-refused");
    assert!(lines.iter().any(|line| line.contains("status=404") && line.contains("/v1/budgets/none")), "{lines:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_says_nothing_needs_no_body_unless_another_page_made_it() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let made = client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let path = format!("/v1/executions/{}", made["execution_id"].as_str().unwrap());
    assert_eq!(client.send(Method::POST, &format!("{path}/hold"), "").await.status, 200);
    let foreign = client.with("origin", "https://evil.example");
    assert_eq!(foreign.send(Method::POST, &format!("{path}/cancel"), "").await.status, 415);
    assert_eq!(client.get(&path).await.ok()["public_state"], "waiting");
    assert_eq!(client.send(Method::POST, "/v1/executions", "").await.code(), "invalid", "the kind is missing");
    let packed = client.with("content-encoding", "gzip").post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!((packed.status, packed.code().as_str()), (415, "unsupported_media_type"));
    server.stop().await;
}

#[tokio::test]
async fn a_worker_renews_as_many_leases_in_one_call_as_it_may_name() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let fence = json!({ "attempt": 0, "lease_id": "0190a0a0-0000-7000-8000-000000000000", "epoch": 1 });
    let lease = json!({ "execution_id": "0000-0190a0a0-0000-7000-8000-000000000000", "fence": fence });
    let leases = |count: usize| json!({ "leases": vec![lease.clone(); count] });
    let all = client.post("/v1/leases/renew", &leases(ff_core::limits::RENEWALS_MAX)).await.ok();
    assert_eq!(all["results"].as_array().map(Vec::len), Some(ff_core::limits::RENEWALS_MAX));
    let refused = client.post("/v1/leases/renew", &leases(ff_core::limits::RENEWALS_MAX + 1)).await;
    assert_eq!((refused.status, refused.json()["details"]["field"].as_str()), (400, Some("leases")));
    server.stop().await;
}
