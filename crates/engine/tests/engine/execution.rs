//! Executions from submission to their end.

use crate::support::Harness;
use ff_core::lease::ClaimKind;
use ff_core::op::{
    ChangePriority, Complete, CreateExecution, Delay, Fail, GetExecution, GetResult, Suspend, WaitExecution,
};
use ff_core::{Code, OwnershipState, PublicState};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_task_is_submitted_claimed_and_completed() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "input": { "a": 1 } })).await;
    let task = h.claim().await.unwrap();
    assert_eq!((task.execution_id, task.claim_kind), (id, ClaimKind::Initial));
    assert_eq!(&task.input.unwrap().bytes[..], br#"{"a":1}"#);
    let complete = json!({ "execution_id": id, "fence": task.fence, "result_base64": "AP8=" });
    let done = h.must::<Complete>(complete.clone()).await;
    assert_eq!(h.must::<Complete>(complete).await, done, "the same call again gets the same answer");
    assert_eq!(&h.must::<GetResult>(json!({ "execution_id": id })).await.bytes[..], [0, 255]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_retried_after_its_backoff() {
    let h = Harness::start().await;
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 100 } } } });
    let id = h.submit(json!({ "policy": policy })).await;
    let task = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": id, "fence": task.fence, "reason": "broke" })).await;
    assert_eq!(h.state(&id).await, PublicState::Delayed);
    let again = h.claim().await.unwrap();
    assert_eq!((again.claim_kind, again.fence.attempt.0, again.fence.epoch.0), (ClaimKind::Retry, 1, 2));
    h.must::<Fail>(json!({ "execution_id": id, "fence": again.fence, "reason": "broke" })).await;
    assert_eq!(h.state(&id).await, PublicState::Failed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_reclaimed_and_its_old_holder_refused() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.pass(1_001).await;
    let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
    assert_eq!(view.state.ownership_state, OwnershipState::LeaseExpiredReclaimable);
    let complete = json!({ "execution_id": id, "fence": old.fence });
    assert_eq!(h.refused::<Complete>(complete.clone()).await, Code::LeaseExpired);
    let new = h.claim().await.unwrap();
    assert_eq!((new.claim_kind, new.fence.attempt.0, new.fence.epoch.0), (ClaimKind::Reclaim, 1, 2));
    assert_eq!(h.refused::<Complete>(complete).await, Code::StaleLease);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_gets_what_is_submitted_later() {
    let h = Harness::start().await;
    let (task, id) = tokio::join!(h.claim(), async {
        h.pass(50).await;
        h.submit(json!({})).await
    });
    assert_eq!(task.unwrap().execution_id, id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_names_one_execution() {
    let h = Harness::start().await;
    let request = json!({ "kind": "test", "idempotency_key": "k", "input": 1 });
    let first = h.must::<CreateExecution>(request.clone()).await;
    let again = h.must::<CreateExecution>(request).await;
    assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true));
    let other = json!({ "kind": "test", "idempotency_key": "k", "input": 2 });
    assert_eq!(h.refused::<CreateExecution>(other).await, Code::IdempotencyConflict);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_attempt_continues_and_a_waiter_learns_of_its_end() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    h.must::<Delay>(json!({ "execution_id": id, "fence": task.fence, "delay_ms": 500 })).await;
    let (waited, ()) = tokio::join!(h.must::<WaitExecution>(json!({ "execution_id": id, "wait_ms": 5000 })), async {
        let resumed = h.claim().await.unwrap();
        assert_eq!((resumed.claim_kind, resumed.fence.attempt.0), (ClaimKind::Resumed, 0));
        h.must::<Complete>(json!({ "execution_id": id, "fence": resumed.fence })).await;
    });
    assert!(waited.terminal);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_terminal_execution_is_gone_after_its_retention() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "retention_ms": 60_000 } })).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(60_001).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_change_ends_when_the_worker_suspends() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let known = h.must::<GetExecution>(json!({ "execution_id": id })).await.updated_at;
    let began = tokio::time::Instant::now();
    let wait = json!({ "execution_id": id, "wait_ms": 20_000, "changed_after": known });
    let (waited, ()) = tokio::join!(h.must::<WaitExecution>(wait), async {
        h.pass(5).await;
        let condition = json!({ "any": [{ "name": "approve" }] });
        let suspend = json!({ "execution_id": id, "fence": task.fence, "reason": "approval", "condition": condition });
        h.must::<Suspend>(suspend).await;
    });
    assert_eq!(waited.execution.public_state, PublicState::Suspended);
    assert!(began.elapsed().as_millis() < 1_000, "{:?}", began.elapsed());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_change_sees_a_claim_and_a_new_priority_too() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    for change in ["claim", "priority"] {
        let known = h.must::<GetExecution>(json!({ "execution_id": id })).await.updated_at;
        let began = tokio::time::Instant::now();
        let wait = json!({ "execution_id": id, "wait_ms": 20_000, "changed_after": known });
        let (waited, ()) = tokio::join!(h.must::<WaitExecution>(wait), async {
            h.pass(100).await;
            match change {
                "claim" => assert!(h.claim().await.is_some()),
                _ => {
                    assert_eq!(h.must::<ChangePriority>(json!({ "execution_id": id, "priority": 7 })).await.priority, 7)
                }
            }
        });
        assert!(waited.execution.updated_at > known && !waited.terminal, "{change}");
        assert!(began.elapsed().as_millis() < 1_000, "{change}: {:?}", began.elapsed());
    }
    h.finish().await;
}
