//! Lanes: what they let through, and that everybody learns of it.

use crate::support::Harness;
use ff_core::lane::LaneState;
use ff_core::op::{
    Claim, Complete, ConfigureLane, CreateExecution, CreateExecutions, CreateFlow, CreateResult, DeleteLane,
    DisableLane, DrainLane, ForkExecution, GetExecution, ListLanes, PauseLane, RegisterWorker, ResumeLane,
};
use ff_core::{BlockingReason, Code, EligibilityState, PartitionConfig, PublicState};
use ff_engine::Options;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_paused_lane_lets_running_work_finish_and_starts_nothing_until_it_is_resumed() {
    let h = Harness::start().await;
    h.submit(json!({})).await;
    let running = h.claim().await.unwrap();
    let next = h.submit(json!({})).await;
    h.must::<PauseLane>(json!({ "lane": "default", "reason": "deploy" })).await;
    assert!(h.claim_with(json!({ "wait_ms": 2_000 })).await.is_none());
    let view = h.must::<GetExecution>(json!({ "execution_id": next })).await;
    assert_eq!(view.state.eligibility_state, EligibilityState::BlockedByLaneState);
    assert_eq!(view.public_state, PublicState::Waiting);
    h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    let began = h.engine.now();
    let (task, _) = tokio::join!(h.claim(), async {
        h.pass(3_000).await;
        h.must::<ResumeLane>(json!({ "lane": "default" })).await
    });
    assert_eq!(task.unwrap().execution_id, next);
    assert!(h.engine.now() - began < 3_100, "whoever waits is woken");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_disabled_lane_refuses_submissions_and_a_draining_one_is_worked_off() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "lane": "old" })).await;
    h.must::<DrainLane>(json!({ "lane": "old" })).await;
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "t", "lane": "old" })).await, Code::LaneDraining);
    assert_eq!(h.claim_with(json!({ "lanes": ["old"] })).await.unwrap().execution_id, id);
    h.must::<DisableLane>(json!({ "lane": "old" })).await;
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "t", "lane": "old" })).await, Code::LaneDisabled);
    h.finish().await;
}

/// Everything but the records of the audit.
fn written(h: &Harness) -> Vec<(String, Vec<u8>)> {
    h.documents().into_iter().filter(|(key, _)| !key.starts_with("{sys}")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_takes_nothing_new_still_answers_repeats() {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let flow = serde_json::to_value(h.must::<CreateFlow>(json!({})).await).unwrap()["flow_id"].clone();
    let parent = h.submit(json!({ "lane": "parents" })).await;
    let holder = h.claim_with(json!({ "lanes": ["parents"] })).await.unwrap();
    let link = json!({ "execution_id": parent, "fence": holder.fence, "key": "first" });
    let id = |number: u32| format!("0003-0190a0a0-0000-7000-8000-{number:012}");
    let requests = [
        json!({ "kind": "t", "lane": "old", "idempotency_key": "k" }),
        json!({ "kind": "t", "lane": "old", "execution_id": id(1) }),
        json!({ "kind": "t", "lane": "old", "execution_id": id(2), "idempotency_key": "elsewhere" }),
        json!({ "kind": "t", "lane": "old", "flow_id": flow, "idempotency_key": "member" }),
        json!({ "kind": "t", "lane": "old", "singleton": { "key": "one" } }),
        json!({ "kind": "t", "lane": "old", "parent": link }),
    ];
    let mut created = Vec::new();
    for request in &requests {
        created.push(h.must::<CreateExecution>(request.clone()).await);
    }
    let graph = json!({ "flow_id": id(4), "nodes": [{ "name": "n", "request": { "kind": "t", "lane": "old" } }] });
    let graph_made = serde_json::to_value(h.must::<CreateFlow>(graph.clone()).await).unwrap();
    let fork = json!({ "execution_id": created[0].execution_id, "command_id": "0190a0a0-0000-7000-8000-00000000000a" });
    let forked = h.must::<ForkExecution>(fork.clone()).await;
    for (close, code) in [("drain", Code::LaneDraining), ("disable", Code::LaneDisabled)] {
        match close {
            "drain" => h.must::<DrainLane>(json!({ "lane": "old" })).await,
            _ => h.must::<DisableLane>(json!({ "lane": "old" })).await,
        };
        for (request, first) in requests.iter().zip(&created) {
            let again = h.must::<CreateExecution>(request.clone()).await;
            assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true), "{close}: {request}");
        }
        let batch = h.must::<CreateExecutions>(json!({ "executions": requests })).await.results;
        for (result, first) in batch.iter().zip(&created) {
            let CreateResult::Created(again) = result else { panic!("{close}: {result:?}") };
            assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true), "{close}");
        }
        let again = serde_json::to_value(h.must::<CreateFlow>(graph.clone()).await).unwrap();
        assert_eq!((&again["outcome"], &again["executions"]), (&json!("already_exists"), &graph_made["executions"]));
        assert_eq!(h.must::<ForkExecution>(fork.clone()).await, forked);

        let before = written(&h);
        let link = json!({ "execution_id": parent, "fence": holder.fence, "key": "second" });
        for new in [
            json!({ "kind": "t", "lane": "old" }),
            json!({ "kind": "t", "lane": "old", "idempotency_key": "new" }),
            json!({ "kind": "t", "lane": "old", "execution_id": id(3) }),
            json!({ "kind": "t", "lane": "old", "execution_id": id(3), "idempotency_key": "elsewhere too" }),
            json!({ "kind": "t", "lane": "old", "flow_id": flow, "idempotency_key": "new member" }),
            json!({ "kind": "t", "lane": "old", "singleton": { "key": "other" } }),
            json!({ "kind": "t", "lane": "old", "parent": link }),
        ] {
            assert_eq!(h.refused::<CreateExecution>(new.clone()).await, code, "{new}");
            let one = h.must::<CreateExecutions>(json!({ "executions": [new] })).await.results;
            assert!(matches!(&one[..], [CreateResult::Refused { error }] if error.code == code), "{new}: {one:?}");
        }
        let other = json!({ "flow_id": id(5), "nodes": [{ "name": "n", "request": { "kind": "t", "lane": "old" } }] });
        let refusal = h.call::<CreateFlow>(other).await.unwrap_err();
        assert_eq!((refusal.code, &refusal.details["node"]), (code, &json!("n")));
        let fork = json!({ "execution_id": created[0].execution_id });
        assert_eq!(h.refused::<ForkExecution>(fork).await, code);
        let changed = json!({ "kind": "other", "lane": "old", "idempotency_key": "k" });
        assert_eq!(h.refused::<CreateExecution>(changed).await, Code::IdempotencyConflict);
        assert!(written(&h) == before, "a refusal changes nothing");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn lanes_in_use_and_configured_ones_are_listed_by_name() {
    let h = Harness::start().await;
    h.submit(json!({ "lane": "b" })).await;
    h.must::<ConfigureLane>(json!({ "lane": "a", "state": "paused" })).await;
    h.must::<ConfigureLane>(json!({ "lane": "c" })).await;
    let lanes = h.must::<ListLanes>(json!({})).await.items;
    let shown: Vec<_> = lanes.iter().map(|lane| (lane.name.as_str(), lane.state)).collect();
    assert_eq!(shown, [("a", LaneState::Paused), ("b", LaneState::Active), ("c", LaneState::Active)]);
    let first = h.must::<ListLanes>(json!({ "limit": 1 })).await;
    let page = h.must::<ListLanes>(json!({ "limit": 1, "cursor": first.next_cursor })).await;
    assert_eq!((page.items[0].name.as_str(), page.next_cursor.is_some()), ("b", true));
    assert_eq!(h.refused::<ListLanes>(json!({ "cursor": "a" })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_list_has_no_other_lanes() {
    let h = Harness::with(Options { lanes: Some(vec!["only".into()]), ..Options::default() }).await;
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "t", "lane": "x" })).await, Code::LaneNotFound);
    assert_eq!(h.refused::<PauseLane>(json!({ "lane": "x" })).await, Code::LaneNotFound);
    let claim = json!({ "instance_id": "w", "lanes": ["only", "x"] });
    assert_eq!(h.refused::<Claim>(claim).await, Code::LaneNotFound);
    let worker = json!({ "instance_id": "w", "worker_id": "w", "lanes": ["x"], "nonce": "n" });
    assert_eq!(h.refused::<RegisterWorker>(worker).await, Code::LaneNotFound);
    assert_eq!(h.must::<ListLanes>(json!({})).await.items[0].name, "only");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_run_is_shown_as_such_and_is_in_nobodys_way() {
    let h = Harness::start().await;
    let gpu = h.submit(json!({ "required_capabilities": ["gpu"], "priority": 100 })).await;
    let plain = h.submit(json!({})).await;
    assert_eq!(h.claim().await.unwrap().execution_id, plain);
    let view = h.must::<GetExecution>(json!({ "execution_id": gpu })).await;
    assert_eq!(view.state.eligibility_state, EligibilityState::BlockedByRoute);
    assert_eq!(view.state.blocking_reason, BlockingReason::WaitingForCapableWorker);
    let capable = h.claim_with(json!({ "capabilities": ["gpu", "x"], "wait_ms": 0 })).await.unwrap();
    assert_eq!(capable.execution_id, gpu);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn in_a_lane_with_aging_old_work_overtakes_work_of_a_higher_priority() {
    let h = Harness::start().await;
    let before = h.submit(json!({})).await;
    let lane = h.must::<ConfigureLane>(json!({ "lane": "default", "aging_ms": 1_000 })).await;
    assert_eq!(lane.aging_ms, Some(1_000));
    h.pass(1_500).await;
    let old = h.submit(json!({ "priority": 1 })).await;
    h.pass(5_000).await;
    let urgent = h.submit(json!({ "priority": 20 })).await;
    let young = h.submit(json!({ "priority": 5 })).await;
    let mut order = Vec::new();
    while let Some(task) = h.claim_with(json!({ "wait_ms": 0 })).await {
        order.push(task.execution_id);
    }
    // Twenty steps are worth more than the six seconds of the others, five are not.
    assert_eq!(order, [urgent, before, old, young], "{order:?}");
    assert_eq!(h.refused::<ConfigureLane>(json!({ "lane": "default", "aging_ms": 0 })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_only_used_is_removed_by_force() {
    let h = Harness::start().await;
    h.submit(json!({ "lane": "used" })).await;
    assert_eq!(h.refused::<DeleteLane>(json!({ "lane": "used" })).await, Code::InUse);
    h.must::<DeleteLane>(json!({ "lane": "used", "force": true })).await;
    assert_eq!(h.refused::<DeleteLane>(json!({ "lane": "never", "force": true })).await, Code::LaneNotFound);
    h.finish().await;
}
