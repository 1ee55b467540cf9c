//! Work that waits for a gate when the server that opens it is killed before it lets anything in.

use ff_core::PublicState;
use ff_core::op::view::Task;
use ff_core::op::{Complete, CreateBudget, CreateQuota, ReportBudgetUsage, ResetBudget};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::recovery::{DIES, OPENS, PROMISE, join, two_servers};
use crate::support::Harness;

/// The gates that keep executions out here: a quota, a concurrency key, an estimate that fills its budget, and a budget
/// that is used up.
const GATES: [&str; 4] = ["quota", "key", "estimate", "budget"];

fn behind(gate: &str) -> Value {
    match gate {
        "quota" => json!({ "quota_policy_id": "q" }),
        "key" => json!({ "concurrency": [{ "key": "k", "limit": 1 }] }),
        "estimate" => json!({ "budget_ids": ["room"], "policy": { "estimate": { "tokens": 5 } } }),
        _ => json!({ "budget_ids": ["spent"] }),
    }
}

async fn define_gates(h: &Harness) {
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    for name in ["room", "spent"] {
        h.must::<CreateBudget>(json!({ "name": name, "dimensions": { "tokens": { "hard": 5 } } })).await;
    }
}

/// An execution runs behind a gate, and another one is parked there. A budget is used up meanwhile.
async fn park_behind(h: &Harness, gate: &str) -> Task {
    h.submit(behind(gate)).await;
    let running = h.claim().await.expect("the gate is open");
    if gate == "budget" {
        h.must::<ReportBudgetUsage>(json!({ "name": "spent", "usage": { "tokens": 5 } })).await;
    }
    let waits = h.submit(behind(gate)).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert_eq!(h.state(&waits).await, PublicState::RateLimited, "{gate}");
    running
}

/// The server completes what runs, or resets the budget.
async fn open(h: &Harness, gate: &str, running: &Task) {
    match gate {
        "budget" => {
            // Its answer comes when parked work was let in, which never happens here.
            let reset = h.must::<ResetBudget>(json!({ "name": "spent" }));
            assert!(tokio::time::timeout(std::time::Duration::from_millis(100), reset).await.is_err());
        }
        _ => {
            h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
        }
    }
    h.pass(10).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_gate_starts_right_after_the_restart_of_the_server_that_opened_it() {
    for gate in GATES {
        for killed_at in [OPENS, DIES] {
            if gate == "budget" && killed_at == DIES {
                continue;
            }
            let first = Harness::start().await;
            let (dies, seat) = join(&first).await;
            first.engine.close().await;
            define_gates(&dies).await;
            let running = park_behind(&dies, gate).await;
            seat.is(killed_at);
            open(&dies, gate, &running).await;
            seat.kill();
            let (again, _) = join(&dies).await;
            let restarted = Instant::now();
            assert!(again.claim().await.is_some(), "{gate}, {killed_at}: not after {:?}", restarted.elapsed());
            let took = restarted.elapsed();
            assert!(took <= PROMISE / 2, "{gate}, killed at {killed_at}: it started {took:?} after the restart");
            again.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_gate_starts_elsewhere_within_five_seconds_of_the_kill_of_the_server_that_opened_it() {
    for gate in GATES {
        let (stays, dies, seat) = two_servers().await;
        define_gates(&stays).await;
        let running = park_behind(&dies, gate).await;
        seat.mute();
        seat.is(OPENS);
        open(&dies, gate, &running).await;
        let killed = seat.kill();
        assert!(stays.claim().await.is_some(), "{gate}: not after {:?}", killed.elapsed());
        assert!(killed.elapsed() <= PROMISE, "{gate}: {:?}", killed.elapsed());
        stays.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_frees_no_slot_that_a_claim_may_still_need() {
    let (stays, dies, seat) = two_servers().await;
    define_gates(&stays).await;
    let running = park_behind(&stays, "quota").await;
    seat.kill();
    drop(dies);
    assert!(stays.claim_with(json!({ "wait_ms": 8_000 })).await.is_none(), "the slot is in use");
    stays.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    assert!(stays.claim_with(json!({ "wait_ms": 100 })).await.is_some());
    stays.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_stays_closed_is_looked_at_once_and_not_again() {
    let first = Harness::start().await;
    let (h, seat) = join(&first).await;
    first.engine.close().await;
    define_gates(&h).await;
    let running = park_behind(&h, "quota").await;
    let (again, asks) = join(&h).await;
    h.engine.close().await;
    again.pass(2_000).await;
    let before = (asks.requests(), seat.requests());
    again.pass(20_000).await;
    let asked = asks.requests() - before.0;
    assert!(asked <= 20, "{asked} requests in 20 s about a gate that nothing opened");
    again.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    assert!(again.claim().await.is_some());
    again.finish().await;
}

/// Room that a server keeps for an execution which it let in is free again when a claim at the other one has taken that
/// execution.
#[tokio::test(start_paused = true)]
async fn work_behind_a_gate_of_one_starts_the_moment_the_work_before_it_ends_whichever_server_hands_it_out() {
    let (one, other, _seat) = two_servers().await;
    one.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    for number in 0..12 {
        // Each stands in a queue of its own, so that each is examined and parked.
        let open = format!("open-{number}");
        one.must::<CreateBudget>(json!({ "name": open, "dimensions": { "tokens": { "hard": 5 } } })).await;
        one.submit(json!({ "quota_policy_id": "q", "budget_ids": [open] })).await;
    }
    let mut waited = Vec::new();
    // Each server looks at the gate when the other one has just done so.
    for server in [&one, &other, &one, &one, &other, &other, &one, &other, &one, &other, &other, &one] {
        let began = Instant::now();
        let task = server.claim().await.expect("the next one");
        waited.push(began.elapsed());
        let none = json!({ "wait_ms": 0 });
        assert!(one.claim_with(none.clone()).await.is_none() && other.claim_with(none).await.is_none());
        server.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    assert!(waited.iter().all(|wait| wait.as_millis() < 300), "{waited:?}");
    one.finish().await;
}
