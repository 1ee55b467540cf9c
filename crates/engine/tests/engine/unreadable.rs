//! Documents that this version cannot decode: they are left out, and fail nothing but themselves.

use std::sync::atomic::Ordering;

use crate::support::Harness;
use ff_core::execution::Execution;
use ff_core::op::suspend::Outcome as Suspended;
use ff_core::op::view::Task;
use ff_core::op::{
    CancelExecution, Complete, CreatePendingWaitpoint, DeliverSignal, GetDeployment, GetFlowGraph,
    ListPendingWaitpoints, ListResumeSignals, ListUpstreams, RenewLeases, Suspend, WaitChildren,
};
use ff_core::{ExecutionId, Key, Partition, PublicState, index};
use ff_store::{Batch, Guard, Put, Store};
use serde_json::{Value, json};

/// Damages documents behind the engine's back: those whose key is wanted.
async fn damage(h: &Harness, wanted: impl Fn(&Key) -> bool) -> usize {
    let found: Vec<_> = h.store.inspect(|contents| {
        let partition = contents.partition(Partition::flow(0)).expect("something was written there");
        partition.documents().filter(|(key, _)| wanted(key)).map(|(key, raw)| (key.clone(), raw.clone())).collect()
    });
    for (key, raw) in &found {
        let mut batch = Batch::new(ff_core::CommandId::mint(&ff_core::Mint { now_ms: 1, random: [7; 10] }));
        batch.guards.push(Guard::Version(key.clone(), raw.version));
        let body = bytes::Bytes::from_static(b"\x02torn");
        batch.puts.push(Put { key: key.clone(), body, fence: raw.fence, expires_at: None });
        let store: &dyn Store = h.store.as_ref();
        let outcomes = store.commit(Partition::flow(0), [batch].into()).await.unwrap();
        assert!(outcomes[0].clone().applied().is_some());
    }
    found.len()
}

async fn damage_first(h: &Harness, kind: u8) {
    let first = h.store.inspect(|contents| {
        let partition = contents.partition(Partition::flow(0)).expect("something was written there");
        partition.documents().map(|(key, _)| key.clone()).find(|key| key.kind() == kind).expect("there is one")
    });
    assert_eq!(damage(h, |key| *key == first).await, 1);
}

fn of_execution(id: &ExecutionId) -> impl Fn(&Key) -> bool {
    let key = Execution::key_of(id);
    move |found| *found == key
}

async fn claimed(h: &Harness) -> Task {
    h.submit(json!({})).await;
    h.claim().await.expect("what was submitted can be claimed")
}

fn held(task: &Task, more: Value) -> Value {
    let mut args = json!({ "execution_id": task.execution_id, "fence": task.fence });
    args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    args
}

fn passed_over(h: &Harness) -> u64 {
    h.engine.metrics().undecodable.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_cannot_be_decoded_does_not_keep_its_task_from_being_claimed() {
    let h = Harness::start().await;
    let task = claimed(&h).await;
    let condition = json!({ "reason": "signal", "condition": { "all": [{ "name": "a" }, { "name": "b" }] } });
    let suspended = h.must::<Suspend>(held(&task, condition)).await;
    let Suspended::Suspended { waitpoint_id, token, .. } = suspended else { panic!("{suspended:?}") };
    for name in ["a", "b"] {
        let signal =
            json!({ "execution_id": task.execution_id, "waitpoint_id": waitpoint_id, "token": token.0, "name": name });
        h.must::<DeliverSignal>(signal).await;
    }
    damage_first(&h, index::kind::SIGNAL).await;
    let resumed = h.claim().await.expect("it is handed out all the same");
    assert_eq!((resumed.execution_id, resumed.resume_signals.len()), (task.execution_id, 1));
    let listed = h.must::<ListResumeSignals>(json!({ "execution_id": task.execution_id })).await;
    assert_eq!(listed.items, resumed.resume_signals);
    assert!(passed_over(&h) >= 2);
    let shown = h.must::<GetDeployment>(json!({})).await;
    assert_eq!(
        (shown.undecodable, shown.undecodable_entries.len()),
        (passed_over(&h), 1),
        "one, however often it is met"
    );
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_waitpoint_that_cannot_be_decoded_is_left_out_and_lets_its_execution_end() {
    let h = Harness::start().await;
    h.submit(json!({ "policy": { "retention_ms": 60_000 } })).await;
    let task = h.claim().await.expect("what was submitted can be claimed");
    for key in ["one", "two"] {
        h.must::<CreatePendingWaitpoint>(held(&task, json!({ "waitpoint_key": key }))).await;
    }
    damage_first(&h, index::kind::WAITPOINT).await;
    let listed = h.must::<ListPendingWaitpoints>(json!({ "execution_id": task.execution_id })).await;
    assert_eq!(listed.items.len(), 1, "{listed:?}");
    h.must::<Suspend>(held(&task, json!({ "reason": "signal", "condition": { "any": [] } }))).await;
    damage(&h, |key| key.kind() == index::kind::WAITPOINT).await;
    h.must::<CancelExecution>(json!({ "execution_id": task.execution_id })).await;
    assert_eq!(h.state(&task.execution_id).await, PublicState::Cancelled);
    // Retention takes it away with everything it had.
    h.pass(120_000).await;
    assert!(h.documents().iter().all(|(key, _)| !key.contains(&task.execution_id.uuid.to_string())));
    let left = h.store.inspect(|contents| {
        let partition = contents.partition(Partition::flow(0)).expect("something was written there");
        partition.documents().filter(|(key, _)| key.kind() == index::kind::WAITPOINT).count()
    });
    assert_eq!(left, 0, "nothing stays behind");
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_or_a_child_that_cannot_be_decoded_is_left_out_of_upstreams_and_graph() {
    let h = Harness::start().await;
    let task = claimed(&h).await;
    let parent = json!({ "execution_id": task.execution_id, "fence": task.fence });
    let mut children = Vec::new();
    for _ in 0..4 {
        children.push(h.submit(json!({ "parent": parent, "lane": "children" })).await);
    }
    damage(&h, of_execution(&children[0])).await;
    let upstreams = h.must::<ListUpstreams>(json!({ "execution_id": task.execution_id })).await;
    assert_eq!(upstreams.items.len(), 3, "{upstreams:?}");
    damage_first(&h, index::kind::EDGE).await;
    let upstreams = h.must::<ListUpstreams>(json!({ "execution_id": task.execution_id })).await;
    assert!((2..=3).contains(&upstreams.items.len()), "{upstreams:?}");
    let flow_id = h.must::<ff_core::op::GetExecution>(json!({ "execution_id": task.execution_id })).await.flow_id;
    let graph = h.must::<GetFlowGraph>(json!({ "flow_id": flow_id })).await;
    assert_eq!((graph.nodes.len(), graph.edges.len() < 4), (4, true), "the parent and three children");
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_cannot_be_decoded_does_not_keep_the_others_from_being_resolved() {
    let h = Harness::start().await;
    let task = claimed(&h).await;
    let parent = json!({ "execution_id": task.execution_id, "fence": task.fence });
    let child = h.submit(json!({ "parent": parent, "lane": "children" })).await;
    h.must::<WaitChildren>(held(&task, json!({}))).await;
    // Another family in the same partition, whose edge is torn.
    let other = claimed(&h).await;
    let parent = json!({ "execution_id": other.execution_id, "fence": other.fence });
    let torn = h.submit(json!({ "parent": parent, "lane": "torn" })).await;
    let edges_before: Vec<Key> = h.store.inspect(|contents| {
        let partition = contents.partition(Partition::flow(0)).expect("something was written there");
        let index = index::edges_from(torn.uuid);
        partition.entries().filter(|(name, ..)| **name == index).map(|(_, _, key)| key.clone()).collect()
    });
    damage(&h, |key| edges_before.contains(key)).await;
    let torn = h.claim_with(json!({ "lanes": ["torn"] })).await.expect("the child of the torn edge");
    let whole = h.claim_with(json!({ "lanes": ["children"] })).await.expect("the other child");
    assert_eq!(whole.execution_id, child);
    h.must::<Complete>(held(&torn, json!({ "result": 1 }))).await;
    h.must::<Complete>(held(&whole, json!({ "result": 1 }))).await;
    let back = h.claim().await.expect("the parent of the whole edge comes back");
    assert_eq!(back.execution_id, task.execution_id);
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_that_cannot_be_decoded_costs_the_other_leases_nothing() {
    let h = Harness::start().await;
    let (one, other) = (claimed(&h).await, claimed(&h).await);
    damage(&h, of_execution(&one.execution_id)).await;
    let fresh = h.second().await;
    let leases: Vec<Value> = [&one, &other].map(|task| held(task, json!({}))).to_vec();
    let renewed = fresh.must::<RenewLeases>(json!({ "leases": leases })).await;
    let outcomes: Vec<Value> = renewed.results.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    assert_eq!(
        (&outcomes[0]["outcome"], &outcomes[1]["outcome"]),
        (&"failed".into(), &"renewed".into()),
        "{outcomes:?}"
    );
    fresh.engine.close().await;
    h.engine.close().await;
}
