//! The two-step form: a grant first, the lease later.

use crate::support::Harness;
use ff_core::lease::{ClaimGrant, ClaimKind, GrantKind};
use ff_core::op::{
    Claim, ClaimFromGrant, ClaimFromReclaimGrant, Complete, Delay, HoldExecution, RegisterWorker, ReleaseExecution,
    ReturnGrant,
};
use ff_core::{Code, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Plan};
use serde_json::{Value, json};

async fn grant(h: &Harness, instance: &str) -> Option<ClaimGrant> {
    let args = json!({ "instance_id": instance, "lanes": ["default"], "mode": "grant", "capabilities": ["gpu"] });
    h.must::<Claim>(args).await.grants.pop()
}

fn take(instance: &str, grant: &ClaimGrant) -> Value {
    let (grant_id, id) = (grant.grant_id, grant.execution_id);
    json!({ "instance_id": instance, "grant_id": grant_id, "execution_id": id, "capabilities": ["gpu"] })
}

#[tokio::test(start_paused = true)]
async fn a_grant_takes_it_out_of_the_queue_and_becomes_a_lease_once() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "required_capabilities": ["gpu"] })).await;
    let granted = grant(&h, "w-1").await.unwrap();
    assert_eq!((granted.execution_id, granted.kind, granted.worker_id.as_str()), (id, GrantKind::Claim, "w-1"));
    assert!(grant(&h, "w-2").await.is_none(), "it is not in the queue");
    assert_eq!(h.state(&id).await, PublicState::Waiting);
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-2", &granted)).await, Code::InvalidClaimGrant);
    let mut weak = take("w-1", &granted);
    weak["capabilities"] = json!([]);
    assert_eq!(h.refused::<ClaimFromGrant>(weak).await, Code::CapabilityMismatch);
    assert_eq!(h.refused::<ClaimFromReclaimGrant>(take("w-1", &granted)).await, Code::NotAResumedExecution);
    let task = h.must::<ClaimFromGrant>(take("w-1", &granted)).await.task;
    assert_eq!((task.fence.lease_id, task.claim_kind), (granted.grant_id, ClaimKind::Initial));
    let again = h.must::<ClaimFromGrant>(take("w-1", &granted)).await.task;
    assert_eq!(again, task, "a repeat after a lost reply gets the same lease");
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-2", &granted)).await, Code::InvalidClaimGrant);
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-1", &granted)).await, Code::InvalidClaimGrant, "it is used");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_grant_lapses_and_one_handed_back_is_queued_at_once() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let lapsed = grant(&h, "w-1").await.unwrap();
    h.pass(5_001).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-1", &lapsed)).await, Code::ClaimGrantExpired);
    let second = grant(&h, "w-1").await.unwrap();
    let back = |grant: &ClaimGrant, instance: &str| json!({ "instance_id": instance, "grant_id": grant.grant_id, "execution_id": grant.execution_id });
    assert_eq!(h.refused::<ReturnGrant>(back(&second, "w-2")).await, Code::InvalidClaimGrant);
    assert!(h.must::<ReturnGrant>(back(&second, "w-1")).await.changed);
    assert!(!h.must::<ReturnGrant>(back(&second, "w-1")).await.changed);
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-1", &second)).await, Code::ClaimGrantExpired);
    assert!(grant(&h, "w-2").await.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_worker_is_refused_and_the_grant_stays_good() {
    let h = Harness::start().await;
    let register = json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "capacity": 1, "nonce": "n" });
    h.must::<RegisterWorker>(register).await;
    h.submit(json!({})).await;
    let running = h.claim().await.unwrap();
    h.submit(json!({})).await;
    let granted = grant(&h, "w-1").await.unwrap();
    assert_eq!(granted.worker_id, "w");
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-1", &granted)).await, Code::WorkerAtCapacity);
    h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    let task = h.must::<ClaimFromGrant>(take("w-1", &granted)).await.task;
    assert_eq!(task.execution_id, granted.execution_id);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_uses_its_grants_at_the_same_time_gets_as_many_leases_as_it_has_room_for() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let register = json!({ "instance_id": "w-1", "worker_id": "w", "lanes": ["default"], "capacity": 2, "nonce": "n" });
    h.must::<RegisterWorker>(register).await;
    let mut granted = Vec::new();
    for _ in 0..5 {
        h.submit(json!({})).await;
        granted.push(grant(&h, "w-1").await.unwrap());
    }
    // No commit is seen before all of them have counted.
    trouble.begin(|call| match call {
        Call::Commit { .. } => {
            let pause = tokio::time::sleep(std::time::Duration::from_millis(20));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        }
        Call::Read { .. } => Plan::default(),
    });
    let calls = granted.iter().map(|granted| h.call::<ClaimFromGrant>(take("w-1", granted)));
    let answers = futures_util::future::join_all(calls).await;
    trouble.end();
    let refused: Vec<Code> = answers.iter().filter_map(|answer| Some(answer.as_ref().err()?.code)).collect();
    assert_eq!(refused, [Code::WorkerAtCapacity, Code::WorkerAtCapacity, Code::WorkerAtCapacity]);
    let running = answers.iter().find_map(|answer| answer.as_ref().ok()).unwrap().task.clone();
    h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    let unused = granted.iter().zip(&answers).find(|(_, answer)| answer.is_err()).unwrap().0;
    let task = h.must::<ClaimFromGrant>(take("w-1", unused)).await.task;
    assert_eq!(task.execution_id, unused.execution_id, "its grant stayed good");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_attempt_is_granted_as_a_reclaim_and_continues() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    h.must::<Delay>(json!({ "execution_id": id, "fence": task.fence, "delay_ms": 100 })).await;
    h.pass(101).await;
    let granted = grant(&h, "w-2").await.unwrap();
    assert_eq!(granted.kind, GrantKind::Reclaim);
    let resumed = h.must::<ClaimFromReclaimGrant>(take("w-2", &granted)).await.task;
    assert_eq!((resumed.claim_kind, resumed.fence.attempt.0), (ClaimKind::Resumed, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_a_grant_and_its_worker_is_told_why() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let granted = grant(&h, "w-1").await.unwrap();
    h.must::<HoldExecution>(json!({ "execution_id": id })).await;
    let refused = h.call::<ClaimFromGrant>(take("w-1", &granted)).await.unwrap_err();
    assert_eq!(refused.code, Code::ExecutionNotEligible);
    assert_eq!(refused.details["blocking_reason"], "paused_by_operator");
    let back = json!({ "instance_id": "w-1", "grant_id": granted.grant_id, "execution_id": id });
    assert!(!h.must::<ReturnGrant>(back).await.changed, "there is nothing left to hand back");
    let invented =
        json!({ "instance_id": "w-1", "grant_id": "0190a0a0-0000-7000-8000-000000000000", "execution_id": id });
    assert_eq!(h.refused::<ClaimFromGrant>(invented).await, Code::InvalidClaimGrant);
    h.must::<ReleaseExecution>(json!({ "execution_id": id })).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take("w-1", &granted)).await, Code::ClaimGrantExpired);
    let anew = grant(&h, "w-1").await.unwrap();
    h.must::<ClaimFromGrant>(take("w-1", &anew)).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_for_a_grant_returns_the_same_grant() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    h.submit(json!({})).await;
    let ids = ["00000000-0000-7000-8000-000000000001"];
    let mut args = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "lease_ids": ids });
    let first = h.must::<Claim>(args.clone()).await.grants;
    args["retry"] = json!(true);
    assert_eq!(h.must::<Claim>(args).await.grants, first);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_equal_claims_of_one_grant_at_the_same_time_have_the_same_answer() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let other = h.second().await;
    let id = h.submit(json!({})).await;
    let grant = h.must::<Claim>(json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant" })).await.grants;
    let take = json!({ "instance_id": "w-1", "grant_id": grant[0].grant_id, "execution_id": id });
    // Both calls have read the grant before one of them uses it.
    trouble.begin(|call: Call<'_>| {
        let pause = matches!(call, Call::Commit { .. })
            .then(|| Box::pin(tokio::time::sleep(std::time::Duration::from_millis(20))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    let (one, two) = tokio::join!(h.must::<ClaimFromGrant>(take.clone()), other.must::<ClaimFromGrant>(take));
    trouble.end();
    assert_eq!(one.task.fence, two.task.fence);
    h.must::<Complete>(json!({ "execution_id": id, "fence": one.task.fence })).await;
    other.engine.close().await;
    h.finish().await;
}
