//! A call whose answer was lost is made again: the second answer is the first one, whatever happened in between.

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::op::{
    CancelExecution, CancelExecutionOutcome, CancelFlow, Claim, CloseFlow, Complete, CreateFlow,
    CreatePendingWaitpoint, DeliverSignal, Exchange, ListExecutions, ReplayExecution, Suspend, SuspendOutcome,
};
use ff_core::{Code, PublicState};
use serde_json::{Value, json};

use crate::support::Harness;

/// What happens to a replayed execution before the call is made again.
async fn stages(h: &Harness, id: &Value, again: impl AsyncFn(&str)) {
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    again("replayed").await;
    let task = h.claim().await.unwrap();
    again("claimed").await;
    h.pass(50).await;
    h.must::<CancelExecution>(json!({ "execution_id": id, "fence": task.fence })).await;
    again("cancelled").await;
    h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
    let task = h.claim().await.unwrap();
    h.pass(50).await;
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    again("completed").await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_attempt_is_answered_alike_after_replays() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let call = json!({ "execution_id": id, "fence": h.claim().await.unwrap().fence, "result": 1 });
    let first = h.must::<Complete>(call.clone()).await;
    assert_eq!(first.public_state, PublicState::Completed);
    stages(&h, &json!(id), async |stage| {
        assert_eq!(h.must::<Complete>(call.clone()).await, first, "{stage}");
    })
    .await;
    let id = h.submit(json!({})).await;
    let call = json!({ "execution_id": id, "fence": h.claim().await.unwrap().fence, "reason": "enough" });
    let first = h.must::<CancelExecution>(call.clone()).await;
    assert!(matches!(first, CancelExecutionOutcome::Cancelled { cancelled_at: 1.. }), "{first:?}");
    stages(&h, &json!(id), async |stage| {
        assert_eq!(h.must::<CancelExecution>(call.clone()).await, first, "{stage}");
    })
    .await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_suspension_is_answered_alike_after_a_later_one() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let suspend = |fence: &Value, key: &str, more: Value| {
        let mut args = json!({ "execution_id": id, "fence": fence, "idempotency_key": key, "condition": { "any": [] }, "reason": "signal" });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let signal = |waitpoint: &Value, token: &Value| json!({ "execution_id": id, "waitpoint_id": waitpoint, "token": token, "name": "go" });
    let fence = json!(h.claim().await.unwrap().fence);
    // The first one is satisfied before it begins, so that the lease goes on; the second one ends it.
    let pending = h.must::<CreatePendingWaitpoint>(json!({ "execution_id": id, "fence": fence })).await;
    h.must::<DeliverSignal>(signal(&json!(pending.waitpoint_id), &json!(pending.token))).await;
    let first = suspend(&fence, "first", json!({ "waitpoint_ids": [pending.waitpoint_id] }));
    let satisfied = h.must::<Suspend>(first.clone()).await;
    assert!(matches!(satisfied, SuspendOutcome::AlreadySatisfied { .. }), "{satisfied:?}");
    let second = suspend(&fence, "second", json!({}));
    let suspended = h.must::<Suspend>(second.clone()).await;
    let SuspendOutcome::Suspended { waitpoint_id, token, .. } = &suspended else { panic!("{suspended:?}") };
    assert_eq!(h.must::<Suspend>(first.clone()).await, satisfied);
    h.must::<DeliverSignal>(signal(&json!(waitpoint_id), &json!(token))).await;
    // A third one, of another lease, is in force.
    let later = json!(h.claim().await.unwrap().fence);
    assert_eq!(
        (h.must::<Suspend>(first.clone()).await, h.must::<Suspend>(second.clone()).await),
        (satisfied.clone(), suspended.clone())
    );
    h.must::<Suspend>(suspend(&later, "third", json!({}))).await;
    assert_eq!((h.must::<Suspend>(first).await, h.must::<Suspend>(second).await), (satisfied, suspended));
    h.finish().await;
}

/// How a worker asks for work.
#[derive(Debug, Clone, Copy)]
enum By {
    Claim,
    Exchange,
}

/// Claims one task, and says which.
async fn claim_by(by: By, h: &Harness, retry: bool) -> Vec<ff_core::ExecutionId> {
    let ids = ["01a3185c-5000-7661-80ab-28b890620001"];
    let mut asked = json!({ "lanes": ["default"], "lease_ids": ids, "wait_ms": 3_000, "retry": retry });
    let tasks = match by {
        By::Claim => {
            asked["instance_id"] = json!("w-1");
            h.must::<Claim>(asked).await.tasks
        }
        By::Exchange => h.must::<Exchange>(json!({ "instance_id": "w-1", "claim": asked })).await.claim.unwrap().tasks,
    };
    tasks.iter().map(|task| task.execution_id).collect()
}

/// The repeat of a claim that still waits, when work comes for both.
async fn claimed_by_both(h: &Harness, at: &Harness, by: By) -> [Vec<ff_core::ExecutionId>; 2] {
    let coming = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        for _ in 0..3 {
            h.submit(json!({})).await;
        }
    };
    let repeat = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        claim_by(by, at, true).await
    };
    let (first, again, ()) = tokio::join!(claim_by(by, h, false), repeat, coming);
    [first, again]
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_repeated_while_it_waits_takes_work_once() {
    let h = Harness::start().await;
    let [first, again] = claimed_by_both(&h, &h, By::Claim).await;
    assert_eq!(first.len(), 1);
    assert_eq!(first, again);
    let leases: u64 = h.store.inspect(|contents| {
        let documents = contents.partitions().flat_map(|(_, contents)| contents.documents());
        let executions = documents.filter(|(key, _)| key.kind() == ff_core::index::kind::EXECUTION);
        executions.map(|(_, raw)| Execution::decode(&raw.body).unwrap().epoch.0).sum()
    });
    assert_eq!(leases, 1, "the repeat took nothing, not even to give it back");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_repeated_at_another_server_leaves_one_execution_under_its_lease_id() {
    for by in [By::Claim, By::Exchange] {
        let h = Harness::start().await;
        let other = h.second().await;
        let [first, again] = claimed_by_both(&h, &other, by).await;
        assert_eq!((first.len(), again.len()), (1, 1), "{by:?}");
        let active = h.must::<ListExecutions>(json!({ "state": ["active"] })).await.items.len();
        assert_eq!(active, 1, "{by:?}: {first:?} and {again:?}");
        other.engine.close().await;
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspension_that_was_satisfied_at_once_is_answered_alike_after_the_end() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let fence = h.claim().await.unwrap().fence;
    let pending = h.must::<CreatePendingWaitpoint>(json!({ "execution_id": id, "fence": fence })).await;
    let signal =
        json!({ "execution_id": id, "waitpoint_id": pending.waitpoint_id, "token": pending.token, "name": "go" });
    h.must::<DeliverSignal>(signal).await;
    let suspend = |key: &str| {
        json!({ "execution_id": id, "fence": fence, "idempotency_key": key, "condition": { "any": [] },
            "reason": "signal", "waitpoint_ids": [pending.waitpoint_id] })
    };
    let first = h.must::<Suspend>(suspend("k")).await;
    assert!(matches!(first, SuspendOutcome::AlreadySatisfied { .. }), "{first:?}");
    h.must::<Complete>(json!({ "execution_id": id, "fence": fence })).await;
    assert_eq!(h.must::<Suspend>(suspend("k")).await, first);
    assert_eq!(h.refused::<Suspend>(suspend("other")).await, Code::ExecutionNotActive);
    stages(&h, &json!(id), async |stage| {
        assert_eq!(h.must::<Suspend>(suspend("k")).await, first, "{stage}");
    })
    .await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_a_flow_is_answered_alike_after_its_members_have_ended() {
    for wait in [false, true] {
        let mut h = Harness::start().await;
        let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
        let flow = h.must::<CreateFlow>(json!({ "nodes": [node("a"), node("b"), node("c")] })).await;
        let flow = json!(flow)["flow_id"].clone();
        let running = h.claim().await.unwrap();
        let calls =
            ["first", "second"].map(|key| (key, json!({ "flow_id": flow, "policy": "cancel_pending", "wait": wait })));
        let mut answers = Vec::new();
        for (key, call) in &calls {
            h.caller.idempotency_key = Some((*key).into());
            answers.push(h.must::<CancelFlow>(call.clone()).await);
        }
        h.caller.idempotency_key = None;
        h.pass(500).await;
        h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
        h.pass(500).await;
        for ((key, call), first) in calls.iter().zip(&answers) {
            h.caller.idempotency_key = Some((*key).into());
            assert_eq!(h.must::<CancelFlow>(call.clone()).await, *first, "{key} {wait}");
            let other = json!({ "flow_id": flow, "policy": "cancel_all", "wait": wait });
            assert_eq!(h.refused::<CancelFlow>(other).await, Code::IdempotencyConflict);
        }
        h.caller.idempotency_key = None;
        let now = h.must::<CancelFlow>(calls[0].1.clone()).await;
        assert_ne!(now, answers[0], "without a key it is the flow as it is now");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_close_of_a_flow_is_answered_alike_after_its_members_have_ended() {
    let mut h = Harness::start().await;
    let flow = json!(h.must::<CreateFlow>(json!({})).await)["flow_id"].clone();
    h.submit(json!({ "flow_id": flow })).await;
    let running = h.claim().await.unwrap();
    h.caller.idempotency_key = Some("k".into());
    let first = h.must::<CloseFlow>(json!({ "flow_id": flow })).await;
    assert!(first.changed);
    h.caller.idempotency_key = None;
    h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    h.pass(500).await;
    h.caller.idempotency_key = Some("k".into());
    assert_eq!(h.must::<CloseFlow>(json!({ "flow_id": flow })).await, first);
    h.finish().await;
}
