//! Finding executions over HTTP: filters with several values, counts, namespaces, inputs.

use ff_core::Role;
use serde_json::{Value, json};

use crate::support::{ADMIN, Running, settings, with_tokens};

fn ids(listed: &Value) -> Vec<String> {
    let items = listed["items"].as_array().unwrap();
    items.iter().map(|item| item["execution_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_filter_given_twice_takes_either_value() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let submit = async |body: Value| {
        let made = client.post("/v1/executions", &body).await.ok();
        made["execution_id"].as_str().unwrap().to_owned()
    };
    let a = submit(json!({ "kind": "a", "tags": { "team": "x" } })).await;
    let b = submit(json!({ "kind": "b", "lane": "slow", "delay_until": 4_000_000_000_000_i64 })).await;
    let c = submit(json!({ "kind": "c" })).await;
    let list = async |query: &str| {
        let mut found = ids(&client.get(&format!("/v1/executions?{query}")).await.ok());
        found.sort();
        found
    };
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(list("kind=a&kind=b").await, sorted(vec![a.clone(), b.clone()]));
    assert_eq!(list("state=waiting&state=delayed").await.len(), 3);
    assert_eq!(list("state=delayed,active").await, std::slice::from_ref(&b));
    assert_eq!(list("lane=slow&lane=other").await, [b]);
    assert_eq!(list("tag=team%3Dx").await, [a]);
    assert_eq!(list("open=true&kind=c").await, [c]);
    assert_eq!(list("terminal=true").await, Vec::<String>::new());
    let refused = client.get("/v1/executions?state=waiting&state=bogus").await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_filter"));
    assert_eq!(refused.json()["details"]["field"], "state");
    let short = &client.get("/v1/executions?kind=a").await.ok()["items"][0];
    assert_eq!(short["tags"], json!({ "team": "x" }));
    assert!(short["updated_at"].is_i64(), "{short}");
    server.stop().await;
}

#[tokio::test]
async fn counts_and_namespaces_are_there_for_readers_of_their_own() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    for namespace in ["default", "default", "mine"] {
        admin.post("/v1/executions", &json!({ "kind": "k", "namespace": namespace })).await.ok();
    }
    let counts = admin.get("/v1/counts").await.ok();
    assert_eq!(counts["states"]["waiting"], json!({ "value": 2, "more": false }));
    assert_eq!(counts["states"]["failed"], json!({ "value": 0, "more": false }));
    assert_eq!((&counts["waiting"][0]["lane"], &counts["waiting"][0]["value"]), (&json!("default"), &json!(2)));
    let all = admin.get("/v1/namespaces").await.ok();
    assert_eq!(all["items"], json!([{ "name": "default" }, { "name": "mine" }]));
    let token = json!({ "name": "r", "namespace": "mine", "role": Role::Reader });
    let token = admin.post("/v1/admin/tokens", &token).await.ok()["secret"].as_str().unwrap().to_owned();
    let reader = server.client_with(&token);
    assert_eq!(reader.get("/v1/counts").await.ok()["states"]["waiting"]["value"], 1);
    assert_eq!(reader.get("/v1/counts?namespace=default").await.status, 403);
    assert_eq!(reader.get("/v1/namespaces").await.ok()["items"], json!([{ "name": "mine" }]));
    server.stop().await;
}

#[tokio::test]
async fn an_input_comes_back_to_the_letter() {
    let server = Running::start(settings()).await;
    let client = server.client().with("content-type", "application/json");
    let body = r#"{"kind":"k","input":{"n": 1.10}}"#;
    let made = client.send(hyper::Method::POST, "/v1/executions", body).await.ok();
    let path = format!("/v1/executions/{}/input", made["execution_id"].as_str().unwrap());
    let input = server.client().get(&path).await;
    assert_eq!((input.status, &input.body[..]), (200, &br#"{"n": 1.10}"#[..]));
    assert_eq!(input.headers["content-type"], "application/json");
    let none = client.send(hyper::Method::POST, "/v1/executions", r#"{"kind":"k"}"#).await.ok();
    let path = format!("/v1/executions/{}/input", none["execution_id"].as_str().unwrap());
    let refused = server.client().get(&path).await;
    assert_eq!((refused.status, refused.code().as_str()), (404, "no_input"));
    server.stop().await;
}

#[tokio::test]
async fn an_execution_says_whether_there_is_an_input_to_ask_for() {
    let server = Running::start(settings()).await;
    let client = server.client();
    for (request, input) in [
        (json!({ "kind": "k", "input": [1] }), json!({ "content_type": "application/json", "size": 3 })),
        (json!({ "kind": "k", "input": null }), json!({ "content_type": "application/json", "size": 4 })),
        (json!({ "kind": "k" }), json!(null)),
    ] {
        let made = client.post("/v1/executions", &request).await.ok();
        let path = format!("/v1/executions/{}", made["execution_id"].as_str().unwrap());
        assert_eq!(client.get(&path).await.ok()["input"], input, "{request}");
        let asked = client.get(&format!("{path}/input")).await.status;
        assert_eq!(asked, if input.is_null() { 404 } else { 200 }, "{request}");
    }
    server.stop().await;
}
