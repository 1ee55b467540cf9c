//! Claims whose callers go away, and queues whose heads cannot be taken.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Harness;
use ff_core::lease::ClaimKind;
use ff_core::op::{CancelFlow, Claim, Complete, CreateExecutions, CreateFlow};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_claim_whose_caller_went_away_takes_nothing() {
    let h = Harness::start().await;
    for wait_ms in [0, 1, 5, 50] {
        let args = json!({ "instance_id": "gone", "lanes": ["default"], "wait_ms": 10_000 });
        let claim = h.call::<Claim>(args);
        // The caller's patience ends while the claim waits.
        let left = tokio::time::timeout(Duration::from_millis(wait_ms), claim).await;
        assert!(left.is_err(), "there was nothing to claim");
        let id = h.submit(json!({})).await;
        let task = h.claim().await.unwrap();
        assert_eq!((task.execution_id, task.claim_kind), (id, ClaimKind::Initial));
        h.must::<ff_core::op::Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn members_of_a_cancelled_flow_at_the_head_of_a_queue_block_nobody() {
    let h = Harness::start().await;
    let nodes: Vec<_> = (0..200)
        .map(|number| json!({ "name": format!("n{number}"), "request": { "kind": "test", "priority": 9 } }))
        .collect();
    let flow = h.must::<CreateFlow>(json!({ "nodes": nodes })).await;
    let ff_core::op::create_flow::Outcome::Created { flow_id, .. } = flow else { panic!("{flow:?}") };
    let executions: Vec<_> = (0..100).map(|_| json!({ "kind": "test" })).collect();
    h.must::<CreateExecutions>(json!({ "executions": executions })).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow_id, "policy": "cancel_all" })).await;
    let args = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 10_000, "max_tasks": 100 });
    let mut taken = 0;
    while taken < 100 {
        let tasks = h.must::<Claim>(args.clone()).await.tasks;
        assert!(!tasks.is_empty() && tasks.iter().all(|task| task.flow_id.is_none()), "{} tasks", tasks.len());
        taken += tasks.len();
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_largest_graph_fits_one_call() {
    let h = Harness::start().await;
    let nodes: Vec<_> =
        (0..1_000).map(|number| json!({ "name": format!("n{number}"), "request": { "kind": "test" } })).collect();
    // Five edges from each node to the ones after it, as far as there are any.
    let mut edges = Vec::new();
    for from in 0..1_000 {
        for to in from + 1..(from + 6).min(1_000) {
            edges.push(json!({ "from": format!("n{from}"), "to": format!("n{to}") }));
        }
    }
    let flow = h.must::<CreateFlow>(json!({ "nodes": nodes, "edges": edges })).await;
    let ff_core::op::create_flow::Outcome::Created { executions, .. } = flow else { panic!("{flow:?}") };
    assert_eq!(executions.len(), 1_000);
    let task = h.claim().await.unwrap();
    assert_eq!(task.node.as_deref(), Some("n0"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_is_found_however_many_queues_are_listed_before_its_own() {
    let options = || Options { chunk_max: 3, ..Options::default() };
    let h = Harness::with(options()).await;
    let mut submitted = Vec::new();
    for number in 0..40 {
        let lane = format!("lane-{number:02}");
        submitted.push((h.submit(json!({ "lane": lane })).await, lane));
    }
    // It heard none of the hints, so it knows only what the store lists, page by page.
    let engine = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), options()).await.unwrap();
    let late = Harness { engine, store: h.store.clone(), caller: Caller::system() };
    for (id, lane) in submitted.into_iter().rev() {
        let task = late.claim_with(json!({ "lanes": [lane] })).await.expect("its queue is listed");
        assert_eq!(task.execution_id, id);
        late.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    }
    late.engine.close().await;
    h.finish().await;
}
