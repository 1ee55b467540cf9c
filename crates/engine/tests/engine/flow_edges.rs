//! Building flows step by step, repeating requests, replaying members, and the end of a flow's retention.

use crate::support::Harness;
use ff_core::flow::FlowState;
use ff_core::op::add_execution_to_flow::Outcome as Member;
use ff_core::op::apply_dependency_to_child::Outcome as Apply;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::stage_dependency_edge::Outcome as Staged;
use ff_core::op::{
    AddExecutionToFlow, ApplyDependencyToChild, CancelExecution, CloseFlow, Complete, CreateExecution, CreateFlow,
    Fail, GetExecution, GetFlow, GetFlowGraph, ListFlows, ReplayExecution, StageDependencyEdge,
};
use ff_core::{Code, EdgeId, EdgeState, ExecutionId, FlowId, PartitionConfig, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Plan};
use serde_json::{Value, json};

async fn empty_flow(h: &Harness) -> FlowId {
    match h.must::<CreateFlow>(json!({ "kind": "test", "complete": true })).await {
        Created::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    }
}

async fn member(h: &Harness, flow: FlowId, more: Value) -> ExecutionId {
    let mut args = json!({ "flow_id": flow, "policy": { "retry": { "max_retries": 0 } } });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    h.submit(args).await
}

async fn stage(h: &Harness, flow: FlowId, from: ExecutionId, to: ExecutionId) -> EdgeId {
    let args = json!({ "flow_id": flow, "upstream": from, "downstream": to });
    let staged = h.must::<StageDependencyEdge>(args).await;
    let Staged::Staged { edge_id, .. } = staged else { panic!("{staged:?}") };
    edge_id
}

async fn apply(h: &Harness, flow: FlowId, edge: EdgeId) -> Apply {
    h.must::<ApplyDependencyToChild>(json!({ "flow_id": flow, "edge_id": edge })).await
}

async fn run(h: &Harness, id: ExecutionId, well: bool) {
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, id);
    let args = json!({ "execution_id": id, "fence": task.fence });
    if well {
        h.must::<Complete>(args).await;
    } else {
        let args = json!({ "execution_id": id, "fence": task.fence, "reason": "broke" });
        h.must::<Fail>(args).await;
    }
    h.pass(5).await;
}

#[tokio::test(start_paused = true)]
async fn edges_are_staged_and_applied_in_two_steps() {
    let h = Harness::start().await;
    let flow = empty_flow(&h).await;
    let (a, b) = (member(&h, flow, json!({})).await, member(&h, flow, json!({ "priority": 1 })).await);
    let revision = h.must::<GetFlow>(json!({ "flow_id": flow })).await.graph_revision;
    let stale = json!({ "flow_id": flow, "upstream": a, "downstream": b, "expected_graph_revision": revision - 1 });
    assert_eq!(h.refused::<StageDependencyEdge>(stale).await, Code::StaleGraphRevision);
    let edge = stage(&h, flow, a, b).await;
    assert_eq!(edge, stage(&h, flow, a, b).await, "the same again is the same");
    let other = json!({ "flow_id": flow, "upstream": a, "downstream": b, "kind": "soft" });
    assert_eq!(h.refused::<StageDependencyEdge>(other).await, Code::DependencyAlreadyExists);
    let back = json!({ "flow_id": flow, "upstream": b, "downstream": a });
    assert_eq!(h.refused::<StageDependencyEdge>(back).await, Code::CycleDetected);
    let itself = json!({ "flow_id": flow, "upstream": a, "downstream": a });
    assert_eq!(h.refused::<StageDependencyEdge>(itself).await, Code::SelfReferencingEdge);
    let stranger = h.submit(json!({ "lane": "other" })).await;
    let foreign = json!({ "flow_id": flow, "upstream": stranger, "downstream": a });
    assert_eq!(h.refused::<StageDependencyEdge>(foreign).await, Code::ExecutionNotInFlow);
    assert_eq!(h.state(&b).await, PublicState::Waiting, "a staged edge has no effect");
    assert_eq!(apply(&h, flow, edge).await, Apply::Applied { unsatisfied_count: 1 });
    assert_eq!(apply(&h, flow, edge).await, Apply::AlreadyApplied { unsatisfied_count: 1 });
    let other_join = json!({ "flow_id": flow, "edge_id": edge, "join": { "any_of": {} } });
    assert_eq!(h.refused::<ApplyDependencyToChild>(other_join).await, Code::JoinPolicyConflict);
    let unknown = json!({ "flow_id": flow, "edge_id": EdgeId::default() });
    assert_eq!(h.refused::<ApplyDependencyToChild>(unknown).await, Code::EdgeNotFound);
    assert_eq!(h.state(&b).await, PublicState::WaitingChildren);
    run(&h, a, true).await;
    run(&h, b, true).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_from_an_upstream_that_has_ended_takes_effect_at_once() {
    let h = Harness::start().await;
    let flow = empty_flow(&h).await;
    let held = member(&h, flow, json!({ "lane": "other" })).await;
    let good = member(&h, flow, json!({})).await;
    run(&h, good, true).await;
    let bad = member(&h, flow, json!({})).await;
    run(&h, bad, false).await;
    let after_good = member(&h, flow, json!({ "dependencies": [{ "upstream": good }] })).await;
    assert_eq!(h.state(&after_good).await, PublicState::Waiting);
    let both = json!([{ "upstream": good }, { "upstream": bad }]);
    let after_both = member(&h, flow, json!({ "dependencies": both })).await;
    assert_eq!(h.state(&after_both).await, PublicState::Skipped);
    let any = json!({ "any_of": { "on_satisfied": "cancel_remaining" } });
    let upstreams = json!([{ "upstream": good }, { "upstream": held }]);
    let quick = member(&h, flow, json!({ "dependencies": upstreams, "join": any })).await;
    assert_eq!((h.state(&quick).await, h.state(&held).await), (PublicState::Waiting, PublicState::Cancelled));
    let late = member(&h, flow, json!({ "priority": 5 })).await;
    let edge = stage(&h, flow, bad, late).await;
    assert_eq!(apply(&h, flow, edge).await, Apply::Applied { unsatisfied_count: 0 });
    assert_eq!(h.state(&late).await, PublicState::Skipped);
    h.pass(5).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_edge_applied_after_the_join_is_decided_holds_nobody() {
    let h = Harness::start().await;
    let joins = ["let_run", "cancel_remaining"].map(|on| json!({ "any_of": { "on_satisfied": on } }));
    let quorum = json!({ "quorum": { "k": 1, "on_satisfied": "let_run" } });
    for (join, upstream_state) in
        joins.into_iter().zip([PublicState::Waiting, PublicState::Cancelled]).chain([(quorum, PublicState::Waiting)])
    {
        let flow = empty_flow(&h).await;
        let first = member(&h, flow, json!({})).await;
        let late = member(&h, flow, json!({ "lane": "other" })).await;
        let child = member(&h, flow, json!({ "dependencies": [{ "upstream": first }], "join": join })).await;
        run(&h, first, true).await;
        let edge = stage(&h, flow, late, child).await;
        assert_eq!(apply(&h, flow, edge).await, Apply::Applied { unsatisfied_count: 1 });
        assert_eq!(h.state(&child).await, PublicState::Waiting, "{join}");
        assert_eq!(h.state(&late).await, upstream_state, "{join}");
        run(&h, child, true).await;
        if upstream_state == PublicState::Waiting {
            h.must::<CancelExecution>(json!({ "execution_id": late })).await;
            h.pass(5).await;
        }
        assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_reads_as_ended_only_when_it_refuses_members() {
    // No service resolves here, so the end of the last member is not told to the flow.
    let h = Harness::with(Options { services: false, ..Default::default() }).await;
    let flow = empty_flow(&h).await;
    let first = member(&h, flow, json!({})).await;
    run(&h, first, true).await;
    let view = h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert_eq!((view.state, view.ended_at), (FlowState::Running, None));
    assert!(h.must::<ListFlows>(json!({ "state": "completed" })).await.items.is_empty());
    let second = member(&h, flow, json!({})).await;
    let rescuer = h.second().await;
    run(&h, second, true).await;
    let view = h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert!(view.state == FlowState::Completed && view.ended_at.is_some());
    let late = json!({ "kind": "test", "flow_id": flow });
    assert_eq!(h.refused::<CreateExecution>(late).await, Code::FlowAlreadyTerminal);
    rescuer.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_saw_the_last_member_end_sees_the_flow_ended() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let flow = empty_flow(&h).await;
    let last = member(&h, flow, json!({})).await;
    let task = h.claim().await.unwrap();
    trouble.begin(|call| match call {
        Call::Commit { .. } => {
            let pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(10)));
            Plan { before: Some(pause), ..Plan::default() }
        }
        Call::Read { .. } => Plan::default(),
    });
    h.must::<Complete>(json!({ "execution_id": last, "fence": task.fence })).await;
    let (view, graph) =
        tokio::join!(h.must::<GetFlow>(json!({ "flow_id": flow })), h.must::<GetFlowGraph>(json!({ "flow_id": flow })));
    assert_eq!((view.state, graph.flow.state), (FlowState::Completed, FlowState::Completed));
    assert!(view.ended_at.is_some());
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_of_its_own_joins_a_flow_of_its_partition() {
    let h = Harness::with(Options { partitions: Some(PartitionConfig::STANDALONE), ..Default::default() }).await;
    let flow = empty_flow(&h).await;
    let beside = h.submit(json!({ "execution_id": format!("{:04x}-{}", flow.partition, flow.uuid) })).await;
    let add = json!({ "flow_id": flow, "execution_id": beside, "node": "n" });
    assert_eq!(h.must::<AddExecutionToFlow>(add.clone()).await, Member::Added { node_count: 1 });
    assert_eq!(h.must::<AddExecutionToFlow>(add).await, Member::AlreadyMember { node_count: 1 });
    let other = empty_flow(&h).await;
    let elsewhere = ExecutionId { partition: other.partition, uuid: flow.uuid };
    if other.partition != flow.partition {
        let far = json!({ "flow_id": flow, "execution_id": elsewhere });
        assert_eq!(h.refused::<AddExecutionToFlow>(far).await, Code::PartitionMismatch);
    }
    run(&h, beside, true).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_execution_of_another_partition_is_no_member() {
    let partitions = PartitionConfig { flow: 2, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Default::default() }).await;
    let flow = empty_flow(&h).await;
    let member = h.submit(json!({ "flow_id": flow })).await;
    let elsewhere = ExecutionId { partition: 1 - flow.partition, uuid: flow.uuid };
    h.submit(json!({ "execution_id": elsewhere })).await;
    let stage = |from: ExecutionId, to: ExecutionId| json!({ "flow_id": flow, "upstream": from, "downstream": to, "expected_graph_revision": 1 });
    assert_eq!(h.refused::<StageDependencyEdge>(stage(elsewhere, member)).await, Code::ExecutionNotInFlow);
    assert_eq!(h.refused::<StageDependencyEdge>(stage(member, elsewhere)).await, Code::ExecutionNotInFlow);
    let behind = json!({ "kind": "test", "flow_id": flow, "dependencies": [{ "upstream": elsewhere }] });
    assert_eq!(h.refused::<CreateExecution>(behind).await, Code::ExecutionNotInFlow);
    let far = json!({ "flow_id": flow, "execution_id": elsewhere });
    assert_eq!(h.refused::<AddExecutionToFlow>(far).await, Code::PartitionMismatch);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_graph_is_the_same_and_another_one_a_conflict() {
    let h = Harness::start().await;
    let id = FlowId::in_partition(ff_core::Partition::flow(0), &ff_core::Mint { now_ms: 5, random: [3; 10] });
    let request = |kind: &str| {
        let nodes = json!([
            { "name": "a", "request": { "kind": kind } }, { "name": "b", "request": { "kind": "test" } }
        ]);
        json!({ "flow_id": id, "nodes": nodes, "edges": [{ "from": "a", "to": "b" }] })
    };
    let Created::Created { executions, .. } = h.must::<CreateFlow>(request("test")).await else { panic!() };
    let again = h.must::<CreateFlow>(request("test")).await;
    let Created::AlreadyExists { executions: same, .. } = again else { panic!("{again:?}") };
    assert_eq!(executions, same);
    assert_eq!(h.refused::<CreateFlow>(request("else")).await, Code::IdempotencyConflict);
    let keyed = json!({ "idempotency_key": "k", "nodes": [{ "name": "a", "request": { "kind": "test" } }] });
    let Created::Created { flow_id, .. } = h.must::<CreateFlow>(keyed.clone()).await else { panic!() };
    let Created::AlreadyExists { flow_id: same, .. } = h.must::<CreateFlow>(keyed).await else { panic!() };
    assert_eq!(flow_id, same);
    let mut cyclic = request("test");
    cyclic["flow_id"] = Value::Null;
    cyclic["edges"] = json!([{ "from": "a", "to": "b" }, { "from": "b", "to": "a" }]);
    assert_eq!(h.refused::<CreateFlow>(cyclic).await, Code::CycleDetected);
    assert_eq!(h.must::<GetFlowGraph>(json!({ "flow_id": id })).await.edges.len(), 1);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_names_one_member_also_when_it_lives_in_another_partition() {
    let h = Harness::with(Options { partitions: Some(PartitionConfig::STANDALONE), ..Default::default() }).await;
    for number in 0..8 {
        let flow = empty_flow(&h).await;
        let request = |input| {
            let key = format!("k{number}");
            json!({ "kind": "test", "flow_id": flow, "idempotency_key": key, "input": input })
        };
        let first = h.must::<CreateExecution>(request(1)).await;
        assert_eq!((first.duplicate, first.execution_id.partition), (false, flow.partition));
        let again = h.must::<CreateExecution>(request(1)).await;
        assert_eq!((again.execution_id, again.duplicate), (first.execution_id, true));
        assert_eq!(h.refused::<CreateExecution>(request(2)).await, Code::IdempotencyConflict);
        assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.member_count, 1);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_replayed_member_waits_again_for_what_had_failed() {
    let h = Harness::start().await;
    let flow = empty_flow(&h).await;
    let a = member(&h, flow, json!({})).await;
    let b = member(&h, flow, json!({ "dependencies": [{ "upstream": a }] })).await;
    run(&h, a, false).await;
    assert_eq!(h.state(&b).await, PublicState::Skipped);
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Failed);
    let replayed = h.must::<ReplayExecution>(json!({ "execution_id": b })).await;
    assert_eq!((replayed.public_state, replayed.attempt.0), (PublicState::WaitingChildren, 0));
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Blocked);
    let command = json!({ "execution_id": a, "command_id": "01890000-0000-7000-8000-000000000001" });
    let first = h.must::<ReplayExecution>(command.clone()).await;
    assert_eq!((first.replay_count, first.attempt.0), (1, 1));
    assert_eq!(h.must::<ReplayExecution>(command).await, first, "the same command is the same replay");
    run(&h, a, true).await;
    run(&h, b, true).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    let edges = h.must::<GetFlowGraph>(json!({ "flow_id": flow })).await.edges;
    assert_eq!(edges[0].state, EdgeState::Satisfied);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_replayed_after_its_upstream_succeeded_runs_at_once() {
    let h = Harness::start().await;
    let flow = empty_flow(&h).await;
    let a = member(&h, flow, json!({})).await;
    let b = member(&h, flow, json!({ "dependencies": [{ "upstream": a }] })).await;
    run(&h, a, false).await;
    h.must::<ReplayExecution>(json!({ "execution_id": a })).await;
    run(&h, a, true).await;
    assert_eq!(h.state(&b).await, PublicState::Skipped, "its edge was resolved once");
    let replayed = h.must::<ReplayExecution>(json!({ "execution_id": b })).await;
    assert_eq!(replayed.public_state, PublicState::Waiting);
    run(&h, b, true).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_eleventh_replay_is_refused() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    assert_eq!(h.refused::<ReplayExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotTerminal);
    run(&h, id, true).await;
    for _ in 0..10 {
        h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
        h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    }
    assert_eq!(h.refused::<ReplayExecution>(json!({ "execution_id": id })).await, Code::MaxReplaysExhausted);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn flows_are_listed_newest_first_in_pages() {
    let h = Harness::with(Options { partitions: Some(PartitionConfig::STANDALONE), ..Default::default() }).await;
    let mut made = Vec::new();
    for _ in 0..25 {
        made.push(empty_flow(&h).await);
        h.pass(1).await;
    }
    made.reverse();
    let (mut seen, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = h.must::<ListFlows>(json!({ "limit": 10, "cursor": cursor, "state": "open" })).await;
        seen.extend(page.items.iter().map(|flow| flow.flow_id));
        match page.next_cursor {
            Some(next) => cursor = json!(next),
            None => break,
        }
    }
    assert_eq!(seen, made);
    assert!(h.must::<ListFlows>(json!({ "state": "failed" })).await.items.is_empty());
    assert_eq!(h.refused::<ListFlows>(json!({ "cursor": "nonsense" })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_goes_with_all_its_members_after_its_retention() {
    let h = Harness::with(Options { retention_ms: 60_000, ..Default::default() }).await;
    let flow = empty_flow(&h).await;
    let first = member(&h, flow, json!({})).await;
    let mut last = first;
    for _ in 0..40 {
        last = member(&h, flow, json!({ "dependencies": [{ "upstream": first }] })).await;
    }
    run(&h, first, false).await;
    h.pass(30_000).await;
    assert_eq!(h.state(&last).await, PublicState::Skipped);
    h.pass(31_000).await;
    assert_eq!(h.refused::<GetFlow>(json!({ "flow_id": flow })).await, Code::FlowNotFound);
    for id in [first, last] {
        assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": id })).await, Code::ExecutionNotFound);
    }
    let left = h.store.inspect(|contents| {
        let flows = contents.partitions().filter(|(partition, _)| partition.family == ff_core::Family::Flow);
        flows.map(|(_, contents)| contents.documents().count() + contents.entries().count()).sum::<usize>()
    });
    assert_eq!(left, 0, "nothing is left behind");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quorum_that_is_built_edge_by_edge_waits_for_its_other_edges() {
    for well in [true, false] {
        let h = Harness::start().await;
        let flow = match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
            Created::Created { flow_id, .. } => flow_id,
            other => panic!("{other:?}"),
        };
        let upstreams = [9, 8, 7].map(|priority| member(&h, flow, json!({ "priority": priority })));
        let upstreams = futures_util::future::join_all(upstreams).await;
        let child = member(&h, flow, json!({})).await;
        let mut edges = Vec::new();
        for upstream in &upstreams {
            edges.push(stage(&h, flow, *upstream, child).await);
        }
        let first = json!({ "flow_id": flow, "edge_id": edges[0], "join": { "quorum": { "k": 2, "on_satisfied": "let_run" } } });
        h.must::<ApplyDependencyToChild>(first).await;
        run(&h, upstreams[0], well).await;
        assert_eq!(h.state(&child).await, PublicState::WaitingChildren, "two more edges are to come");
        apply(&h, flow, edges[1]).await;
        apply(&h, flow, edges[2]).await;
        run(&h, upstreams[1], true).await;
        if !well {
            run(&h, upstreams[2], true).await;
        }
        assert_eq!(h.state(&child).await, PublicState::Waiting);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_is_closed_skips_members_whose_quorum_has_too_few_edges() {
    let h = Harness::start().await;
    let flow = match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
        Created::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    };
    let done = member(&h, flow, json!({})).await;
    run(&h, done, true).await;
    let quorum = json!({ "dependencies": [{ "upstream": done }], "join": { "quorum": { "k": 2 } } });
    let child = member(&h, flow, quorum).await;
    assert_eq!(h.state(&child).await, PublicState::WaitingChildren);
    let closed = h.must::<CloseFlow>(json!({ "flow_id": flow })).await;
    assert!(closed.changed);
    assert_eq!(h.state(&child).await, PublicState::Skipped);
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Failed, "it has ended");
    h.finish().await;
}
