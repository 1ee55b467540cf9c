//! Small promises of the contract, each by itself.

use crate::support::Harness;
use ff_core::execution::ResumeCause;
use ff_core::op::{
    CloseFlow, Complete, CreateBudget, CreateExecution, CreateFlow, Delay, DeliverSignal, GetExecution, GetFlow,
    RegisterWorker, ReportBudgetUsage, ResetBudget, ResumeExecution, Suspend, WaitChildren, create_flow,
};
use ff_core::{BlockingReason, Code, FlowId, FlowState, PublicState};
use serde_json::json;

async fn open_flow(h: &Harness) -> FlowId {
    match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
        create_flow::Outcome::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    }
}

async fn state(h: &Harness, flow: &FlowId) -> FlowState {
    h.must::<GetFlow>(json!({ "flow_id": flow })).await.state
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_is_made_step_by_step_stays_open_until_it_is_closed() {
    let h = Harness::start().await;
    let flow = open_flow(&h).await;
    assert_eq!(state(&h, &flow).await, FlowState::Open);
    for _ in 0..2 {
        let id = h.submit(json!({ "flow_id": flow })).await;
        let task = h.claim().await.unwrap();
        assert_eq!(state(&h, &flow).await, FlowState::Running);
        h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
        h.pass(2_000).await;
        assert_eq!(state(&h, &flow).await, FlowState::Open, "another member may come");
    }
    let last = h.submit(json!({ "flow_id": flow })).await;
    let closed = h.must::<CloseFlow>(json!({ "flow_id": flow })).await;
    assert_eq!((closed.changed, closed.state), (true, FlowState::Running));
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": last, "fence": task.fence })).await;
    assert_eq!(state(&h, &flow).await, FlowState::Completed);
    assert!(!h.must::<CloseFlow>(json!({ "flow_id": flow })).await.changed);
    let late = json!({ "kind": "test", "flow_id": flow });
    assert_eq!(h.refused::<CreateExecution>(late).await, Code::FlowAlreadyTerminal);
    let empty = open_flow(&h).await;
    assert_eq!(h.must::<CloseFlow>(json!({ "flow_id": empty })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_a_flow_whose_members_have_all_ended() {
    let h = Harness::start().await;
    let flow = open_flow(&h).await;
    let id = h.submit(json!({ "flow_id": flow })).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(1_000).await;
    let closed = h.must::<CloseFlow>(json!({ "flow_id": flow })).await;
    assert_eq!((closed.changed, closed.state), (true, FlowState::Completed));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_suspends_says_so_and_its_reset_lets_go() {
    let h = Harness::start().await;
    let budget = json!({ "name": "team", "dimensions": { "tokens": { "hard": 1 } }, "on_hard": "suspend" });
    h.must::<CreateBudget>(budget).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "team", "usage": { "tokens": 1 } })).await;
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(view.state.blocking_reason, BlockingReason::PausedByPolicy);
    h.pass(31_000).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(view.state.blocking_reason, BlockingReason::PausedByPolicy, "a recheck does not let it go");
    let (task, _) = tokio::join!(h.claim(), h.must::<ResetBudget>(json!({ "name": "team" })));
    assert_eq!(task.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_registered_worker_is_handed_no_more_than_it_runs_at_once() {
    let h = Harness::start().await;
    let register =
        |instance: &str| json!({ "instance_id": instance, "worker_id": "w", "lanes": ["default"], "nonce": "n" });
    let mut small = register("w-1");
    small["capacity"] = json!(2);
    h.must::<RegisterWorker>(small).await;
    for _ in 0..6 {
        h.submit(json!({})).await;
    }
    let claim = |instance: &str| json!({ "instance_id": instance, "lanes": ["default"], "max_tasks": 4 });
    let claimed = h.must::<ff_core::op::Claim>(claim("w-1")).await.tasks;
    assert_eq!(claimed.len(), 2);
    assert_eq!(h.refused::<ff_core::op::Claim>(claim("w-1")).await, Code::WorkerAtCapacity);
    let done = &claimed[0];
    h.must::<Complete>(json!({ "execution_id": done.execution_id, "fence": done.fence })).await;
    assert_eq!(h.must::<ff_core::op::Claim>(claim("w-1")).await.tasks.len(), 1);
    h.must::<RegisterWorker>(register("w-2")).await;
    assert_eq!(h.must::<ff_core::op::Claim>(claim("w-2")).await.tasks.len(), 3, "it named no capacity");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_says_what_let_the_attempt_go_on() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let first = h.claim().await.unwrap();
    assert_eq!(first.resumed_by, None);
    h.must::<Delay>(json!({ "execution_id": id, "fence": first.fence, "delay_ms": 1_000 })).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.resumed_by, Some(ResumeCause::Delay));
    let suspend = |fence: &ff_core::lease::LeaseFence| json!({ "execution_id": id, "fence": fence, "condition": { "any": [] }, "reason": "signal" });
    h.must::<Suspend>(suspend(&task.fence)).await;
    h.must::<ResumeExecution>(json!({ "execution_id": id })).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.resumed_by, Some(ResumeCause::Operator));
    h.must::<Suspend>(suspend(&task.fence)).await;
    h.must::<DeliverSignal>(json!({ "execution_id": id, "name": "go" })).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.resumed_by, Some(ResumeCause::Signal));
    let wait = json!({ "execution_id": id, "fence": task.fence, "continuation": { "page": 7 } });
    h.must::<WaitChildren>(wait.clone()).await;
    assert_eq!(h.must::<WaitChildren>(wait).await.public_state, PublicState::Waiting, "a repeat is the same call");
    let task = h.claim().await.unwrap();
    assert_eq!(task.resumed_by, Some(ResumeCause::Children));
    assert_eq!(task.continuation.unwrap().bytes, r#"{"page":7}"#);
    let large = json!({ "execution_id": id, "fence": task.fence, "continuation": "x".repeat(50_000) });
    h.must::<WaitChildren>(large).await;
    let task = h.claim().await.unwrap();
    assert_eq!(task.continuation.unwrap().bytes.len(), 50_002);
    h.must::<Delay>(json!({ "execution_id": id, "fence": task.fence, "delay_ms": 1 })).await;
    assert_eq!(h.claim().await.unwrap().continuation, None);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_sibling_that_somebody_else_waits_for_is_not_cancelled() {
    let h = Harness::start().await;
    let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
    let mut first = node("first");
    first["join"] = json!({ "any_of": { "on_satisfied": "cancel_remaining" } });
    let edge = |from: &str, to: &str| json!({ "from": from, "to": to });
    let mut quick = node("a");
    quick["request"]["priority"] = json!(5);
    let graph = json!({
        "nodes": [quick, node("b"), node("c"), first, node("all")],
        "edges": [edge("a", "first"), edge("b", "first"), edge("c", "first"), edge("b", "all")],
    });
    let create_flow::Outcome::Created { executions, .. } = h.must::<CreateFlow>(graph).await else { panic!() };
    let task = h.claim().await.unwrap();
    assert_eq!(task.node.as_deref(), Some("a"));
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(1_000).await;
    assert_eq!(h.state(&executions["first"]).await, PublicState::Waiting);
    assert_eq!(h.state(&executions["c"]).await, PublicState::Cancelled, "nobody needs it any more");
    assert_eq!(h.state(&executions["b"]).await, PublicState::Waiting, "another one waits for it");
    assert_eq!(h.state(&executions["all"]).await, PublicState::WaitingChildren);
    h.finish().await;
}
