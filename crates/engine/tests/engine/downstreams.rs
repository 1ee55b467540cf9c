//! The end of an execution told to its downstreams in its own commit, and what happens when that cannot be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::flow::FlowState;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::view::Task;
use ff_core::op::{
    ApplyDependencyToChild, CancelFlow, ChangePriority, Complete, CreateExecution, CreateFlow, Exchange, GetFlow,
    StageDependencyEdge, apply_dependency_to_child, stage_dependency_edge,
};
use ff_core::{ExecutionId, Family, FlowId, PublicState};
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

use crate::support::{Harness, Trouble};

/// A flow of nodes that are named in its edges, `"a>b"`.
async fn graph(h: &Harness, edges: &[&str]) -> (FlowId, BTreeMap<String, ExecutionId>) {
    let ends: Vec<(&str, &str)> = edges.iter().map(|edge| edge.split_once('>').unwrap()).collect();
    let names: std::collections::BTreeSet<&str> = ends.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let nodes: Vec<Value> = names.iter().map(|name| json!({ "name": name, "request": { "kind": "test" } })).collect();
    let edges: Vec<Value> = ends.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
    match h.must::<CreateFlow>(json!({ "nodes": nodes, "edges": edges })).await {
        Created::Created { flow_id, executions, .. } => (flow_id, executions),
        other => panic!("{other:?}"),
    }
}

fn completion(task: &Task) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence, "result": 1 })
}

/// Counts reads and commits of flow partitions from now on.
fn count(trouble: &Trouble) -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let counted = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (reads, commits) = counted.clone();
    trouble.begin(move |call| {
        match call {
            Call::Read { partition, .. } if partition.family == Family::Flow => reads.fetch_add(1, Ordering::SeqCst),
            Call::Commit { partition, .. } if partition.family == Family::Flow => {
                commits.fetch_add(1, Ordering::SeqCst)
            }
            _ => 0,
        };
        Plan::default()
    });
    counted
}

async fn claim(h: &Harness) -> Task {
    h.claim_with(json!({ "wait_ms": 5_000 })).await.expect("something is claimable")
}

async fn drain(h: &Harness, count: usize) {
    for _ in 0..count {
        let task = claim(h).await;
        h.must::<Complete>(completion(&task)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hop_of_a_chain_is_one_commit_for_its_end_and_one_for_the_next_claim() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let (flow, nodes) = graph(&h, &["a>b", "b>c", "c>d"]).await;
    let mut task = claim(&h).await;
    let (reads, commits) = count(&trouble);
    for next in ["b", "c", "d"] {
        h.must::<Complete>(completion(&task)).await;
        assert_eq!(h.state(&nodes[next]).await, PublicState::Waiting, "{next} is claimable when the call returns");
        // Asking for the state was the only read.
        assert_eq!((reads.swap(0, Ordering::SeqCst), commits.swap(0, Ordering::SeqCst)), (1, 1), "{next}");
        task = claim(&h).await;
        assert_eq!(task.execution_id, nodes[next]);
        assert_eq!((reads.swap(0, Ordering::SeqCst), commits.swap(0, Ordering::SeqCst)), (0, 1), "{next}");
    }
    trouble.end();
    h.must::<Complete>(completion(&task)).await;
    let view = h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert_eq!(view.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_hop_of_a_chain_is_one_exchange() {
    let h = Harness::start().await;
    let (_, nodes) = graph(&h, &["a>b", "b>c"]).await;
    let mut task = claim(&h).await;
    for next in ["b", "c"] {
        let args = json!({
            "instance_id": "w-1", "end": [{ "complete": completion(&task) }], "claim": { "lanes": ["default"] }
        });
        let answer = h.must::<Exchange>(args).await;
        task = answer.claim.expect("it was asked for").tasks.pop().expect("the next is claimable by then");
        assert_eq!(task.execution_id, nodes[next]);
    }
    h.must::<Complete>(completion(&task)).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn several_that_wait_for_one_are_told_together_and_a_join_by_the_resolver() {
    let h = Harness::start().await;
    let (flow, nodes) = graph(&h, &["a>b", "a>c", "a>d", "b>e", "c>e", "d>f"]).await;
    drain(&h, 1).await;
    for name in ["b", "c", "d"] {
        assert_eq!(h.state(&nodes[name]).await, PublicState::Waiting, "{name}");
    }
    drain(&h, 5).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_downstream_that_changed_meanwhile_is_told_all_the_same() {
    let h = Harness::start().await;
    let (flow, nodes) = graph(&h, &["a>b"]).await;
    let task = claim(&h).await;
    h.must::<ChangePriority>(json!({ "execution_id": nodes["b"], "priority": 7 })).await;
    h.must::<Complete>(completion(&task)).await;
    let task = claim(&h).await;
    assert_eq!(task.execution_id, nodes["b"]);
    h.must::<Complete>(completion(&task)).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_was_added_meanwhile_is_not_forgotten() {
    let h = Harness::start().await;
    let (flow, nodes) = graph(&h, &["a>b"]).await;
    let task = claim(&h).await;
    let late = h
        .must::<CreateExecution>(json!({
            "kind": "test", "flow_id": flow, "dependencies": [{ "upstream": nodes["a"] }]
        }))
        .await
        .execution_id;
    h.must::<Complete>(completion(&task)).await;
    let mut claimed = vec![claim(&h).await.execution_id, claim(&h).await.execution_id];
    claimed.sort_unstable();
    let mut expected = vec![nodes["b"], late];
    expected.sort_unstable();
    assert_eq!(claimed, expected);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_was_staged_before_and_applied_meanwhile_is_not_forgotten() {
    let h = Harness::start().await;
    let (flow, nodes) = graph(&h, &["a>b", "c>d"]).await;
    let first = claim(&h).await;
    let args = json!({ "flow_id": flow, "upstream": nodes["a"], "downstream": nodes["d"] });
    let staged = h.must::<StageDependencyEdge>(args).await;
    let stage_dependency_edge::Outcome::Staged { edge_id, graph_revision } = staged else { panic!("{staged:?}") };
    let args = json!({ "flow_id": flow, "edge_id": edge_id, "expected_graph_revision": graph_revision });
    let applied = h.must::<ApplyDependencyToChild>(args).await;
    assert_eq!(applied, apply_dependency_to_child::Outcome::Applied { unsatisfied_count: 2 });
    h.must::<Complete>(completion(&first)).await;
    drain(&h, 3).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_in_a_flow_that_was_cancelled_meanwhile() {
    let h = Harness::start().await;
    let (flow, nodes) = graph(&h, &["a>b"]).await;
    let task = claim(&h).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow, "policy": "flow_only" })).await;
    h.must::<Complete>(completion(&task)).await;
    assert!(h.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "{:?}", h.state(&nodes["b"]).await);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_ending_whose_reply_is_lost_tells_its_downstream_once() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let (_, nodes) = graph(&h, &["a>b"]).await;
    let task = claim(&h).await;
    let left = AtomicUsize::new(1);
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. }
            if partition.family == Family::Flow
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() =>
        {
            Fault::LostReply.into()
        }
        _ => Plan::default(),
    });
    h.must::<Complete>(completion(&task)).await;
    trouble.end();
    let next = claim(&h).await;
    assert_eq!((next.execution_id, next.fence.epoch.0), (nodes["b"], 1));
    h.must::<Complete>(completion(&next)).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_graph_that_another_engine_created_is_left_to_the_resolver() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let (flow, nodes) = graph(&h, &["a>b", "b>c"]).await;
    let other = h.second().await;
    let task = claim(&other).await;
    let (reads, commits) = count(&trouble);
    other.must::<Complete>(completion(&task)).await;
    let task = claim(&other).await;
    assert_eq!(task.execution_id, nodes["b"]);
    let (reads, commits) = (reads.load(Ordering::SeqCst), commits.load(Ordering::SeqCst));
    println!("{reads} reads and {commits} commits for one hop");
    assert!(reads >= 2 && commits >= 3, "{reads} reads and {commits} commits for one hop");
    trouble.end();
    other.must::<Complete>(completion(&task)).await;
    drain(&other, 1).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    other.engine.close().await;
    h.finish().await;
}
