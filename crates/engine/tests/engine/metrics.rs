//! The counters of the engine, as a program that embeds it sees them.

use crate::support::Harness;
use ff_core::op::{Complete, CreateBudget, CreateQuota, ReportBudgetUsage};
use ff_engine::{Family, SampleValue};
use serde_json::json;

/// The value of a sample whose labels have these values; of a histogram, how many it observed.
fn value(families: &[Family], name: &str, labels: &[&str]) -> u64 {
    let family = families.iter().find(|family| family.name == name).expect("there is such a family");
    let found = family.samples.iter().find(|one| one.labels.iter().map(|(_, v)| v.as_str()).eq(labels.iter().copied()));
    match found.map(|sample| &sample.value) {
        Some(SampleValue::Number(number) | SampleValue::Time(number)) => *number,
        Some(SampleValue::Histogram { buckets, .. }) => buckets.last().unwrap().1,
        None => 0,
    }
}

#[tokio::test(start_paused = true)]
async fn claims_are_counted_by_lane_and_by_how_they_end() {
    let h = Harness::start().await;
    h.submit(json!({ "lane": "fast" })).await;
    h.claim_with(json!({ "lanes": ["fast", "slow"] })).await.unwrap();
    assert!(h.claim_with(json!({ "lanes": ["fast", "slow"], "wait_ms": 100 })).await.is_none());
    let families = h.engine.metrics().families();
    let claims = |labels: &[&str]| value(&families, "flowfabric_claim_seconds", labels);
    assert_eq!((claims(&["fast", "taken"]), claims(&["slow", "taken"])), (1, 0));
    assert_eq!((claims(&["fast", "empty"]), claims(&["slow", "empty"])), (1, 1));
    h.engine.close().await;
    let claim = json!({ "instance_id": "w", "lanes": ["fast"] });
    h.call::<ff_core::op::Claim>(claim).await.unwrap_err();
    assert_eq!(value(&h.engine.metrics().families(), "flowfabric_claim_seconds", &["fast", "failed"]), 1);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted_by_what_is_used_up() {
    let h = Harness::start().await;
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 1 } } })).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 1 } })).await;
    h.must::<CreateQuota>(json!({ "name": "rate", "max_requests": 1 })).await;
    h.must::<CreateQuota>(json!({ "name": "slots", "max_concurrent": 1 })).await;
    h.submit(json!({ "budget_ids": ["b"] })).await;
    for quota in ["rate", "rate", "slots", "slots"] {
        h.submit(json!({ "quota_policy_id": quota })).await;
    }
    h.submit(json!({ "quota_policy_id": "nowhere" })).await;
    let mut taken = Vec::new();
    while let Some(task) = h.claim_with(json!({ "wait_ms": 0 })).await {
        taken.push(task);
    }
    assert_eq!(taken.len(), 2);
    let families = h.engine.metrics().families();
    assert_eq!(value(&families, "flowfabric_budget_refusals_total", &["tokens"]), 1);
    for limit in ["rate", "concurrency", "missing"] {
        assert_eq!(value(&families, "flowfabric_quota_refusals_total", &[limit]), 1, "{limit}");
    }
    assert_eq!(value(&families, "flowfabric_admission_refusals_total", &["quota"]), 3);
    for task in taken {
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    let families = h.engine.metrics().families();
    assert_eq!(value(&families, "flowfabric_transitions_total", &["completed"]), 2);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_is_counted() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.unwrap();
    // The reclaim says that the first lease is over.
    h.claim_with(json!({ "wait_ms": 5_000 })).await.unwrap();
    let families = h.engine.metrics().families();
    assert_eq!(value(&families, "flowfabric_transitions_total", &["lease_expired"]), 1);
    assert_eq!(value(&families, "flowfabric_transitions_total", &["lease_acquired"]), 1);
    assert_eq!(value(&families, "flowfabric_transitions_total", &["lease_reclaimed"]), 1);
    h.finish().await;
}
