//! The price of admission: what a claim under a budget and a quota asks of the store, and what others' changes make of that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::Harness;
use ff_core::op::{Complete, CreateBudget, CreateQuota, GetQuota, ReportBudgetUsage, ResetBudget, UpdateQuota};
use ff_core::{Family, PartitionConfig};
use ff_engine::Options;
use ff_store::memory::{Call, Plan};
use serde_json::json;

fn single() -> Options {
    Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() }
}

/// A budget and a quota with room for everything.
async fn define(h: &Harness, max_concurrent: u32) {
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 10 } } })).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": max_concurrent, "max_requests": 1_000 })).await;
}

async fn submit(h: &Harness) {
    h.submit(json!({ "budget_ids": ["b"], "quota_policy_id": "q" })).await;
}

async fn run_one(h: &Harness) {
    let task = h.claim_with(json!({ "wait_ms": 0 })).await.expect("there is room");
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

async fn in_use(h: &Harness) -> u32 {
    h.must::<GetQuota>(json!({ "name": "q" })).await.in_use
}

#[tokio::test(start_paused = true)]
async fn a_task_under_a_budget_and_a_quota_reads_the_budget_and_nothing_else() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    define(&h, 10).await;
    for _ in 0..3 {
        submit(&h).await;
    }
    run_one(&h).await;
    h.pass(5).await;
    let calls: Arc<Mutex<BTreeMap<(Family, bool), usize>>> = Arc::default();
    let counted = calls.clone();
    trouble.begin(move |call| {
        let (partition, reads) = match call {
            Call::Read { partition, .. } => (partition, true),
            Call::Commit { partition, .. } => (partition, false),
        };
        *counted.lock().unwrap().entry((partition.family, reads)).or_default() += 1;
        Plan::default()
    });
    run_one(&h).await;
    h.pass(5).await;
    trouble.end();
    let calls = calls.lock().unwrap().clone();
    let of = |family, reads| calls.get(&(family, reads)).copied().unwrap_or(0);
    assert_eq!(of(Family::Budget, true), 1, "{calls:?}");
    assert_eq!((of(Family::Quota, true), of(Family::Flow, true)), (0, 0), "{calls:?}");
    // A start, a slot given back; a lease, and an end that leaves no mark.
    assert_eq!((of(Family::Quota, false), of(Family::Flow, false)), (2, 2), "{calls:?}");
    assert_eq!(in_use(&h).await, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_come_together_share_the_read_of_their_budget() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    define(&h, 100).await;
    for _ in 0..16 {
        submit(&h).await;
    }
    let reads = Arc::new(Mutex::new(0));
    let counted = reads.clone();
    trouble.begin(move |call| {
        if matches!(call, Call::Read { partition, .. } if partition.family == Family::Budget) {
            *counted.lock().unwrap() += 1;
        }
        // Long enough for the others to come.
        let pause = tokio::time::sleep(std::time::Duration::from_millis(1));
        Plan { before: Some(Box::pin(pause)), ..Plan::default() }
    });
    let claims = (0..16).map(|number| h.claim_with(json!({ "instance_id": format!("w-{number}") })));
    let claimed = futures_util::future::join_all(claims).await;
    trouble.end();
    assert!(claimed.iter().all(Option::is_some), "{claimed:?}");
    // A gate that was not tried yet lets in one, then as many again as it has admitted.
    assert!(*reads.lock().unwrap() <= 8, "{} reads", reads.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_another_engine_changes_holds_for_both() {
    let h = Harness::with(single()).await;
    define(&h, 2).await;
    let other = h.second().await;
    for _ in 0..6 {
        submit(&h).await;
    }
    // Each knows the quota by its own commits, and not those of the other.
    let first = h.claim_with(json!({ "wait_ms": 0 })).await.expect("there is room");
    let second = other.claim_with(json!({ "wait_ms": 0 })).await.expect("there is room");
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert_eq!(in_use(&other).await, 2);
    other.must::<UpdateQuota>(json!({ "name": "q", "max_concurrent": 3 })).await;
    h.pass(100).await;
    let third = h.claim_with(json!({ "wait_ms": 1_000 })).await.expect("one more may run");
    assert!(other.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    // Slots are given back by whichever engine the end comes to.
    for (by, task) in [(&other, first), (&h, second), (&other, third)] {
        by.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.pass(1_000).await;
    assert_eq!(in_use(&h).await, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_another_engine_used_up_admits_nothing_here() {
    let h = Harness::with(single()).await;
    define(&h, 10).await;
    let other = h.second().await;
    submit(&h).await;
    submit(&h).await;
    run_one(&h).await;
    other.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 10 } })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_asked_while_a_budget_that_had_room_is_read() {
    let (h, trouble) = Harness::with_trouble(single()).await;
    define(&h, 10).await;
    for _ in 0..2 {
        submit(&h).await;
    }
    let claim_ms = async || {
        trouble.begin(|_| {
            let pause = tokio::time::sleep(std::time::Duration::from_millis(10));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        });
        let began = tokio::time::Instant::now();
        let task = h.claim_with(json!({})).await.expect("there is room");
        let took = began.elapsed().as_millis();
        trouble.end();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
        h.pass(5).await;
        took
    };
    let (first, second) = (claim_ms().await, claim_ms().await);
    assert!((20..30).contains(&second), "the budget with the quota, then the claim: {second} ms, and {first} at first");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_a_budget_refuses_is_counted_once_and_holds_no_slot() {
    let h = Harness::with(single()).await;
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 10 } } })).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1, "max_requests": 3 })).await;
    for _ in 0..3 {
        submit(&h).await;
    }
    run_one(&h).await;
    // The quota is asked beside the budget, which has no room any more.
    h.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 10 } })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    h.pass(100).await;
    assert_eq!(in_use(&h).await, 0);
    h.must::<ResetBudget>(json!({ "name": "b" })).await;
    h.pass(100).await;
    run_one(&h).await;
    h.pass(100).await;
    run_one(&h).await;
    h.pass(100).await;
    let quota = h.must::<GetQuota>(json!({ "name": "q" })).await;
    assert_eq!((quota.started_in_window, quota.in_use), (3, 0));
    h.finish().await;
}
