//! Refusals that a caller meets rarely, each with its own code.

use crate::support::Harness;
use ff_core::lease::ClaimGrant;
use ff_core::op::{
    AddExecutionToFlow, ApplyDependencyToChild, Claim, ClaimFromGrant, Complete, CreateExecution, CreateFlow, Fail,
    GetResult, ListWorkers, PauseLane, RegisterWorker, StageDependencyEdge, Suspend,
};
use ff_core::{Code, PartitionConfig};
use ff_engine::{Engine, Options};
use serde_json::{Value, json};

async fn grant(h: &Harness) -> ClaimGrant {
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant" });
    h.must::<Claim>(args).await.grants.pop().unwrap()
}

fn take(grant_id: impl serde::Serialize, id: impl serde::Serialize) -> Value {
    json!({ "instance_id": "w-1", "grant_id": grant_id, "execution_id": id })
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_never_was_is_told_what_stands_in_its_way() {
    let h = Harness::start().await;
    let invented = "01890000-0000-7000-8000-000000000001";
    let id = h.submit(json!({})).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take(invented, id)).await, Code::InvalidClaimGrant);
    let granted = grant(&h).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take(invented, id)).await, Code::GrantAlreadyExists);
    h.must::<PauseLane>(json!({ "lane": "default" })).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take(granted.grant_id, id)).await, Code::ExecutionNotEligible);
    h.must::<ff_core::op::ResumeLane>(json!({ "lane": "default" })).await;
    let task = h.must::<ClaimFromGrant>(take(granted.grant_id, id)).await.task;
    assert_eq!(h.refused::<ClaimFromGrant>(take(invented, id)).await, Code::ExecutionNotLeaseable, "it is leased");
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    assert_eq!(h.refused::<ClaimFromGrant>(take(invented, id)).await, Code::ExecutionNotLeaseable, "it has ended");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_not_there_says_why() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "retry": { "max_retries": 0 } } })).await;
    let result = json!({ "execution_id": id });
    assert_eq!(h.refused::<GetResult>(result.clone()).await, Code::ResultNotReady);
    let task = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": id, "fence": task.fence, "reason": "broke" })).await;
    assert_eq!(h.refused::<GetResult>(result).await, Code::NoResult);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_suspension_under_a_released_lease_is_refused() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let suspend = |key: Option<&str>| {
        json!({ "execution_id": id, "fence": task.fence, "reason": "signal", "condition": { "any": [] },
            "idempotency_key": key })
    };
    let first = h.must::<Suspend>(suspend(Some("one"))).await;
    assert_eq!(h.must::<Suspend>(suspend(Some("one"))).await, first);
    assert_eq!(h.must::<Suspend>(suspend(None)).await, first, "a call without a key is known by its fence");
    assert_eq!(h.refused::<Suspend>(suspend(Some("other"))).await, Code::AlreadySuspended);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_does_not_fit_is_told_why() {
    let h = Harness::start().await;
    let flow = serde_json::to_value(h.must::<CreateFlow>(json!({ "kind": "f" })).await).unwrap()["flow_id"].clone();
    let other = serde_json::to_value(h.must::<CreateFlow>(json!({ "kind": "f" })).await).unwrap()["flow_id"].clone();
    let member = async |more: Value| {
        let mut args = json!({ "kind": "k", "flow_id": flow });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        h.must::<CreateExecution>(args).await.execution_id
    };
    let (first, second) = (member(json!({ "lane": "a" })).await, member(json!({ "lane": "b" })).await);
    let any = json!({ "any_of": { "on_satisfied": "let_run" } });
    let child = member(json!({ "lane": "c", "dependencies": [{ "upstream": first }], "join": any })).await;
    // The refusal may come with either of the two steps.
    let refused = async |upstream, downstream, join: Option<Value>| {
        let stage = json!({ "flow_id": flow, "upstream": upstream, "downstream": downstream });
        let staged = match h.call::<StageDependencyEdge>(stage).await {
            Ok(staged) => serde_json::to_value(staged).unwrap(),
            Err(error) => return error.code,
        };
        let apply = json!({ "flow_id": flow, "edge_id": staged["edge_id"], "join": join });
        h.refused::<ApplyDependencyToChild>(apply).await
    };
    let quorum = json!({ "quorum": { "k": 1, "on_satisfied": "let_run" } });
    assert_eq!(refused(second, child, Some(quorum)).await, Code::JoinPolicyConflict);
    let moved = json!({ "flow_id": other, "execution_id": first });
    assert_eq!(h.refused::<AddExecutionToFlow>(moved).await, Code::ExecutionInOtherFlow);
    let task = h.claim_with(json!({ "lanes": ["a"] })).await.unwrap();
    assert_eq!(refused(second, task.execution_id, None).await, Code::DependencyNotApplicable);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn other_partition_counts_than_the_stored_ones_do_not_start() {
    let h = Harness::with(Options {
        partitions: Some(PartitionConfig { flow: 4, ..PartitionConfig::SINGLE }),
        ..Options::default()
    })
    .await;
    let start = |partitions| {
        let env = std::sync::Arc::new(ff_engine::env::TokioEnv::current());
        Engine::start(h.store.clone(), env, Options { partitions, ..Options::default() })
    };
    let refused = start(Some(PartitionConfig { flow: 8, ..PartitionConfig::SINGLE })).await.unwrap_err();
    assert_eq!(refused.code, Code::PartitionCountsDiffer);
    let told = refused.to_string() + &serde_json::to_string(&refused.details).unwrap();
    assert!(told.contains("flow") && told.contains('4') && told.contains('8'), "{told}");
    let adopted = start(None).await.unwrap();
    assert_eq!(adopted.partitions().flow, 4);
    adopted.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_lanes_of_a_claim_take_turns_at_being_first() {
    let h = Harness::start().await;
    for lane in ["a", "b", "c"] {
        for _ in 0..4 {
            h.submit(json!({ "lane": lane })).await;
        }
    }
    let mut order = String::new();
    for _ in 0..12 {
        order.push_str(&h.claim_with(json!({ "lanes": ["a", "b", "c"] })).await.unwrap().lane);
    }
    for round in order.as_bytes().chunks(3) {
        let mut lanes = round.to_vec();
        lanes.sort_unstable();
        assert_eq!(lanes, b"abc", "each lane was first once in three claims: {order}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_registration_is_replaced_by_the_next_also_by_empty_sets() {
    let h = Harness::start().await;
    let register = |more: Value| {
        let mut args = json!({ "instance_id": "w-1", "worker_id": "w", "nonce": "n" });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let full = json!({ "lanes": ["a", "b"], "capabilities": ["gpu"], "kinds": ["k"], "version": "1" });
    h.must::<RegisterWorker>(register(full)).await;
    h.must::<RegisterWorker>(register(json!({ "lanes": ["b"], "capabilities": [] }))).await;
    let worker = h.must::<ListWorkers>(json!({})).await.items.remove(0);
    assert_eq!((worker.lanes.len(), worker.capabilities.is_empty(), worker.kinds.is_empty()), (1, true, true));
    assert_eq!(h.refused::<RegisterWorker>(register(json!({ "lanes": [] }))).await, Code::NoLanes);
    let worker = h.must::<ListWorkers>(json!({})).await.items.remove(0);
    assert_eq!(worker.lanes.len(), 1, "a refused registration changes nothing");
    h.finish().await;
}
