//! Changes that operators and submitters make to executions: cancel, hold, reorder, revoke, submit many at once.

use crate::support::Harness;
use ff_core::lease::ClaimKind;
use ff_core::op::CreateResult;
use ff_core::op::create_flow::Outcome as FlowCreated;
use ff_core::op::{
    CancelExecution, CancelFlow, ChangePriority, Complete, CreateBulk, CreateExecutions, CreateFlow, Delay,
    ExplainExecution, GetBulk, GetExecution, HoldExecution, Progress, ReasonCode, ReleaseExecution, ReplayExecution,
    RevokeLease, SetTags, cancel_execution, revoke_lease,
};
use ff_core::{BlockingReason, Code, EligibilityState, ExecutionId, PartitionConfig, PublicState};
use ff_engine::Options;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn cancel_ends_an_execution_in_every_state_and_reports_the_outcome_of_an_ended_one() {
    let h = Harness::start().await;
    let active = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let delayed = h.submit(json!({})).await;
    let other = h.claim().await.unwrap();
    h.must::<Delay>(json!({ "execution_id": delayed, "fence": other.fence, "delay_ms": 60_000 })).await;
    let held = h.submit(json!({})).await;
    h.must::<HoldExecution>(json!({ "execution_id": held, "reason": "wait" })).await;
    let waiting = h.submit(json!({})).await;
    for id in [active, delayed, held, waiting] {
        let cancelled = h.must::<CancelExecution>(json!({ "execution_id": id, "reason": "enough" })).await;
        assert!(matches!(cancelled, cancel_execution::Outcome::Cancelled { .. }), "{cancelled:?}");
        assert_eq!(h.state(&id).await, PublicState::Cancelled);
        let again = h.must::<CancelExecution>(json!({ "execution_id": id })).await;
        let expected = cancel_execution::Outcome::AlreadyTerminal { public_state: PublicState::Cancelled };
        assert_eq!(again, expected);
    }
    let refused = h.refused::<Complete>(json!({ "execution_id": active, "fence": task.fence })).await;
    assert_eq!(refused, Code::LeaseRevoked);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_cancels_its_own_execution_and_repeats_the_call() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let call = json!({ "execution_id": id, "fence": task.fence, "reason": "no use" });
    let first = h.must::<CancelExecution>(call.clone()).await;
    assert_eq!(h.must::<CancelExecution>(call).await, first);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn priority_orders_the_queue_and_can_be_changed_across_partitions() {
    let partitions = PartitionConfig { flow: 8, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let first = h.submit(json!({})).await;
    h.pass(1).await;
    let second = h.submit(json!({})).await;
    h.pass(1).await;
    let urgent = h.submit(json!({ "priority": 10 })).await;
    h.pass(1).await;
    let last = h.submit(json!({})).await;
    let changed = h.must::<ChangePriority>(json!({ "execution_id": last, "priority": 99_999 })).await;
    assert_eq!(changed.priority, 9_000);
    for expected in [last, urgent, first, second] {
        assert_eq!(h.claim().await.unwrap().execution_id, expected);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_execution_waits_for_its_release() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let hold = json!({ "execution_id": id, "reason": "inspect" });
    assert!(h.must::<HoldExecution>(hold.clone()).await.changed);
    assert!(!h.must::<HoldExecution>(hold).await.changed);
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    let release = json!({ "execution_id": id });
    assert!(h.must::<ReleaseExecution>(release.clone()).await.changed);
    assert!(!h.must::<ReleaseExecution>(release).await.changed);
    assert_eq!(h.claim().await.unwrap().execution_id, id);
    h.finish().await;
}

/// Says that the cancellation of its flow holds it, and explains so.
async fn is_paused_by_its_flow(h: &Harness, id: &ExecutionId) {
    let state = h.must::<GetExecution>(json!({ "execution_id": id })).await.state;
    assert_eq!(state.blocking_reason, BlockingReason::PausedByFlowCancel);
    assert_eq!(state.eligibility_state, EligibilityState::BlockedByOperator);
    let reasons = h.must::<ExplainExecution>(json!({ "execution_id": id })).await.reasons;
    assert_eq!(
        (reasons[0].code, reasons[0].message.as_str()),
        (ReasonCode::FlowCancelled, "its flow is cancelled: no")
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_lets_nothing_run_whose_flow_is_cancelled() {
    let h = Harness::start().await;
    let nodes = ["ended", "paused", "held"].map(|name| json!({ "name": name, "request": { "kind": name } }));
    let FlowCreated::Created { flow_id, executions, .. } = h.must::<CreateFlow>(json!({ "nodes": nodes })).await else {
        panic!("it is new")
    };
    let (ended, paused, held) = (executions["ended"], executions["paused"], executions["held"]);
    h.must::<ChangePriority>(json!({ "execution_id": ended, "priority": 9 })).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": ended, "fence": task.fence })).await;
    h.must::<HoldExecution>(json!({ "execution_id": held, "reason": "inspect" })).await;
    let cancel = json!({ "flow_id": flow_id, "policy": "flow_only", "reason": "no", "wait": true });
    h.must::<CancelFlow>(cancel).await;
    is_paused_by_its_flow(&h, &paused).await;

    let released = h.must::<ReleaseExecution>(json!({ "execution_id": paused })).await;
    assert_eq!((released.changed, released.public_state), (false, PublicState::Waiting));
    is_paused_by_its_flow(&h, &paused).await;
    // The operator's hold ends; that of the flow stands in its place.
    assert!(h.must::<ReleaseExecution>(json!({ "execution_id": held })).await.changed);
    is_paused_by_its_flow(&h, &held).await;
    assert!(!h.must::<ReleaseExecution>(json!({ "execution_id": held })).await.changed);
    let job = h.must::<CreateBulk>(json!({ "filter": { "flow_id": flow_id }, "action": "release" })).await;
    h.pass(5_000).await;
    let job = h.must::<GetBulk>(json!({ "bulk_id": job.bulk_id })).await;
    assert_eq!((job.progress.done, job.progress.unchanged), (0, 2), "{job:?}");
    is_paused_by_its_flow(&h, &paused).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none());

    // A replay opens the flow again, so that a release has its usual effect.
    h.must::<ReplayExecution>(json!({ "execution_id": ended })).await;
    assert!(h.must::<ReleaseExecution>(json!({ "execution_id": paused })).await.changed);
    let claimed = [h.claim().await.unwrap().execution_id, h.claim().await.unwrap().execution_id];
    assert!(claimed.contains(&ended) && claimed.contains(&paused), "{claimed:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_revoked_lease_is_reclaimed_and_the_same_command_takes_no_second_lease() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let none = h.must::<RevokeLease>(json!({ "execution_id": id })).await;
    assert_eq!(none, revoke_lease::Outcome::NoActiveLease);
    let old = h.claim().await.unwrap();
    let wrong = json!({ "execution_id": id, "expected_lease_id": "00000000-0000-7000-8000-000000000001" });
    let other = revoke_lease::Outcome::OtherLease { lease_id: old.fence.lease_id, epoch: old.fence.epoch };
    assert_eq!(h.must::<RevokeLease>(wrong).await, other, "it says which lease holds it, and takes none away");
    let command = json!({ "execution_id": id, "command_id": "00000000-0000-7000-8000-000000000009" });
    let revoked = revoke_lease::Outcome::Revoked { lease_id: old.fence.lease_id, epoch: old.fence.epoch };
    assert_eq!(h.must::<RevokeLease>(command.clone()).await, revoked);
    let progress = json!({ "execution_id": id, "fence": old.fence, "pct": 5 });
    assert_eq!(h.refused::<Progress>(progress.clone()).await, Code::LeaseRevoked);
    let new = h.claim().await.unwrap();
    assert_eq!((new.claim_kind, new.fence.attempt.0), (ClaimKind::Reclaim, 1));
    assert_eq!(h.must::<RevokeLease>(command).await, revoked, "the same command again");
    let named = json!({ "execution_id": id, "expected_lease_id": old.fence.lease_id });
    let gone = revoke_lease::Outcome::AlreadyRevoked { reason: "revoked".into() };
    assert_eq!(h.must::<RevokeLease>(named).await, gone);
    assert_eq!(h.refused::<Progress>(progress).await, Code::StaleLease);
    h.must::<Progress>(json!({ "execution_id": id, "fence": new.fence, "pct": 5, "message": "half" })).await;
    h.must::<Progress>(json!({ "execution_id": id, "fence": new.fence, "pct": 6 })).await;
    let progress = h.must::<GetExecution>(json!({ "execution_id": id })).await.progress.unwrap();
    assert_eq!((progress.pct, progress.message.as_deref()), (Some(6), Some("half")));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_answers_for_each_submission_on_its_own() {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let mut executions: Vec<_> = (0..997).map(|n| json!({ "kind": "many", "input": n })).collect();
    executions.push(json!({ "kind": "keyed", "idempotency_key": "k", "input": 1 }));
    executions.push(json!({ "kind": "keyed", "idempotency_key": "k", "input": 1 }));
    executions.push(json!({ "kind": "keyed", "idempotency_key": "k", "input": 2 }));
    let results = h.must::<CreateExecutions>(json!({ "executions": executions })).await.results;
    assert_eq!(results.len(), 1_000);
    let created = |place: usize| match &results[place] {
        CreateResult::Created(created) => created.clone(),
        refused => panic!("{place}: {refused:?}"),
    };
    for place in 0..998 {
        assert!(!created(place).duplicate);
    }
    assert_eq!((created(998).execution_id, created(998).duplicate), (created(997).execution_id, true));
    let CreateResult::Refused { error } = &results[999] else { panic!("it is another request") };
    assert_eq!(error.code, Code::IdempotencyConflict);
    let one_bad = json!({ "executions": [{ "kind": "" }, { "kind": "good" }] });
    let results = h.must::<CreateExecutions>(one_bad).await.results;
    assert!(matches!(&results[0], CreateResult::Refused { .. }) && matches!(&results[1], CreateResult::Created(_)));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn tags_are_replaced() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "tags": { "team": "a" } })).await;
    let tags = h.must::<SetTags>(json!({ "execution_id": id, "tags": { "env": "prod" } })).await.tags;
    assert_eq!(tags.keys().collect::<Vec<_>>(), ["env"]);
    assert_eq!(h.refused::<SetTags>(json!({ "execution_id": id, "tags": { "No": "x" } })).await, Code::Invalid);
    h.finish().await;
}
