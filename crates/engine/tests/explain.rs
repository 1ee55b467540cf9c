//! Why an execution is not running: the first reason is the right one, and without it the next one shows or it runs.

mod support;

use ff_core::ExecutionId;
use ff_core::op::explain_execution::ReasonCode::{BudgetExhausted, LaneNotActive, NoWorker, QuotaFull};
use ff_core::op::explain_execution::{Explanation, ReasonCode};
use ff_core::op::{
    Complete, CreateBudget, CreateQuota, Delay, ExplainExecution, Fail, PauseLane, ReportBudgetUsage, ResetBudget,
    ResumeLane,
};
use serde_json::json;
use support::{Harness, START};

async fn explain(h: &Harness, id: &ExecutionId) -> Explanation {
    h.must::<ExplainExecution>(json!({ "execution_id": id })).await
}

async fn codes(h: &Harness, id: &ExecutionId) -> Vec<ReasonCode> {
    explain(h, id).await.reasons.into_iter().map(|reason| reason.code).collect()
}

async fn claim_now(h: &Harness) -> Option<ff_core::op::view::Task> {
    h.claim_with(json!({ "wait_ms": 0 })).await
}

#[tokio::test(start_paused = true)]
async fn without_workers_it_waits_for_one_then_runs_then_has_ended() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::NoWorker]);
    let task = claim_now(&h).await.unwrap();
    let running = explain(&h, &id).await;
    assert_eq!((running.reasons[0].code, running.next_change_at), (ReasonCode::Running, Some(START + 30_000)));
    assert_eq!(running.reasons[0].details["instance_id"], "w-1");
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::Terminal]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_capability_is_named() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "required_capabilities": ["gpu"] })).await;
    let explanation = explain(&h, &id).await;
    assert_eq!(explanation.reasons[0].code, ReasonCode::NoCapableWorker);
    assert!(explanation.reasons[0].message.contains("gpu"), "{}", explanation.reasons[0].message);
    assert!(h.claim_with(json!({ "wait_ms": 0, "capabilities": ["gpu"] })).await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn delays_and_backoffs_have_their_instants() {
    let h = Harness::start().await;
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 5_000 } } } });
    let id = h.submit(json!({ "delay_until": START + 1_000, "policy": policy })).await;
    let delayed = explain(&h, &id).await;
    assert_eq!((delayed.reasons[0].code, delayed.next_change_at), (ReasonCode::Delay, Some(START + 1_000)));
    let task = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": id, "fence": task.fence, "reason": "broke" })).await;
    let backoff = explain(&h, &id).await;
    assert_eq!(backoff.reasons[0].code, ReasonCode::RetryBackoff);
    assert_eq!(backoff.reasons[0].until, Some(h.engine.now() + 5_000));
    let again = h.claim().await.unwrap();
    h.must::<Delay>(json!({ "execution_id": id, "fence": again.fence, "delay_ms": 100 })).await;
    assert_eq!(codes(&h, &id).await[0], ReasonCode::Delay);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn lane_budget_and_quota_are_named_one_after_the_other() {
    let h = Harness::start().await;
    let budget = json!({ "name": "b", "dimensions": { "tokens": { "hard": 10 } }, "reset_interval_ms": 3_600_000 });
    h.must::<CreateBudget>(budget).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 10 } })).await;
    let other = h.submit(json!({ "quota_policy_id": "q" })).await;
    let task = claim_now(&h).await.unwrap();
    let id = h.submit(json!({ "budget_ids": ["b"], "quota_policy_id": "q" })).await;
    h.must::<PauseLane>(json!({ "lane": "default", "reason": "deploy" })).await;
    assert_eq!(codes(&h, &id).await, [LaneNotActive, BudgetExhausted, QuotaFull, NoWorker]);
    assert!(explain(&h, &id).await.reasons[0].message.contains("paused by system: deploy"));
    h.must::<ResumeLane>(json!({ "lane": "default" })).await;
    assert!(claim_now(&h).await.is_none());
    let explanation = explain(&h, &id).await;
    assert_eq!(explanation.reasons[0].code, BudgetExhausted);
    assert_eq!(explanation.reasons[0].until, Some(START + 3_600_000));
    assert_eq!(explanation.reasons[0].details["current"], 10);
    h.must::<ResetBudget>(json!({ "name": "b" })).await;
    assert!(claim_now(&h).await.is_none());
    assert_eq!(codes(&h, &id).await, [QuotaFull, NoWorker]);
    h.must::<Complete>(json!({ "execution_id": other, "fence": task.fence })).await;
    assert_eq!(h.claim().await.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_says_whose_it_is_and_until_when() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "grant_ttl_ms": 2_000 });
    h.must::<ff_core::op::Claim>(ask).await;
    let explanation = explain(&h, &id).await;
    assert_eq!((explanation.reasons[0].code, explanation.reasons[0].until), (ReasonCode::Granted, Some(START + 2_000)));
    assert!(h.claim().await.is_some(), "it lapses and is queued again");
    h.finish().await;
}
