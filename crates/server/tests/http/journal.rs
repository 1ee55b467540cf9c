//! Bad input about journals: each refusal names what is wrong, and changes nothing.

use serde_json::{Value, json};

use crate::support::{Client, Running, settings};

async fn leased(client: &Client) -> (String, Value) {
    client.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let claimed = client.post("/v1/workers/w/claim", &json!({ "lanes": ["default"], "wait_ms": 20_000 })).await.ok();
    let task = &claimed["tasks"][0];
    (format!("/v1/executions/{}", task["execution_id"].as_str().unwrap()), task["fence"].clone())
}

fn entry(more: Value) -> Value {
    let mut entry = json!({ "name": "s", "state": "completed" });
    entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    entry
}

/// Everything about an execution that a refused call could have changed.
async fn picture(client: &Client, path: &str) -> (Value, Value) {
    (client.get(path).await.ok(), client.get(&format!("{path}/steps")).await.ok())
}

#[tokio::test]
async fn bad_entries_are_refused_by_name_and_change_nothing() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let (path, fence) = leased(&client).await;
    let steps = format!("{path}/steps");
    let first = json!({ "fence": fence, "first_number": 1, "entries": [entry(json!({ "result": 1 }))] });
    client.post(&steps, &first).await.ok();
    let before = picture(&client, &path).await;
    let record = |first: u64, entries: Value| json!({ "fence": fence, "first_number": first, "entries": entries });
    let mut foreign = record(2, json!([entry(json!({}))]));
    foreign["fence"]["lease_id"] = json!("0190a0a0-0000-7000-8000-000000000000");
    let mut old = record(2, json!([entry(json!({}))]));
    old["fence"]["epoch"] = json!(7);
    let many: Vec<Value> = (0..101).map(|number| entry(json!({ "key": format!("{number}") }))).collect();
    let cases = [
        (record(2, json!([entry(json!({ "name": "" }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "name": "n".repeat(129) }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "name": "a\nb" }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "key": "" }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "key": "k", "occurrence": 0 }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "state": "done" }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "result": "x".repeat(1024 * 1024) }))])), 413, "payload_too_large"),
        (record(2, json!([entry(json!({ "message": "why" }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "input_hash": "h".repeat(65) }))])), 413, "payload_too_large"),
        (record(2, json!([entry(json!({ "compensates": { "name": "" } }))])), 400, "invalid"),
        (record(2, json!([entry(json!({ "signal": PLAIN }))])), 400, "invalid"),
        (record(2, json!([])), 400, "invalid"),
        (record(2, json!(many)), 400, "invalid"),
        (record(0, json!([entry(json!({}))])), 400, "invalid"),
        (record(3, json!([entry(json!({}))])), 409, "journal_conflict"),
        (record(1, json!([entry(json!({ "result": 2 }))])), 409, "journal_conflict"),
        (record(10_001, json!([entry(json!({}))])), 409, "journal_conflict"),
        (foreign, 409, "stale_lease"),
        (old, 409, "stale_lease"),
    ];
    for (body, status, code) in cases {
        let refused = client.post(&steps, &body).await;
        let shown: String = body["entries"].to_string().chars().take(100).collect();
        assert_eq!((refused.status, refused.code().as_str()), (status, code), "{shown}: {:?}", refused.body);
        assert_eq!(picture(&client, &path).await, before, "{shown}");
    }
    server.stop().await;
}

const PLAIN: &str = "0190a0a0-0000-7000-8000-000000000000";

#[tokio::test]
async fn bad_parks_answers_forks_and_endings_change_nothing() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let (path, fence) = leased(&client).await;
    let first = json!({ "fence": fence, "first_number": 1, "entries": [entry(json!({}))] });
    client.post(&format!("{path}/steps"), &first).await.ok();
    let before = picture(&client, &path).await;
    let question = |more: Value| {
        let mut question = json!({ "step": { "name": "s" }, "reason": "in_doubt" });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "fence": fence, "first_number": 2, "questions": [question] })
    };
    let many: Vec<Value> = (0..33).map(|_| json!({ "step": { "name": "s" }, "reason": "in_doubt" })).collect();
    let named: Vec<Value> = (0..101).map(|number| json!({ "name": format!("s{number}") })).collect();
    let cases = [
        ("park", json!({ "fence": fence, "first_number": 2 }), 400),
        ("park", question(json!({ "reason": "approval" })), 400),
        ("park", question(json!({ "step": { "name": "" } })), 400),
        ("park", question(json!({ "input_hash": "h".repeat(65) })), 413),
        ("park", json!({ "fence": fence, "first_number": 2, "questions": many }), 400),
        ("steps/decide", json!({ "answer": "happened" }), 409),
        ("steps/decide", json!({ "answer": "perhaps" }), 400),
        ("steps/decide", json!({ "answer": "fail", "result": 1 }), 400),
        ("fork", json!({ "before_step": { "name": "nothing" } }), 400),
        ("fork", json!({ "before_step": { "name": "n".repeat(129) } }), 400),
        ("fork", json!({ "tags": { "A B": "c" } }), 400),
        ("replay", json!({ "from_step": { "name": "s" } }), 409),
        ("replay", json!({ "from_step": { "name": "" } }), 400),
        ("complete", json!({ "fence": fence, "run": { "steps_not_visited": named } }), 400),
        ("fail", json!({ "fence": fence, "reason": "r", "undone": [{ "name": "s" }] }), 400),
        ("fail", json!({ "fence": fence, "reason": "r", "undone": named, "first_number": 2 }), 400),
        ("continue-as-new", json!({ "fence": fence, "input": 1, "input_base64": "MQ==" }), 400),
        ("repin", json!({ "build_id": "a b" }), 400),
    ];
    for (verb, body, status) in cases {
        let refused = client.post(&format!("{path}/{verb}"), &body).await;
        assert_eq!(refused.status, status, "{verb} {body}: {:?}", refused.body);
        assert_eq!(picture(&client, &path).await, before, "{verb} {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_ten_thousandth_entry_is_the_last() {
    let server = Running::start(settings()).await;
    let client = server.client();
    let (path, fence) = leased(&client).await;
    let steps = format!("{path}/steps");
    for page in 0..100_u64 {
        let entries: Vec<Value> = (0..100).map(|number| entry(json!({ "key": format!("{page}-{number}") }))).collect();
        let body = json!({ "fence": fence, "first_number": page * 100 + 1, "entries": entries });
        client.post(&steps, &body).await.ok();
    }
    let one_more = json!({ "fence": fence, "first_number": 10_001, "entries": [entry(json!({}))] });
    for _ in 0..2 {
        let refused = client.post(&steps, &one_more).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "journal_full"));
    }
    let listed = client.get(&format!("{steps}?limit=1&after=9999")).await.ok();
    assert_eq!((&listed["next_number"], listed.get("next_after")), (&json!(10_001), None));
    client.post(&format!("{path}/complete"), &json!({ "fence": fence })).await.ok();
    server.stop().await;
}
