//! Flows: graphs, joins, children, cancellation, replay and retention.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Harness;
use ff_core::flow::{CancelFlowPolicy, CancelFlowResult, FlowState};
use ff_core::lease::ClaimKind;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::view::Task;
use ff_core::op::{
    CancelFlow, Complete, ContinueAsNew, CreateBudget, CreateExecution, CreateExecutions, CreateFlow, Fail,
    GetExecution, GetFlow, ListFlows, ListUpstreams, ReplayExecution, WaitChildren,
};
use ff_core::{BlockingReason, Code, EdgeRole, EdgeState, ExecutionId, FlowId, PublicState};
use serde_json::{Value, json};

/// A flow made of named nodes and edges, `"a>c"`.
struct Graph {
    flow: FlowId,
    nodes: BTreeMap<String, ExecutionId>,
}

impl Graph {
    fn id(&self, node: &str) -> ExecutionId {
        self.nodes[node]
    }
}

fn graph_request(nodes: &[&str], edges: &[&str], join: &Value) -> Value {
    let no_retries = json!({ "retry": { "max_retries": 0 } });
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|name| {
            let mut node = json!({ "name": name, "request": { "kind": "test", "policy": no_retries } });
            if let Some(policy) = join.get(name) {
                node["join"] = policy.clone();
            }
            node
        })
        .collect();
    let edges: Vec<Value> = edges
        .iter()
        .map(|edge| {
            let (from, to) = edge.split_once('>').unwrap();
            json!({ "from": from, "to": to })
        })
        .collect();
    json!({ "kind": "graph", "nodes": nodes, "edges": edges })
}

async fn create(h: &Harness, request: Value) -> Graph {
    match h.must::<CreateFlow>(request).await {
        Created::Created { flow_id, executions, .. } => Graph { flow: flow_id, nodes: executions },
        other => panic!("{other:?}"),
    }
}

async fn graph(h: &Harness, nodes: &[&str], edges: &[&str]) -> Graph {
    create(h, graph_request(nodes, edges, &json!({}))).await
}

async fn claim_node(h: &Harness, node: &str) -> Task {
    let task = h.claim().await.unwrap_or_else(|| panic!("{node} is not to be had"));
    assert_eq!(task.node.as_deref(), Some(node));
    task
}

async fn complete(h: &Harness, task: &Task) {
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

async fn fail(h: &Harness, task: &Task) {
    h.must::<Fail>(json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" })).await;
}

/// Lets everything happen that needs no time to pass.
async fn quiet(h: &Harness) {
    h.pass(5).await;
}

async fn states(h: &Harness, graph: &Graph, nodes: &str) -> String {
    let mut all = Vec::new();
    for node in nodes.split(' ') {
        all.push(h.state(&graph.id(node)).await.as_str());
    }
    all.join(" ")
}

async fn flow_state(h: &Harness, graph: &Graph) -> FlowState {
    h.must::<GetFlow>(json!({ "flow_id": graph.flow })).await.state
}

#[tokio::test(start_paused = true)]
async fn a_child_starts_when_all_its_upstreams_have_succeeded() {
    let h = Harness::start().await;
    let g = graph(&h, &["a", "b", "c"], &["a>c", "b>c"]).await;
    let (one, two) = (h.claim().await.unwrap(), h.claim().await.unwrap());
    assert_eq!(states(&h, &g, "a b c").await, "active active waiting_children");
    complete(&h, &one).await;
    quiet(&h).await;
    assert_eq!(h.state(&g.id("c")).await, PublicState::WaitingChildren);
    complete(&h, &two).await;
    let last = claim_node(&h, "c").await;
    assert_eq!(flow_state(&h, &g).await, FlowState::Running);
    complete(&h, &last).await;
    quiet(&h).await;
    assert_eq!(flow_state(&h, &g).await, FlowState::Completed);
    let view = h.must::<GetFlow>(json!({ "flow_id": g.flow })).await;
    assert_eq!((view.member_count, view.counts.of(PublicState::Completed)), (3, 3));
    assert!(view.ended_at.is_some());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_skips_everything_downstream_at_once() {
    let h = Harness::start().await;
    let g = graph(&h, &["a", "b", "c", "d"], &["a>c", "b>c", "c>d"]).await;
    let one = h.claim().await.unwrap();
    fail(&h, &one).await;
    quiet(&h).await;
    assert_eq!(states(&h, &g, "c d").await, "skipped skipped");
    assert_eq!(flow_state(&h, &g).await, FlowState::Running);
    let two = h.claim().await.unwrap();
    complete(&h, &two).await;
    quiet(&h).await;
    assert_eq!(flow_state(&h, &g).await, FlowState::Failed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quorum_starts_its_child_and_may_cancel_the_rest() {
    for (on_satisfied, third) in [("let_run", PublicState::Waiting), ("cancel_remaining", PublicState::Cancelled)] {
        let h = Harness::start().await;
        let join = json!({ "z": { "quorum": { "k": 2, "on_satisfied": on_satisfied } } });
        let g = create(&h, graph_request(&["a", "b", "c", "z"], &["a>z", "b>z", "c>z"], &join)).await;
        let mut left: std::collections::BTreeSet<_> = ["a", "b", "c"].into_iter().map(|node| g.id(node)).collect();
        for _ in 0..2 {
            let task = h.claim().await.unwrap();
            left.remove(&task.execution_id);
            complete(&h, &task).await;
            quiet(&h).await;
        }
        let rest = left.pop_first().unwrap();
        assert_eq!((h.state(&g.id("z")).await, h.state(&rest).await), (PublicState::Waiting, third));
        if third == PublicState::Cancelled {
            let view = h.must::<GetExecution>(json!({ "execution_id": rest })).await;
            assert_eq!(view.cancellation.unwrap().reason.as_deref(), Some("sibling_quorum_satisfied"));
        }
        while let Some(task) = h.claim_with(json!({ "wait_ms": 10 })).await {
            complete(&h, &task).await;
        }
        quiet(&h).await;
        assert_eq!(flow_state(&h, &g).await, FlowState::Completed);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_quorum_is_impossible_when_too_many_failed() {
    let h = Harness::start().await;
    let join = json!({ "z": { "quorum": { "k": 2, "on_satisfied": "cancel_remaining" } } });
    let g = create(&h, graph_request(&["a", "b", "c", "z"], &["a>z", "b>z", "c>z"], &join)).await;
    let tasks = [h.claim().await.unwrap(), h.claim().await.unwrap(), h.claim().await.unwrap()];
    fail(&h, &tasks[0]).await;
    quiet(&h).await;
    assert_eq!(h.state(&g.id("z")).await, PublicState::WaitingChildren);
    fail(&h, &tasks[1]).await;
    quiet(&h).await;
    assert_eq!(h.state(&g.id("z")).await, PublicState::Skipped);
    let view = h.must::<GetExecution>(json!({ "execution_id": tasks[2].execution_id })).await;
    assert_eq!(view.cancellation.unwrap().reason.as_deref(), Some("sibling_quorum_impossible"));
    assert_eq!(flow_state(&h, &g).await, FlowState::Failed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_reads_the_results_of_its_upstreams() {
    let h = Harness::start().await;
    let mut request = graph_request(&["draft", "edit"], &["draft>edit"], &json!({}));
    request["edges"][0]["data_ref"] = json!("text");
    let g = create(&h, request).await;
    let task = claim_node(&h, "draft").await;
    let result = json!({ "execution_id": task.execution_id, "fence": task.fence, "result_base64": "AP8=" });
    h.must::<Complete>(result).await;
    let edit = claim_node(&h, "edit").await;
    let asked = json!({ "execution_id": edit.execution_id, "results": true, "node": "draft" });
    let upstreams = h.must::<ListUpstreams>(asked).await;
    let [upstream] = &upstreams.items[..] else { panic!("{upstreams:?}") };
    assert_eq!(&upstream.result.as_ref().unwrap().bytes[..], [0, 255]);
    assert_eq!((upstream.data_ref.as_deref(), upstream.edge_state), (Some("text"), EdgeState::Satisfied));
    assert_eq!(upstream.execution_id, g.id("draft"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_comes_back_when_its_children_have_ended_also_in_failure() {
    let h = Harness::start().await;
    let parent = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let link = json!({ "execution_id": parent, "fence": task.fence });
    let child = |name: &str| json!({ "kind": "test", "node": name, "parent": link, "policy": { "retry": { "max_retries": 0 } } });
    let first = h.must::<CreateExecution>(child("one")).await;
    let second = h.must::<CreateExecution>(child("two")).await;
    assert!(first.flow_id.is_some() && first.flow_id == second.flow_id, "a solo parent gets a flow of its own");
    let waiting = h.must::<WaitChildren>(json!({ "execution_id": parent, "fence": task.fence })).await;
    assert_eq!((waiting.open_children, waiting.public_state), (2, PublicState::WaitingChildren));
    let (one, two) = (h.claim().await.unwrap(), h.claim().await.unwrap());
    complete(&h, &one).await;
    quiet(&h).await;
    assert_eq!(h.state(&parent).await, PublicState::WaitingChildren);
    fail(&h, &two).await;
    let again = h.claim().await.unwrap();
    assert_eq!((again.execution_id, again.claim_kind, again.fence.attempt.0), (parent, ClaimKind::Resumed, 0));
    let upstreams = h.must::<ListUpstreams>(json!({ "execution_id": parent })).await.items;
    assert!(upstreams.iter().all(|upstream| upstream.role == EdgeRole::Child));
    let mut seen: Vec<_> = upstreams.iter().map(|upstream| upstream.public_state.as_str()).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["completed", "failed"]);
    complete(&h, &again).await;
    quiet(&h).await;
    let flow = h.must::<GetFlow>(json!({ "flow_id": first.flow_id })).await;
    assert_eq!((flow.member_count, flow.state), (3, FlowState::Failed));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_flow_ends_members_in_every_state_and_nothing_starts() {
    let h = Harness::start().await;
    let mut request = graph_request(&["a", "b", "c", "d"], &["a>d"], &json!({}));
    request["nodes"][2]["request"]["delay_until"] = json!(crate::support::START + 60_000);
    let g = create(&h, request).await;
    h.claim().await.unwrap();
    let cancel = json!({ "flow_id": g.flow, "wait": true, "reason": "enough" });
    let done = h.must::<CancelFlow>(cancel.clone()).await;
    let CancelFlowResult::Cancelled { policy, member_count, members, failed } = &done else { panic!("{done:?}") };
    assert_eq!((*policy, *member_count, members.len(), failed.len()), (CancelFlowPolicy::CancelAll, 4, 4, 0));
    assert_eq!(states(&h, &g, "a b c d").await, "cancelled cancelled cancelled cancelled");
    let again = h.must::<CancelFlow>(cancel).await;
    let CancelFlowResult::AlreadyTerminal { state, policy, reason, member_count, members, .. } = again else {
        panic!("{again:?}")
    };
    assert_eq!((state, policy), (FlowState::Cancelled, Some(CancelFlowPolicy::CancelAll)));
    assert_eq!((reason.as_deref(), member_count, members.len()), (Some("enough"), 4, 4));
    assert_eq!(flow_state(&h, &g).await, FlowState::Cancelled);
    let late = json!({ "kind": "test", "flow_id": g.flow });
    assert_eq!(h.refused::<CreateExecution>(late).await, Code::FlowAlreadyTerminal);
    assert!(h.claim_with(json!({ "wait_ms": 10 })).await.is_none());
    let view = h.must::<GetExecution>(json!({ "execution_id": g.id("b") })).await;
    let cancellation = view.cancellation.unwrap();
    assert_eq!((cancellation.reason.as_deref(), cancellation.source.as_str()), (Some("enough"), "flow"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_flow_that_ended_by_itself_tells_its_state_and_members() {
    let h = Harness::start().await;
    let g = graph(&h, &["a", "b"], &[]).await;
    for _ in 0..2 {
        let task = h.claim().await.unwrap();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    let told = h.must::<CancelFlow>(json!({ "flow_id": g.flow })).await;
    let CancelFlowResult::AlreadyTerminal { state, policy, members, next_cursor, .. } = told else {
        panic!("{told:?}")
    };
    assert_eq!((state, policy, members.len(), next_cursor), (FlowState::Completed, None, 2, None));
    assert_eq!(flow_state(&h, &g).await, FlowState::Completed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_members_of_a_large_flow_that_was_cancelled_are_told_page_by_page() {
    let h = Harness::start().await;
    let created = serde_json::to_value(h.must::<CreateFlow>(json!({ "kind": "f" })).await).unwrap();
    let flow = &created["flow_id"];
    for count in [1_000, 2] {
        let members: Vec<Value> = (0..count).map(|_| json!({ "kind": "k", "flow_id": flow })).collect();
        h.must::<CreateExecutions>(json!({ "executions": members })).await;
    }
    let cancelled = h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    let CancelFlowResult::Cancelled { member_count, members, .. } = cancelled else { panic!("{cancelled:?}") };
    assert_eq!((member_count, members.len()), (1_002, 1_000));
    let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), None, 0);
    loop {
        let told = h.must::<CancelFlow>(json!({ "flow_id": flow, "cursor": cursor })).await;
        let CancelFlowResult::AlreadyTerminal { member_count, members, next_cursor, .. } = told else {
            panic!("{told:?}")
        };
        assert_eq!(member_count, 1_002);
        seen.extend(members);
        (cursor, pages) = (next_cursor, pages + 1);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (1_002, 2));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_with_nothing_left_to_do_is_done_at_once() {
    let h = Harness::start().await;
    let created = serde_json::to_value(h.must::<CreateFlow>(json!({ "kind": "f" })).await).unwrap();
    let told = h.must::<CancelFlow>(json!({ "flow_id": created["flow_id"] })).await;
    assert!(matches!(told, CancelFlowResult::Cancelled { .. }), "{told:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_lists_only_what_it_cancels() {
    let h = Harness::start().await;
    let g = graph(&h, &["a", "b", "c"], &[]).await;
    let done = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": done.execution_id, "fence": done.fence })).await;
    let running = h.claim().await.unwrap();
    let told = h.must::<CancelFlow>(json!({ "flow_id": g.flow, "policy": "cancel_pending", "wait": true })).await;
    let CancelFlowResult::Cancelled { members, .. } = told else { panic!("{told:?}") };
    assert_eq!(members.len(), 1);
    assert!(!members.contains(&done.execution_id) && !members.contains(&running.execution_id));
    h.must::<Complete>(json!({ "execution_id": running.execution_id, "fence": running.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_was_cancelled_before_says_so_while_members_live() {
    for policy in ["cancel_pending", "flow_only"] {
        for wait in [true, false] {
            let h = Harness::start().await;
            let g = graph(&h, &["a", "b"], &[]).await;
            let running = h.claim().await.unwrap();
            h.must::<CancelFlow>(json!({ "flow_id": g.flow, "policy": policy, "reason": "first", "wait": wait })).await;
            let again = json!({ "flow_id": g.flow, "policy": "cancel_all", "reason": "second", "wait": wait });
            let told = h.must::<CancelFlow>(again).await;
            let CancelFlowResult::AlreadyTerminal { state, policy: kept, reason, member_count, members, .. } = told
            else {
                panic!("{told:?}")
            };
            assert_eq!(
                (state, kept.unwrap().as_str(), reason.as_deref()),
                (FlowState::Cancelled, policy, Some("first"))
            );
            assert_eq!((member_count, members.len()), (2, 2));
            assert_eq!(h.state(&running.execution_id).await, PublicState::Active);
            complete(&h, &running).await;
            h.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_quorum_above_its_dependencies_is_refused() {
    let h = Harness::start().await;
    let mut request = graph_request(&["a", "b"], &["a>b"], &json!({}));
    request["nodes"][1]["join"] = json!({ "quorum": { "k": 2 } });
    assert_eq!(h.refused::<CreateFlow>(request).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_gentler_cancellation_lets_what_has_started_come_to_its_end() {
    for (policy, pending) in [("cancel_pending", PublicState::Cancelled), ("flow_only", PublicState::Waiting)] {
        let h = Harness::start().await;
        let g = graph(&h, &["a", "b"], &[]).await;
        let task = h.claim().await.unwrap();
        let other = if task.execution_id == g.id("a") { g.id("b") } else { g.id("a") };
        h.must::<CancelFlow>(json!({ "flow_id": g.flow, "policy": policy, "wait": true })).await;
        assert_eq!(h.state(&task.execution_id).await, PublicState::Active);
        let view = h.must::<GetExecution>(json!({ "execution_id": other })).await;
        assert_eq!(view.public_state, pending);
        if policy == "flow_only" {
            assert_eq!(view.state.blocking_reason, BlockingReason::PausedByFlowCancel);
        }
        let delay = json!({ "execution_id": task.execution_id, "fence": task.fence, "delay_ms": 5 });
        h.must::<ff_core::op::Delay>(delay).await;
        let again = h.claim().await.expect("what has started goes on");
        assert_eq!((again.execution_id, again.claim_kind), (task.execution_id, ClaimKind::Resumed));
        complete(&h, &again).await;
        assert!(h.claim_with(json!({ "wait_ms": 100 })).await.is_none(), "nothing new starts");
        assert_eq!(flow_state(&h, &g).await, FlowState::Cancelled);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_takes_over_tags_budgets_and_deadline_unless_it_is_detached() {
    let h = Harness::start().await;
    for name in ["purse", "other"] {
        h.must::<CreateBudget>(json!({ "name": name, "dimensions": { "usd": { "hard": 5 } } })).await;
    }
    let deadline_at = h.engine.now() + 60_000;
    let governed =
        json!({ "tags": { "customer": "a", "step": "one" }, "budget_ids": ["purse"], "deadline_at": deadline_at });
    h.submit(governed).await;
    let parent = h.claim().await.unwrap();
    let link = |detached: bool| {
        let mut link = json!({ "execution_id": parent.execution_id, "fence": parent.fence });
        if detached {
            link["detached"] = json!(true);
        }
        link
    };
    let spawn = async |request: Value| {
        let child = h.must::<CreateExecution>(request).await.execution_id;
        let shown = h.must::<GetExecution>(json!({ "execution_id": child })).await;
        (serde_json::to_value(&shown.tags).unwrap(), shown.budget_ids.clone(), shown.deadline_at)
    };
    let plain = spawn(json!({ "kind": "part", "parent": link(false) })).await;
    assert_eq!(plain, (json!({ "customer": "a", "step": "one" }), vec!["purse".to_owned()], Some(deadline_at)));
    let own = json!({ "kind": "part", "parent": link(false), "tags": { "step": "two" }, "budget_ids": ["other"],
        "deadline_at": deadline_at - 1 });
    let own = spawn(own).await;
    assert_eq!(own, (json!({ "customer": "a", "step": "two" }), vec!["other".to_owned()], Some(deadline_at - 1)));
    assert_eq!(spawn(json!({ "kind": "part", "parent": link(true) })).await, (json!({}), Vec::new(), None));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_names_another_child_in_each_generation_and_the_same_one_within_it() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let mut seen = BTreeSet::new();
    for generation in 0..5 {
        let task = h.claim().await.unwrap();
        assert_eq!((task.execution_id, task.generation), (id, generation));
        let parent = json!({ "execution_id": id, "fence": task.fence, "key": "a" });
        let spawn = json!({ "kind": "part", "lane": "parts", "parent": parent });
        let child = h.must::<CreateExecution>(spawn.clone()).await;
        assert!(!child.duplicate, "generation {generation} has a child of its own");
        assert!(seen.insert(child.execution_id), "generation {generation}");
        let again = h.must::<CreateExecution>(spawn).await;
        assert_eq!((again.execution_id, again.duplicate), (child.execution_id, true));
        // Generation 2 ends and is replayed; the others continue as new.
        if generation == 2 {
            complete(&h, &task).await;
            h.must::<ReplayExecution>(json!({ "execution_id": id })).await;
        } else {
            h.must::<ContinueAsNew>(json!({ "execution_id": id, "fence": task.fence })).await;
        }
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_cannot_be_members_are_refused_and_nothing_is_created() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "lane": "other" })).await;
    let own = serde_json::to_value(id).unwrap();
    let same = ["a", "b"].map(|name| json!({ "name": name, "request": { "kind": "k", "execution_id": own } }));
    let keyed = |field: &str, key: Value| json!([{ "name": "a", "request": { "kind": "k", field: key } }]);
    let debounce = keyed("debounce", json!({ "key": "x", "wait_ms": 1_000 }));
    let refused = [
        (json!(same), "nodes[1].request.execution_id"),
        (keyed("singleton", json!({ "key": "x" })), "nodes[0].request.singleton"),
        (debounce, "nodes[0].request.debounce"),
    ];
    for (nodes, field) in refused {
        let error = h.call::<CreateFlow>(json!({ "nodes": nodes })).await.unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &json!(field)));
    }
    assert!(h.must::<ListFlows>(json!({})).await.items.is_empty());
    h.finish().await;
}
