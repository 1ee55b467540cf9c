//! Keys: what takes turns, what runs at once, and what stands for one execution.

use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::Code;
use serde_json::{Value, json};

use crate::world::{World, text};

pub(crate) async fn s43_a_tenant_with_one_does_not_wait_for_a_tenant_with_many(w: World) {
    let crowd: Vec<Value> = (0..300).map(|_| json!({ "kind": "test", "fair_key": "crowd" })).collect();
    w.must("create_executions", json!({ "executions": crowd })).await;
    for number in 0..3 {
        // Every server has served the crowd for a while, and then another tenant comes.
        for _ in 0..2 * w.servers() {
            w.claim().await;
        }
        let key = format!("tenant-{number}");
        let late = w.submit(json!({ "fair_key": key, "fair_weight": 2 })).await;
        assert_eq!(w.get(&late).await["fair_key"], json!(key));
        let mut next = Vec::new();
        for _ in 0..2 * w.servers() {
            next.push(text(&w.claim().await["execution_id"]));
        }
        assert!(next.contains(&late), "{late} is not among {next:?}");
    }
    w.refused("create_execution", json!({ "kind": "test", "fair_weight": 2 }), Code::Invalid).await;
}

pub(crate) async fn s44_ten_workers_never_run_two_under_a_key_of_one(w: World) {
    const TASKS: usize = 20;
    for _ in 0..TASKS {
        w.submit(json!({ "concurrency": [{ "key": "door", "limit": 1 }] })).await;
    }
    let (running, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = async |number: usize| {
        let ask = json!({ "instance_id": format!("w-{number}"), "wait_ms": 1_000 });
        while done.load(Ordering::SeqCst) < TASKS {
            let Some(task) = w.claim_with(ask.clone()).await else { continue };
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "another one runs");
            let id = text(&task["execution_id"]);
            w.is(&id, "active").await;
            running.fetch_sub(1, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
            w.complete(&id, &task["fence"], json!(1)).await;
        }
    };
    futures_util::future::join_all((0..10).map(worker)).await;

    // The keys of a lease that is lost come back; limits are each request's own; explain names the key.
    let policy = json!({ "max_reclaim_count": 0 });
    let lost = w.submit(json!({ "concurrency": [{ "key": "door", "limit": 1 }], "policy": policy })).await;
    let held = w.claim_with(json!({ "lease_ttl_ms": 2_000 })).await.expect("nobody holds the key");
    assert_eq!(held["execution_id"], json!(lost));
    let next = w.submit(json!({ "concurrency": [{ "key": "door", "limit": 1 }, { "key": "hall", "limit": 1 }] })).await;
    w.is_held_back(&next).await;
    let explained = w.must("explain_execution", json!({ "execution_id": next })).await;
    assert_eq!(explained["reasons"][0]["code"], "concurrency_key_full", "{explained}");
    assert_eq!(explained["reasons"][0]["details"]["key"], "door", "{explained}");
    let beside = w.submit(json!({ "concurrency": [{ "key": "door", "limit": 2 }] })).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(beside));
    w.complete(&beside, &task["fence"], json!(1)).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], json!(next), "the lease of {lost} ran out");
    w.is(&lost, "failed").await;
    w.complete(&next, &task["fence"], json!(1)).await;
    for wrong in [
        json!([{ "key": "a", "limit": 0 }]),
        json!([{ "key": "a", "limit": 1 }, { "key": "a", "limit": 2 }]),
        json!([{ "key": "", "limit": 1 }]),
    ] {
        w.refused("create_execution", json!({ "kind": "test", "concurrency": wrong }), Code::Invalid).await;
    }
}

pub(crate) async fn s44_a_singleton_is_one_while_it_waits_or_runs(w: World) {
    let create = async |more: Value| {
        let args = json!({ "kind": "test", "singleton": { "key": "nightly" }, "input": more });
        w.must("create_execution", args).await
    };
    let first = create(json!(1)).await;
    assert_eq!(first["duplicate"], false);
    let id = text(&first["execution_id"]);
    let again = create(json!(2)).await;
    assert_eq!((&again["execution_id"], &again["duplicate"]), (&first["execution_id"], &json!(true)));
    let task = w.claim().await;
    assert_eq!(create(json!(3)).await["execution_id"], json!(id));
    w.complete(&id, &task["fence"], json!(1)).await;
    let second = create(json!(4)).await;
    assert_eq!(second["duplicate"], false, "the first one has ended");
    w.must("cancel_execution", json!({ "execution_id": second["execution_id"] })).await;
    assert_eq!(create(json!(5)).await["duplicate"], false);
}

pub(crate) async fn s44_the_last_of_a_burst_takes_the_place_of_the_others(w: World) {
    let create = async |input: i64| {
        let debounce = json!({ "key": "page-7", "wait_ms": 500, "max_wait_ms": 5_000 });
        w.must("create_execution", json!({ "kind": "test", "input": input, "debounce": debounce })).await
    };
    let first = create(1).await;
    assert_eq!(first["public_state"], "delayed");
    let second = create(2).await;
    assert_eq!(second["superseded"], first["execution_id"]);
    let shown = w.get(&text(&first["execution_id"])).await;
    assert_eq!((&shown["public_state"], &shown["cancellation"]["source"]), (&json!("cancelled"), &json!("superseded")));
    assert_eq!(shown["cancellation"]["superseded_by"], second["execution_id"]);
    let task = w.claim().await;
    assert_eq!(task["execution_id"], second["execution_id"]);
    let third = create(3).await;
    assert_eq!(third.get("superseded"), None, "what runs is left alone");
    w.complete(&text(&second["execution_id"]), &task["fence"], json!(1)).await;
    let task = w.claim().await;
    assert_eq!(task["execution_id"], third["execution_id"]);
    w.complete(&text(&third["execution_id"]), &task["fence"], json!(1)).await;
}
