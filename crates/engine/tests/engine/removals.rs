//! Removals by people: executions and flows that have ended, and budgets, quotas and lanes that nothing uses.

use crate::support::Harness;
use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::lane::LaneState;
use ff_core::op::{
    CancelExecution, CancelFlow, Complete, CreateBudget, CreateExecution, CreateFlow, CreateQuota, DeleteBudget,
    DeleteLane, DeleteQuota, DisableLane, GetBudget, GetExecution, GetFlow, GetQuota, ListBudgets, ListExecutions,
    ListFlows, ListLanes, PauseLane, RemoveExecution, RemoveFlow, ReplayExecution, ReportBudgetUsage, UpdateBudget,
    UpdateQuota,
};
use ff_core::{Code, CommandId, Document, ExecutionId, Key, LeaseEpoch, PublicState};
use ff_store::{Append, Batch, Guard, Put, Store};
use serde_json::{Value, json};
use uuid::Uuid;

async fn ended(h: &Harness, more: Value) -> ExecutionId {
    let id = h.submit(more).await;
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    id
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_has_ended_is_removed_with_everything_it_has() {
    let h = Harness::start().await;
    let before = h.documents().len();
    let id = h.submit(json!({ "input": "x".repeat(100_000), "tags": { "team": "a" } })).await;
    assert_eq!(h.refused::<RemoveExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotTerminal);
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence, "result": 1 })).await;
    h.must::<RemoveExecution>(json!({ "execution_id": id })).await;
    let args = json!({ "execution_id": id });
    assert_eq!(h.refused::<GetExecution>(args.clone()).await, Code::ExecutionNotFound);
    assert_eq!(h.refused::<ReplayExecution>(args.clone()).await, Code::ExecutionNotFound);
    assert_eq!(h.refused::<RemoveExecution>(args).await, Code::ExecutionNotFound);
    assert_eq!(h.must::<ListExecutions>(json!({})).await.items, []);
    assert_eq!(h.must::<ListExecutions>(json!({ "tag": ["team=a"] })).await.items, []);
    // Records of commands expire by themselves.
    h.pass(24 * 3_600 * 1_000 + 1_000).await;
    let left: Vec<_> = h.documents().into_iter().map(|(key, _)| key).filter(|key| key.contains('x')).collect();
    assert!(h.documents().len() >= before && left.iter().all(|key| !key.contains(&id.uuid.to_string())), "{left:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_claim_that_was_given_back_go_with_their_execution() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    // What a claim leaves that was given back although its worker had begun to write: an epoch, no attempt, and a frame.
    let store: &dyn Store = &*h.store;
    let key = Execution::key_of(&id);
    let stored = store.documents(id.partition(), vec![key.clone()]).await.unwrap().remove(0).unwrap();
    let execution = Execution { epoch: LeaseEpoch(1), ..Execution::decode(&stored.body).unwrap() };
    let frames = Key::new(b'f', &[id.uuid.as_bytes(), &0_u32.to_be_bytes()]);
    let records = vec![Bytes::from_static(b"a frame")];
    let append = Append { log: frames.clone(), records, expected: None, cap: 0, in_turn: false };
    let batch = Batch {
        guards: vec![Guard::Version(key.clone(), stored.version)],
        puts: vec![Put { key, body: execution.encode().into(), fence: stored.fence, expires_at: None }],
        appends: vec![append],
        ..Batch::new(CommandId(Uuid::from_u128(1)))
    };
    assert!(store.commit(id.partition(), [batch].into()).await.unwrap()[0].clone().applied().is_some());
    let is_there = || h.store.inspect(|all| all.partitions().any(|(_, one)| one.logs().any(|(log, _)| *log == frames)));
    assert!(is_there());
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    h.must::<RemoveExecution>(json!({ "execution_id": id })).await;
    assert!(!is_there());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_execution_owes_is_settled_before_it_goes() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "one", "max_concurrent": 1 })).await;
    let id = h.submit(json!({ "quota_policy_id": "one" })).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.must::<RemoveExecution>(json!({ "execution_id": id })).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    let next = h.submit(json!({ "quota_policy_id": "one" })).await;
    assert_eq!(h.claim().await.unwrap().execution_id, next, "the slot came back");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_goes_with_its_members_and_a_member_does_not_go_alone() {
    let h = Harness::start().await;
    let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
    let graph = json!({ "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
    let created = serde_json::to_value(h.must::<CreateFlow>(graph).await).unwrap();
    let flow = created["flow_id"].clone();
    let member = created["executions"]["a"].clone();
    assert_eq!(h.refused::<RemoveFlow>(json!({ "flow_id": flow })).await, Code::FlowNotTerminal);
    h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert_eq!(h.refused::<RemoveExecution>(json!({ "execution_id": member })).await, Code::InUse);
    h.must::<RemoveFlow>(json!({ "flow_id": flow })).await;
    assert_eq!(h.refused::<GetFlow>(json!({ "flow_id": flow })).await, Code::FlowNotFound);
    assert_eq!(h.refused::<RemoveFlow>(json!({ "flow_id": flow })).await, Code::FlowNotFound);
    assert_eq!(h.must::<ListFlows>(json!({})).await.items, []);
    h.pass(1_000).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": member })).await, Code::ExecutionNotFound);
    assert_eq!(h.must::<ListExecutions>(json!({})).await.items, []);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_deleted_when_nothing_open_is_charged_to_it() {
    let h = Harness::start().await;
    let create = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } } });
    h.must::<CreateBudget>(create.clone()).await;
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    ended(&h, json!({ "budget_ids": ["team"] })).await;
    assert_eq!(h.refused::<DeleteBudget>(json!({ "name": "team" })).await, Code::InUse);
    h.must::<DeleteBudget>(json!({ "name": "team", "force": true })).await;
    assert_eq!(h.refused::<DeleteBudget>(json!({ "name": "team", "force": true })).await, Code::BudgetNotFound);
    assert_eq!(h.refused::<GetBudget>(json!({ "name": "team" })).await, Code::BudgetNotFound);
    assert_eq!(h.must::<ListBudgets>(json!({})).await.items, []);
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "a budget that is missing admits nothing");
    h.must::<CreateBudget>(create).await;
    assert_eq!(h.claim().await.unwrap().execution_id, id, "a new one lets it in");
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    h.must::<DeleteBudget>(json!({ "name": "team" })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_with_others_under_it_is_deleted_after_them_or_by_force() {
    let h = Harness::start().await;
    for name in ["corp", "corp/x", "corp/x/y", "corporate"] {
        h.must::<CreateBudget>(json!({ "name": name, "dimensions": { "tokens": { "hard": 100 } } })).await;
    }
    for name in ["corp", "corp/x"] {
        assert_eq!(h.refused::<DeleteBudget>(json!({ "name": name })).await, Code::InUse, "{name}");
    }
    for name in ["corp/x/y", "corp/x", "corp", "corporate"] {
        h.must::<DeleteBudget>(json!({ "name": name })).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_changed_in_what_is_named_and_lets_in_what_waited() {
    let h = Harness::start().await;
    let create = json!({ "name": "team", "dimensions": { "tokens": { "hard": 10, "soft": 5 }, "cents": {} } });
    h.must::<CreateBudget>(create.clone()).await;
    h.must::<ReportBudgetUsage>(json!({ "name": "team", "usage": { "tokens": 10 } })).await;
    let id = h.submit(json!({ "budget_ids": ["team"] })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let changed = h.must::<UpdateBudget>(json!({ "name": "team", "on_soft": "none" })).await;
    assert_eq!((changed.definition.dimensions.len(), changed.usage["tokens"]), (2, 10));
    assert_eq!(h.state(&id).await, PublicState::RateLimited);
    let (task, changed) =
        tokio::join!(h.claim(), h.must::<UpdateBudget>(json!({ "name": "team", "enforcement": "observe" })));
    assert_eq!(task.unwrap().execution_id, id);
    assert_eq!(changed.next_reset_at, None);
    let changed = h.must::<UpdateBudget>(json!({ "name": "team", "reset_interval_ms": 60_000 })).await;
    assert_eq!(changed.next_reset_at, Some(changed.updated_at + 60_000));
    let refused = h.call::<UpdateBudget>(json!({ "name": "team", "reset_interval_ms": 1 })).await.unwrap_err();
    assert_eq!((refused.code, refused.details["field"].as_str()), (Code::Invalid, Some("reset_interval_ms")));
    let repeated = serde_json::to_value(h.must::<CreateBudget>(create).await).unwrap();
    assert_eq!(repeated["outcome"], "already_exists", "the create it was made with is still the same create");
    assert_eq!(h.refused::<UpdateBudget>(json!({ "name": "nothing" })).await, Code::BudgetNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_deleted_and_made_anew_still_counts_what_runs() {
    let h = Harness::start().await;
    let create = json!({ "name": "one", "max_concurrent": 1 });
    h.must::<CreateQuota>(create.clone()).await;
    h.submit(json!({ "quota_policy_id": "one" })).await;
    let first = h.claim().await.unwrap();
    assert_eq!(h.refused::<DeleteQuota>(json!({ "name": "one" })).await, Code::InUse);
    h.must::<DeleteQuota>(json!({ "name": "one", "force": true })).await;
    assert_eq!(h.refused::<GetQuota>(json!({ "name": "one" })).await, Code::QuotaNotFound);
    h.must::<CreateQuota>(create).await;
    assert_eq!(h.must::<GetQuota>(json!({ "name": "one" })).await.in_use, 1);
    let second = h.submit(json!({ "quota_policy_id": "one" })).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let done = json!({ "execution_id": first.execution_id, "fence": first.fence });
    let (task, _) = tokio::join!(h.claim(), h.must::<Complete>(done));
    assert_eq!(task.unwrap().execution_id, second);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_changed_and_no_window_holds_more_than_its_limit() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "rate", "window_seconds": 10, "max_requests": 2 })).await;
    for _ in 0..4 {
        h.submit(json!({ "quota_policy_id": "rate" })).await;
    }
    assert!(h.claim().await.is_some() && h.claim().await.is_some());
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let (task, changed) = tokio::join!(h.claim(), h.must::<UpdateQuota>(json!({ "name": "rate", "max_requests": 3 })));
    assert!(task.is_some(), "a raised limit lets one more in");
    assert_eq!((changed.definition.window_seconds, changed.definition.max_requests), (10, 3));
    h.pass(5_000).await;
    let changed = h.must::<UpdateQuota>(json!({ "name": "rate", "window_seconds": 60 })).await;
    assert_eq!(changed.started_in_window, 3);
    h.pass(50_000).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "the three still count");
    h.pass(15_000).await;
    assert!(h.claim().await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_forgotten_when_nothing_open_is_in_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "lane": "gpu" })).await;
    h.must::<DisableLane>(json!({ "lane": "gpu" })).await;
    assert_eq!(h.refused::<DeleteLane>(json!({ "lane": "gpu" })).await, Code::InUse);
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    h.must::<DeleteLane>(json!({ "lane": "gpu" })).await;
    assert_eq!(h.refused::<DeleteLane>(json!({ "lane": "gpu" })).await, Code::LaneNotFound);
    // An engine that remembers work there still shows it, as a lane that was never closed.
    let lanes = h.must::<ListLanes>(json!({})).await.items;
    assert!(lanes.iter().all(|lane| lane.state == LaneState::Active && lane.changed_at.is_none()), "{lanes:?}");
    h.must::<CreateExecution>(json!({ "kind": "test", "lane": "gpu" })).await;
    h.must::<PauseLane>(json!({ "lane": "gpu" })).await;
    let (task, _) = tokio::join!(
        h.claim_with(json!({ "lanes": ["gpu"] })),
        h.must::<DeleteLane>(json!({ "lane": "gpu", "force": true }))
    );
    assert!(task.is_some(), "a lane that is forgotten is active");
    h.finish().await;
}
