//! Journals: what a function did stays done, and what it waits for finds it.

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, merged, text};

/// Long enough for a slow machine to record something, short enough to be lost in a test.
const SHORT_LEASE: i64 = 1_500;

/// Longer than the calls take that must find it asleep.
const SLEEP: i64 = 4_000;

fn entry(name: &str, state: &str) -> Value {
    json!({ "name": name, "state": state })
}

fn done(name: &str, result: Value) -> Value {
    merged(entry(name, "completed"), json!({ "result": result }))
}

/// The arguments of a call that brings entries along.
fn with_entries(task: &Value, first_number: u64, entries: &[Value]) -> Value {
    json!({ "execution_id": task["execution_id"], "fence": task["fence"], "first_number": first_number,
        "entries": entries })
}

async fn record(w: &World, task: &Value, first_number: u64, entries: &[Value]) -> Value {
    w.must("record_steps", with_entries(task, first_number, entries)).await
}

async fn park(w: &World, task: &Value, first_number: u64, waits: Value) -> Value {
    w.must("park", merged(with_entries(task, first_number, &[]), waits)).await
}

/// Name, key and state of each record, oldest first.
fn records(entries: &Value) -> Vec<(String, Option<String>, String)> {
    let items = entries.as_array().expect("a list");
    let key = |item: &Value| item["key"].as_str().map(str::to_owned);
    items.iter().map(|item| (text(&item["name"]), key(item), text(&item["state"]))).collect()
}

/// The records of a journal without keys.
fn states(entries: &Value) -> Vec<(String, String)> {
    records(entries).into_iter().map(|(name, _, state)| (name, state)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
}

pub(crate) async fn s31_a_lost_lease_leaves_the_steps_it_recorded(w: World) {
    let id = w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    assert!(first.get("journal").is_none_or(Value::is_null), "nobody can have recorded anything: {first}");
    let answer = record(&w, &first, 1, &[done("fetch", json!({ "page": 7 }))]).await;
    assert_eq!((&answer["last_number"], &answer["next_number"]), (&json!(1), &json!(2)));
    let large = "x".repeat(20_000);
    let call = with_entries(&first, 2, &[done("write", json!(large))]);
    assert_eq!(w.must("record_steps", call.clone()).await, w.must("record_steps", call).await, "a repeat is the same");
    let wrong = with_entries(&first, 2, &[done("write", json!("other"))]);
    assert_eq!(w.refused("record_steps", wrong, Code::JournalConflict).await["next"], 3);
    let second = w.claim().await;
    assert_eq!((second["execution_id"].as_str(), second["claim_kind"].as_str()), (Some(&*id), Some("reclaim")));
    let journal = &second["journal"];
    assert_eq!((&journal["next_number"], &journal["complete"]), (&json!(3), &json!(true)));
    assert_eq!(states(&journal["entries"]), pairs(&[("fetch", "completed"), ("write", "completed")]));
    assert_eq!(journal["entries"][0]["result"]["payload"], json!({ "page": 7 }), "{journal}");
    assert_eq!(journal["entries"][1]["result"]["payload"], json!(large));
    w.refused("record_steps", with_entries(&first, 3, &[done("late", json!(1))]), Code::StaleLease).await;
    // The third step and the end are one commit.
    let end = merged(with_entries(&second, 3, &[done("publish", json!(3))]), json!({ "result": "done" }));
    w.must("complete", end).await;
    let listed = w.must("list_steps", json!({ "execution_id": id })).await;
    assert_eq!(
        states(&listed["items"]),
        pairs(&[("fetch", "completed"), ("write", "completed"), ("publish", "completed")])
    );
    let page = w.must("list_steps", json!({ "execution_id": id, "limit": 2 })).await;
    assert_eq!(page["next_after"], 2);
    let rest = w.must("list_steps", json!({ "execution_id": id, "limit": 2, "after": 2 })).await;
    assert_eq!((states(&rest["items"]), rest.get("next_after")), (pairs(&[("publish", "completed")]), None));
}

pub(crate) async fn s32_only_the_parallel_step_that_was_not_recorded_is_missing(w: World) {
    w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    let keyed = |key: &str, state: &str| merged(entry("fetch", state), json!({ "key": key }));
    record(&w, &first, 1, &[keyed("a", "begun"), keyed("b", "completed")]).await;
    let second = w.claim().await;
    let expected = [("a", "begun"), ("b", "completed")];
    let found = records(&second["journal"]["entries"]);
    let found: Vec<_> = found.iter().map(|(_, key, state)| (key.as_deref().unwrap_or(""), state.as_str())).collect();
    assert_eq!(found, expected);
    w.must("complete", with_entries(&second, 3, &[keyed("a", "completed")])).await;
}

pub(crate) async fn s33_a_once_step_that_began_under_another_lease_is_in_doubt(w: World) {
    let id = w.submit(json!({})).await;
    let first = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a task");
    record(&w, &first, 1, &[entry("pay", "begun")]).await;
    let second = w.claim().await;
    let begun = &second["journal"]["entries"][0];
    assert_eq!((&begun["state"], &begun["lease_id"]), (&json!("begun"), &first["fence"]["lease_id"]));
    assert_ne!(begun["lease_id"], second["fence"]["lease_id"], "the new holder sees that it was not its own");
    // The holder asks, and the answer is kept even if nobody holds a lease when it comes.
    let question = json!({ "waitpoints": [{ "step": { "name": "in doubt: pay", "key": "1.0" } }] });
    let parked = park(&w, &second, 2, question).await;
    assert_eq!(parked["public_state"], "suspended");
    let answer = json!({ "execution_id": id, "name": "in doubt: pay",
        "payload": { "answer": "happened", "result": "receipt 7" } });
    assert_eq!(w.must("deliver_signal", answer).await["outcome"], "triggered_resume");
    let third = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("it runs again");
    let fourth = w.claim().await;
    for task in [&third, &fourth] {
        let entries = &task["journal"]["entries"];
        assert_eq!(states(entries), pairs(&[("pay", "begun"), ("in doubt: pay", "completed")]), "nobody asks twice");
        assert_eq!(entries[1]["result"]["payload"]["result"], "receipt 7");
    }
    w.must("complete", with_entries(&fourth, 3, &[done("pay", json!("receipt 7"))])).await;
}

pub(crate) async fn s36_a_sleep_wakes_at_the_instant_that_was_fixed_first(w: World) {
    let id = w.submit(json!({})).await;
    let first = w.claim().await;
    let step = json!({ "name": "cool down" });
    let call = merged(
        with_entries(&first, 1, &[done("before", json!(1))]),
        json!({ "sleeps": [{ "step": step, "sleep_ms": SLEEP }] }),
    );
    let parked = w.must("park", call.clone()).await;
    assert_eq!((parked["outcome"].as_str(), parked["public_state"].as_str()), (Some("parked"), Some("delayed")));
    assert_eq!(w.must("park", call).await["wake_at"], parked["wake_at"], "a repeat is the same park");
    w.nothing_to_claim().await;
    let woken = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("it wakes");
    assert_eq!(woken["fence"]["attempt"], first["fence"]["attempt"], "the same attempt goes on");
    let expected = pairs(&[("before", "completed"), ("cool down", "begun"), ("cool down", "completed")]);
    assert_eq!(states(&woken["journal"]["entries"]), expected);
    assert_eq!(woken["journal"]["entries"][1]["next_at"], parked["wake_at"]);
    // A crash afterwards does not sleep again.
    let reclaimed = w.claim().await;
    assert_eq!(states(&reclaimed["journal"]["entries"]), expected);
    let over = json!({ "sleeps": [{ "step": { "name": "cool down" }, "until": parked["wake_at"] }] });
    assert_eq!(park(&w, &reclaimed, 4, over).await["outcome"], "already_satisfied");
    w.complete(&id, &reclaimed["fence"], json!(1)).await;
}

pub(crate) async fn s37_a_retry_runs_the_step_that_ended_the_attempt(w: World) {
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 10 } } } });
    let id = w.submit(json!({ "policy": policy })).await;
    let first = w.claim().await;
    let failed = |name: &str| merged(entry(name, "failed"), json!({ "message": "disk full" }));
    let entries = [done("fetch", json!(1)), failed("caught"), done("undo", json!(2)), failed("write")];
    let end = json!({ "reason": "disk full", "cause": { "name": "write" } });
    w.must("fail", merged(with_entries(&first, 1, &entries), end.clone())).await;
    let second = w.claim_with(json!({ "lease_ttl_ms": SHORT_LEASE })).await.expect("a retry");
    assert_eq!(second["claim_kind"], "retry");
    let stands = [("fetch", "completed"), ("caught", "failed"), ("undo", "completed"), ("write", "failed")];
    let expected = pairs(&[stands.as_slice(), &[("write", "retrying")]].concat());
    assert_eq!(states(&second["journal"]["entries"]), expected);
    // A reclaim changes nothing: a failure that was recorded stands.
    record(&w, &second, 6, &[failed("write")]).await;
    let reclaimed = w.claim().await;
    let expected = pairs(&[stands.as_slice(), &[("write", "retrying"), ("write", "failed")]].concat());
    assert_eq!(states(&reclaimed["journal"]["entries"]), expected);
    let answer = w.must("fail", merged(with_entries(&reclaimed, 7, &[]), end)).await;
    assert_eq!(answer["outcome"], "terminal_failed", "{answer}");
    w.is(&id, "failed").await;
}

pub(crate) async fn s51_a_waitpoint_survives_the_wake_of_another(w: World) {
    let (id, fence) = w.in_hand(json!({})).await;
    let task = json!({ "execution_id": id, "fence": fence });
    let waits = json!({ "waitpoints": [{ "step": { "name": "left" } }, { "step": { "name": "right" } }] });
    let parked = park(&w, &task, 1, waits).await;
    w.is(&id, "suspended").await;
    let listed = w.must("list_pending_waitpoints", json!({ "execution_id": id })).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    let signal = |at: usize, payload: &str| {
        let waitpoint = &parked["waitpoints"][at];
        json!({ "execution_id": id, "waitpoint_id": waitpoint["waitpoint_id"], "token": waitpoint["token"],
            "name": "go", "payload": payload })
    };
    assert_eq!(w.must("deliver_signal", signal(0, "l")).await["outcome"], "triggered_resume");
    let woken = w.claim().await;
    assert_eq!(states(&woken["journal"]["entries"]), pairs(&[("left", "completed")]));
    let mailed = w.must("deliver_signal", signal(1, "r")).await;
    assert_eq!(mailed["effect"], "buffered", "the mailed link still works: {mailed}");
    let wait = json!({ "waitpoints": [{ "step": { "name": "right" } }] });
    let call = merged(with_entries(&woken, 2, &[]), wait);
    let satisfied = w.must("park", call.clone()).await;
    assert_eq!((satisfied["outcome"].as_str(), &satisfied["next_number"]), (Some("already_satisfied"), &json!(3)));
    assert_eq!(satisfied["entries"][0]["result"]["payload"], "r");
    let again = w.must("park", call).await;
    assert_eq!((&again["outcome"], &again["next_number"]), (&satisfied["outcome"], &satisfied["next_number"]));
    assert_eq!(again["entries"][0]["result"], satisfied["entries"][0]["result"], "a repeat gets the same answer");
    w.refused("deliver_signal", signal(0, "late"), Code::WaitpointClosed).await;
    w.complete(&id, &woken["fence"], json!(1)).await;
}
