//! How far a caller reaches over HTTP: forged and revoked credentials, waitpoint tokens beside others, and what a scrape shows.

use ff_core::session::Session;
use ff_server::Settings;
use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ADMIN, Client, Running, settings, with_tokens, within};

async fn token(admin: &Client, args: Value) -> String {
    admin.post("/v1/admin/tokens", &args).await.ok()["secret"].as_str().unwrap().to_owned()
}

/// An execution that asks; the waitpoint and its token.
async fn ask(admin: &Client) -> (String, String) {
    admin.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let claimed = admin.post("/v1/workers/w-1/claim", &json!({ "lanes": ["default"] })).await.ok();
    let task = &claimed["tasks"][0];
    let suspend =
        json!({ "fence": task["fence"], "reason": "approval", "condition": { "any": [{ "name": "approve" }] } });
    let path = format!("/v1/executions/{}/suspend", task["execution_id"].as_str().unwrap());
    let asked = admin.post(&path, &suspend).await.ok();
    let text = |field: &str| asked[field].as_str().unwrap().to_owned();
    (text("waitpoint_id"), text("token"))
}

#[tokio::test]
async fn a_cookie_that_anybody_can_compute_is_nobodys() {
    let server = Running::start(with_tokens()).await;
    let forged = Session::begin([7; 16], b"", i64::MAX).reveal();
    let port = server.address.port();
    let browser = server.client().with("cookie", &format!("ff_session_{port}={forged}; ff_session={forged}"));
    for path in ["/v1/session", "/v1/executions", "/metrics"] {
        assert_eq!(browser.get(path).await.status, 401, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_revocation_ends_claims_and_exchanges_that_wait() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    for (number, (path, body)) in [
        ("/v1/workers/w-1/claim", json!({ "lanes": ["x"], "wait_ms": 30_000 })),
        ("/v1/workers/w-1/exchange", json!({ "claim": { "lanes": ["x"], "wait_ms": 30_000 } })),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("w{number}");
        let worker = server.client_with(&token(&admin, json!({ "name": name, "role": "worker" })).await);
        let waiting = tokio::spawn(async move { worker.post(path, &body).await });
        admin.send(Method::DELETE, &format!("/v1/admin/tokens/{name}"), "").await.ok();
        assert_eq!(waiting.await.unwrap().status, 401, "{path}");
    }
    admin.post("/v1/executions", &json!({ "kind": "k", "lane": "x" })).await.ok();
    let claimed = admin.post("/v1/workers/w-2/claim", &json!({ "lanes": ["x"], "wait_ms": 10_000 })).await.ok();
    assert_eq!(claimed["tasks"].as_array().map(Vec::len), Some(1), "nobody else holds it");
    server.stop().await;
}

#[tokio::test]
async fn the_token_of_a_waitpoint_is_good_beside_any_other_credential() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let approver = token(&admin, json!({ "name": "ann", "role": "approver" })).await;
    let elsewhere = token(&admin, json!({ "name": "eve", "role": "reader", "namespace": "other" })).await;
    let revoked = token(&admin, json!({ "name": "old", "role": "reader" })).await;
    admin.send(Method::DELETE, "/v1/admin/tokens/old", "").await.ok();
    let damaged = server.client().with("cookie", &format!("ff_session_{}=damaged", server.address.port()));
    for (what, client) in [
        ("an approver's", server.client_with(&approver)),
        ("another namespace's", server.client_with(&elsewhere)),
        ("a revoked one", server.client_with(&revoked)),
        ("a damaged cookie", damaged),
        ("none", server.client()),
    ] {
        let (waitpoint, token) = ask(&admin).await;
        let path = format!("/v1/signals/{waitpoint}");
        let without = client.post(&path, &json!({ "name": "go" })).await;
        assert!(matches!(without.status, 401 | 403 | 404), "{what}: {}", without.status);
        let signalled = client.post(&path, &json!({ "name": "approve", "token": token })).await;
        assert_eq!(signalled.status, 200, "{what}: {:?}", signalled.body);
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_never_come_keep_no_mailed_link_from_working() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let (waitpoint, token) = ask(&admin).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /v1/signals/{waitpoint} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n",
            server.address
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    let signal = json!({ "name": "approve", "token": token });
    let answer = server.client().post(&format!("/v1/signals/{waitpoint}"), &signal).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    // A stranger's body must come soon.
    let mut answered = String::new();
    within(idle[0].read_to_string(&mut answered)).await.unwrap();
    assert!(answered.starts_with("HTTP/1.1 400"), "{answered}");
    server.stop().await;
}

#[tokio::test]
async fn a_scrape_shows_the_namespaces_and_lanes_of_its_caller() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    for (namespace, lane) in [("mine", "a"), ("mine", "b"), ("theirs", "secret-lane")] {
        let submitted = json!({ "kind": "k", "namespace": namespace, "lane": lane });
        admin.post("/v1/executions", &submitted).await.ok();
    }
    let none = json!({ "lanes": ["secret-lane"], "namespace": "theirs", "capabilities": [], "kinds": ["none"] });
    admin.post("/v1/workers/w-1/claim", &none).await;
    let page = |client: Client| async move { String::from_utf8(client.get("/metrics").await.body.to_vec()).unwrap() };
    let everything = page(admin.clone()).await;
    assert!(everything.contains("secret-lane") && everything.contains("namespace=\"mine\""));
    let scoped = token(&admin, json!({ "name": "r", "role": "reader", "namespace": "mine" })).await;
    let scoped = page(server.client_with(&scoped)).await;
    assert!(!scoped.contains("secret-lane") && !scoped.contains("theirs"), "{scoped}");
    assert!(scoped.contains("namespace=\"mine\",lane=\"b\""), "{scoped}");
    let narrow = json!({ "name": "n", "role": "reader", "namespace": "mine", "lanes": ["a"] });
    let narrow = page(server.client_with(&token(&admin, narrow).await)).await;
    assert!(narrow.contains("lane=\"a\"") && !narrow.contains("lane=\"b\""), "{narrow}");
    let approver = token(&admin, json!({ "name": "p", "role": "approver" })).await;
    assert_eq!(server.client_with(&approver).get("/metrics").await.status, 403);
    server.stop().await;
}

#[tokio::test]
async fn the_record_tells_configured_tokens_apart_by_their_names() {
    let (ops, ci) = ("canary-operations-token", "canary-integration-token");
    let api_token = Some(format!("{ADMIN},ops={ops},ci={ci}"));
    let server = Running::start(Settings { api_token, ..settings() }).await;
    for (secret, lane) in [(ADMIN, "a"), (ops, "b"), (ci, "c")] {
        let client = server.client_with(secret);
        client.post(&format!("/v1/lanes/{lane}/pause"), &json!({})).await.ok();
    }
    let audit = server.client_with(ADMIN).get("/v1/admin/audit?limit=100").await.ok();
    let who = |lane: &str| {
        let records = audit["items"].as_array().unwrap();
        records.iter().find(|record| record["target"].as_str().is_some_and(|target| target.ends_with(lane))).cloned()
    };
    for (lane, name) in [("a", "api_token"), ("b", "api_token:ops"), ("c", "api_token:ci")] {
        assert_eq!(who(lane).map(|record| record["who"].clone()), Some(json!(name)), "{audit}");
    }
    assert_eq!(server.client_with("ops").get("/v1/executions").await.status, 401, "the name alone is no token");
    let whole = format!("ops={ops}");
    assert_eq!(server.client_with(&whole).get("/v1/executions").await.status, 401, "nor is the entry");
    server.stop().await;
}
