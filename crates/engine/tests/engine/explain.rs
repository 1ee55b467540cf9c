//! Why an execution is not running: the first reason is the right one, and without it the next one shows or it runs.

use crate::support::{Harness, START};
use ff_core::op::ReasonCode::{BudgetExhausted, LaneNotActive, NoWorker, QuotaFull};
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::suspend::Outcome as Suspended;
use ff_core::op::{
    CancelExecution, CancelFlow, Complete, CreateBudget, CreateExecution, CreateFlow, CreateQuota, Delay, DeleteBudget,
    DeliverSignal, DrainLane, ExplainExecution, Fail, HoldExecution, PauseLane, RegisterWorker, ReleaseExecution,
    ReplayExecution, ReportBudgetUsage, ResetBudget, ResumeLane, Suspend, WaitChildren, WaitExecution,
};
use ff_core::op::{Explanation, Reason, ReasonCode};
use ff_core::{ExecutionId, PublicState};
use serde_json::{Value, json};

async fn explain(h: &Harness, id: &ExecutionId) -> Explanation {
    h.must::<ExplainExecution>(json!({ "execution_id": id })).await
}

async fn codes(h: &Harness, id: &ExecutionId) -> Vec<ReasonCode> {
    explain(h, id).await.reasons.into_iter().map(|reason| reason.code).collect()
}

/// The first reason, and when something changes by itself.
async fn first(h: &Harness, id: &ExecutionId) -> (Reason, Option<i64>) {
    let mut explanation = explain(h, id).await;
    (explanation.reasons.remove(0), explanation.next_change_at)
}

async fn complete(h: &Harness, task: &ff_core::op::view::Task) {
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

async fn register(h: &Harness, instance: &str, lanes: Value, capabilities: Value) {
    let worker = json!({ "instance_id": instance, "worker_id": "w", "lanes": lanes, "capabilities": capabilities,
        "nonce": "n" });
    h.must::<RegisterWorker>(worker).await;
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

#[tokio::test(start_paused = true)]
async fn what_is_granted_is_not_kept_out_by_its_own_slot() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    let id = h.submit(json!({ "quota_policy_id": "q" })).await;
    let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "grant_ttl_ms": 2_000 });
    h.must::<ff_core::op::Claim>(ask).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::Granted]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_ended_execution_says_how_and_why() {
    let h = Harness::start().await;
    let policy = json!({ "retry": { "max_retries": 0 } });
    let failed = h.submit(json!({ "policy": policy })).await;
    let task = claim_now(&h).await.unwrap();
    h.must::<Fail>(json!({ "execution_id": failed, "fence": task.fence, "reason": "broke" })).await;
    let (reason, next) = first(&h, &failed).await;
    assert_eq!((reason.code, reason.until, next), (ReasonCode::Terminal, None, None));
    assert_eq!((reason.message.as_str(), &reason.details["ended_at"]), ("failed: broke", &json!(START)));
    let cancelled = h.submit(json!({})).await;
    h.must::<CancelExecution>(json!({ "execution_id": cancelled, "reason": "enough" })).await;
    let (reason, _) = first(&h, &cancelled).await;
    assert_eq!((reason.code, &reason.details["public_state"]), (ReasonCode::Terminal, &json!("cancelled")));
    assert!(reason.message.ends_with(": enough"), "{}", reason.message);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_operators_hold_comes_first_and_hides_nothing() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "delay_until": START + 5_000 })).await;
    h.must::<HoldExecution>(json!({ "execution_id": id, "reason": "look first" })).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::HeldByOperator, ReasonCode::Delay, ReasonCode::NoWorker]);
    assert_eq!(first(&h, &id).await.0.message, "held by an operator: look first");
    h.must::<ReleaseExecution>(json!({ "execution_id": id })).await;
    let (reason, next) = first(&h, &id).await;
    assert_eq!((reason.code, reason.until, next), (ReasonCode::Delay, Some(START + 5_000), Some(START + 5_000)));
    assert_eq!(h.claim().await.unwrap().execution_id, id);
    assert_eq!(h.engine.now(), START + 5_000);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_of_a_cancelled_flow_names_the_cancellation() {
    let h = Harness::start().await;
    let nodes = json!([{ "name": "a", "request": { "kind": "test" } }, { "name": "b", "request": { "kind": "test" } }]);
    let Created::Created { flow_id, executions, .. } = h.must::<CreateFlow>(json!({ "nodes": nodes })).await else {
        panic!("it is new")
    };
    let running = claim_now(&h).await.unwrap();
    let waits = executions.into_values().find(|id| *id != running.execution_id).unwrap();
    let cancel = json!({ "flow_id": flow_id, "policy": "flow_only", "reason": "no more", "wait": true });
    h.must::<CancelFlow>(cancel).await;
    let (reason, _) = first(&h, &waits).await;
    assert_eq!(reason.code, ReasonCode::FlowCancelled);
    assert_eq!(reason.message, "its flow is cancelled: no more");
    assert_eq!(codes(&h, &running.execution_id).await, [ReasonCode::Running], "what runs comes to its end");
    assert!(claim_now(&h).await.is_none());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspended_execution_names_what_it_waits_for_and_then_its_resume_delay() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = claim_now(&h).await.unwrap();
    let suspend = json!({ "execution_id": id, "fence": task.fence, "reason": "approval",
        "condition": { "any": [{ "name": "approve" }] }, "timeout_ms": 60_000 });
    let Suspended::Suspended { waitpoint_id, token, .. } = h.must::<Suspend>(suspend).await else {
        panic!("it is suspended")
    };
    let (reason, next) = first(&h, &id).await;
    assert_eq!((reason.code, reason.until, next), (ReasonCode::Suspended, Some(START + 60_000), Some(START + 60_000)));
    assert_eq!(reason.details["blocking_reason"], "waiting_for_approval");
    assert_eq!(reason.details["waitpoint_ids"], json!([waitpoint_id]));
    let signal = json!({ "execution_id": id, "waitpoint_id": waitpoint_id, "token": token, "name": "approve",
        "resume_delay_ms": 800 });
    h.must::<DeliverSignal>(signal).await;
    let (reason, _) = first(&h, &id).await;
    assert_eq!((reason.code, reason.until), (ReasonCode::ResumeDelay, Some(START + 800)));
    assert_eq!(h.claim().await.unwrap().execution_id, id);
    assert_eq!(h.engine.now(), START + 800);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_and_a_child_are_named_until_they_have_ended() {
    let h = Harness::start().await;
    let nodes = json!([{ "name": "a", "request": { "kind": "test" } }, { "name": "b", "request": { "kind": "test" } }]);
    let graph = json!({ "nodes": nodes, "edges": [{ "from": "a", "to": "b" }] });
    let Created::Created { executions, .. } = h.must::<CreateFlow>(graph).await else { panic!("it is new") };
    let (a, b) = (executions["a"], executions["b"]);
    let (reason, next) = first(&h, &b).await;
    assert_eq!((reason.code, next), (ReasonCode::WaitingForUpstream, None));
    assert_eq!(reason.details["execution_id"], json!(a));
    complete(&h, &claim_now(&h).await.unwrap()).await;
    let parent = h.claim().await.unwrap();
    assert_eq!(parent.execution_id, b);
    let link = json!({ "execution_id": b, "fence": parent.fence });
    let child = h.must::<CreateExecution>(json!({ "kind": "test", "node": "child", "parent": link })).await;
    h.must::<WaitChildren>(link).await;
    let (reason, _) = first(&h, &b).await;
    assert_eq!(reason.code, ReasonCode::WaitingForChild);
    assert_eq!(reason.details["execution_id"], json!(child.execution_id));
    assert_eq!(reason.message, format!("{} has not ended", child.execution_id));
    complete(&h, &h.claim().await.unwrap()).await;
    let again = h.claim().await.unwrap();
    assert_eq!(again.execution_id, b);
    complete(&h, &again).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_failed_is_waited_for_until_it_is_replayed() {
    let h = Harness::start().await;
    let request = json!({ "kind": "test", "policy": { "retry": { "max_retries": 0 } } });
    let nodes = json!([{ "name": "a", "request": request }, { "name": "b", "request": request }]);
    let graph = json!({ "nodes": nodes, "edges": [{ "from": "a", "to": "b" }] });
    let Created::Created { executions, .. } = h.must::<CreateFlow>(graph).await else { panic!("it is new") };
    let (a, b) = (executions["a"], executions["b"]);
    let task = claim_now(&h).await.unwrap();
    h.must::<Fail>(json!({ "execution_id": a, "fence": task.fence, "reason": "broke" })).await;
    h.must::<WaitExecution>(json!({ "execution_id": b, "wait_ms": 10_000 })).await;
    assert_eq!(h.state(&b).await, PublicState::Skipped);
    h.must::<ReplayExecution>(json!({ "execution_id": b })).await;
    let (reason, _) = first(&h, &b).await;
    assert_eq!((reason.code, &reason.details["execution_id"]), (ReasonCode::WaitingForUpstream, &json!(a)));
    assert_eq!(reason.message, format!("{a} ended failed; it must be replayed and succeed"));
    assert_eq!(reason.details["public_state"], "failed");
    h.must::<ReplayExecution>(json!({ "execution_id": a })).await;
    assert_eq!(first(&h, &b).await.0.message, format!("{a} has not ended"));
    complete(&h, &claim_now(&h).await.unwrap()).await;
    assert_eq!(h.claim().await.unwrap().execution_id, b);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_nearest_worker_is_named_with_what_it_lacks() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "required_capabilities": ["eu", "gpu"] })).await;
    register(&h, "w-far", json!(["default"]), json!([])).await;
    register(&h, "w-elsewhere", json!(["other"]), json!(["eu", "gpu"])).await;
    register(&h, "w-near", json!(["default"]), json!(["eu"])).await;
    let (reason, _) = first(&h, &id).await;
    assert_eq!(reason.code, ReasonCode::NoCapableWorker);
    assert_eq!(reason.message, "no live worker has eu,gpu; the nearest, w-near, lacks gpu");
    assert_eq!((&reason.details["nearest"], &reason.details["missing"]), (&json!("w-near"), &json!(["gpu"])));
    register(&h, "w-near", json!(["default"]), json!(["eu", "gpu"])).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::Queued]);
    assert!(h.claim_with(json!({ "wait_ms": 0, "capabilities": ["eu", "gpu"] })).await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_worker_of_its_lane_it_says_so_and_with_one_it_is_queued() {
    let h = Harness::start().await;
    register(&h, "w-elsewhere", json!(["other"]), json!([])).await;
    let id = h.submit(json!({})).await;
    let (reason, _) = first(&h, &id).await;
    assert_eq!((reason.code, reason.message.as_str()), (NoWorker, "no live worker serves lane default"));
    register(&h, "w-1", json!(["default"]), json!([])).await;
    let (reason, next) = first(&h, &id).await;
    assert_eq!((reason.code, next), (ReasonCode::Queued, None));
    assert_eq!(reason.details["lane"], "default");
    assert_eq!(claim_now(&h).await.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_drains_or_is_paused_says_who_did_that_and_why() {
    let h = Harness::start().await;
    register(&h, "w-1", json!(["default"]), json!([])).await;
    let id = h.submit(json!({})).await;
    h.must::<PauseLane>(json!({ "lane": "default", "reason": "deploy" })).await;
    let (reason, next) = first(&h, &id).await;
    assert_eq!((reason.code, reason.until, next), (LaneNotActive, None, None));
    assert_eq!(reason.message, "lane default is paused by system: deploy");
    assert_eq!((&reason.details["state"], &reason.details["changed_by"]), (&json!("paused"), &json!("system")));
    assert!(claim_now(&h).await.is_none());
    h.must::<ResumeLane>(json!({ "lane": "default" })).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::Queued]);
    h.must::<DrainLane>(json!({ "lane": "default" })).await;
    assert_ne!(codes(&h, &id).await, [LaneNotActive], "what is queued in a draining lane still runs");
    assert_eq!(claim_now(&h).await.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_quota_says_whether_by_rate_or_by_concurrency() {
    let h = Harness::start().await;
    register(&h, "w-1", json!(["default"]), json!([])).await;
    h.must::<CreateQuota>(json!({ "name": "rate", "window_seconds": 10, "max_requests": 1 })).await;
    h.must::<CreateQuota>(json!({ "name": "slots", "max_concurrent": 1 })).await;
    h.submit(json!({ "quota_policy_id": "rate" })).await;
    h.submit(json!({ "quota_policy_id": "slots" })).await;
    let (one, two) = (claim_now(&h).await.unwrap(), claim_now(&h).await.unwrap());
    let started = h.submit(json!({ "quota_policy_id": "rate" })).await;
    let running = h.submit(json!({ "quota_policy_id": "slots" })).await;
    assert!(claim_now(&h).await.is_none());

    let (reason, next) = first(&h, &running).await;
    assert_eq!((reason.code, reason.until), (QuotaFull, None));
    assert_eq!(reason.message, "quota slots: 1/1 running");
    assert_eq!((&reason.details["in_use"], &reason.details["max_concurrent"]), (&json!(1), &json!(1)));
    assert_eq!(next, Some(START + 30_000), "it is looked at again by then");
    complete(&h, &one).await;
    complete(&h, &two).await;
    assert_eq!(h.claim().await.unwrap().execution_id, running);

    let (reason, next) = first(&h, &started).await;
    let opens_at = reason.until.expect("a window passes by itself");
    assert_eq!((reason.code, next.is_some_and(|next| next <= opens_at)), (QuotaFull, true));
    assert!(opens_at > START + 9_000 && opens_at <= START + 20_000, "{}", opens_at - START);
    let instant = jiff::Timestamp::from_millisecond(opens_at).unwrap().strftime("%Y-%m-%dT%H:%M:%SZ");
    assert_eq!(reason.message, format!("quota rate is full until {instant}"), "people read it");
    assert_eq!((&reason.details["started_in_window"], &reason.details["max_requests"]), (&json!(1), &json!(1)));
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.unwrap();
    assert_eq!(task.execution_id, started);
    assert!(h.engine.now() >= opens_at, "it ran {} ms too soon", opens_at - h.engine.now());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_or_quota_that_does_not_exist_is_named() {
    let h = Harness::start().await;
    register(&h, "w-1", json!(["default"]), json!([])).await;
    let id = h.submit(json!({ "budget_ids": ["b"], "quota_policy_id": "q" })).await;
    assert!(claim_now(&h).await.is_none());
    assert_eq!(codes(&h, &id).await, [ReasonCode::BudgetNotFound, ReasonCode::QuotaNotFound]);
    assert_eq!(first(&h, &id).await.0.details["budget"], "b");
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 1 } } })).await;
    assert!(claim_now(&h).await.is_none());
    let (reason, _) = first(&h, &id).await;
    assert_eq!((reason.code, reason.message.as_str()), (ReasonCode::QuotaNotFound, "the quota q does not exist"));
    h.must::<CreateQuota>(json!({ "name": "q" })).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::Queued]);
    assert_eq!(claim_now(&h).await.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_budget_says_how_much_of_what_and_until_when() {
    let h = Harness::start().await;
    register(&h, "w-1", json!(["default"]), json!([])).await;
    let dimensions = json!({ "cents": { "hard": 500 }, "tokens": { "hard": 10 } });
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": dimensions, "reset_interval_ms": 5_000 })).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "b", "usage": { "tokens": 10, "cents": 3 } })).await;
    let id = h.submit(json!({ "budget_ids": ["b"] })).await;
    assert!(claim_now(&h).await.is_none());
    let (reason, next) = first(&h, &id).await;
    assert_eq!((reason.code, reason.until, next), (BudgetExhausted, Some(START + 5_000), Some(START + 5_000)));
    assert_eq!(reason.message, "budget b: tokens 10/10, resets at 2027-01-15T08:00:05Z");
    assert_eq!((&reason.details["dimension"], &reason.details["limit"]), (&json!("tokens"), &json!(10)));
    assert_eq!(explain(&h, &id).await.public_state, PublicState::RateLimited);
    assert_eq!(h.claim().await.unwrap().execution_id, id);
    assert_eq!(h.engine.now(), START + 5_000);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_budget_that_was_removed_is_asked_of_nobody() {
    let h = Harness::start().await;
    let team = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } }, "on_hard": "ask" });
    h.must::<CreateBudget>(team.clone()).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "team", "usage": { "tokens": 10 } })).await;
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    assert_eq!(codes(&h, &id).await, [ReasonCode::DecisionNeeded]);
    h.must::<DeleteBudget>(json!({ "name": "team", "force": true })).await;
    assert_eq!(codes(&h, &id).await, [ReasonCode::BudgetNotFound]);
    assert_eq!(first(&h, &id).await.0.details["budget"], "team");
    h.must::<CreateBudget>(team).await;
    assert_eq!(h.claim().await.unwrap().execution_id, id, "a new one lets it in");
    h.finish().await;
}
