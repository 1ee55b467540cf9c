//! How far a token reaches by way of something else: what is limited to lanes, or to what it submitted, stays so through
//! joins, keys and shared limits.

use crate::support::Harness;
use ff_core::op::apply_dependency_to_child::Outcome as Apply;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::stage_dependency_edge::Outcome as Staged;
use ff_core::op::{
    AddExecutionToFlow, ApplyDependencyToChild, CloseFlow, Complete, CreateBudget, CreateExecution, CreateFlow,
    CreateProvider, CreateQuota, DecideBudget, DeleteBudget, DeleteProvider, DeleteQuota, GetBudget, GetExecution,
    GetFlow, GetProvider, GetQuota, ListTools, RegisterWorker, ReportBudgetUsage, ReportUsage, ResetBudget,
    SetBudgetLimits, StageDependencyEdge, UpdateBudget, UpdateProvider, UpdateQuota,
};
use ff_core::{Code, EdgeId, ExecutionId, FlowId, PublicState, Role};
use ff_engine::{Caller, Standing};
use serde_json::{Value, json};

fn with_token(name: &str, role: Role) -> Caller {
    Caller { standing: Standing::Token, ..Caller::new(name, Some("default".into()), role) }
}

fn limited(lane: &str, role: Role) -> Caller {
    Caller { lanes: vec![lane.into()], ..with_token("limited", role) }
}

async fn open_flow(h: &Harness) -> FlowId {
    match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
        Created::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    }
}

fn cancelling() -> [Value; 2] {
    let on_satisfied = "cancel_remaining";
    [
        json!({ "any_of": { "on_satisfied": on_satisfied } }),
        json!({ "quorum": { "k": 1, "on_satisfied": on_satisfied } }),
    ]
}

async fn complete_one(h: &Harness, lane: &str) -> ExecutionId {
    let task = h.claim_with(json!({ "lanes": [lane] })).await.unwrap();
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(5).await;
    task.execution_id
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_lane_declares_no_join_that_cancels_in_another() {
    for join in cancelling() {
        let mut h = Harness::start().await;
        let flow = open_flow(&h).await;
        let mine = h.submit(json!({ "flow_id": flow, "lane": "a", "priority": 1 })).await;
        let theirs = h.submit(json!({ "flow_id": flow, "lane": "b" })).await;
        h.caller = limited("a", Role::Submitter);
        // It may cancel what it submitted itself, also by a join.
        let own = h.submit(json!({ "flow_id": flow, "lane": "a" })).await;
        h.caller = limited("a", Role::Operator);
        let child = |upstreams: &[ExecutionId], join: &Value| {
            let dependencies: Vec<_> = upstreams.iter().map(|one| json!({ "upstream": one })).collect();
            json!({ "kind": "test", "flow_id": flow, "lane": "a", "dependencies": dependencies, "join": join })
        };
        let refused = h.call::<CreateExecution>(child(&[mine, theirs], &join)).await.unwrap_err();
        assert_eq!((refused.code, &refused.details["execution_id"]), (Code::Forbidden, &json!(theirs)));
        assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.member_count, 3, "nothing was created");
        h.must::<CreateExecution>(child(&[mine, theirs], &json!({ "any_of": { "on_satisfied": "let_run" } }))).await;
        h.must::<CreateExecution>(child(&[mine, own], &join)).await;
        assert_eq!(complete_one(&h, "a").await, mine);
        assert_eq!(h.state(&own).await, PublicState::Cancelled);
        assert_eq!(h.state(&theirs).await, PublicState::Waiting);
        h.caller = Caller::system();
        h.finish().await;
    }
}

async fn stage(h: &Harness, flow: FlowId, upstream: ExecutionId, downstream: ExecutionId) -> EdgeId {
    let args = json!({ "flow_id": flow, "upstream": upstream, "downstream": downstream });
    let Staged::Staged { edge_id, .. } = h.must::<StageDependencyEdge>(args).await else { panic!("it is staged") };
    edge_id
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_lane_applies_no_edge_whose_join_cancels_in_another() {
    for join in cancelling() {
        let mut h = Harness::start().await;
        let flow = open_flow(&h).await;
        let mine = h.submit(json!({ "flow_id": flow, "lane": "a" })).await;
        let theirs = h.submit(json!({ "flow_id": flow, "lane": "b" })).await;
        let child = h.submit(json!({ "flow_id": flow, "lane": "a" })).await;
        let (first, second) = (stage(&h, flow, mine, child).await, stage(&h, flow, theirs, child).await);
        h.caller = limited("a", Role::Operator);
        let apply = |edge: EdgeId, join: Option<&Value>| json!({ "flow_id": flow, "edge_id": edge, "join": join });
        assert_eq!(h.refused::<ApplyDependencyToChild>(apply(second, Some(&join))).await, Code::Forbidden);
        let applied = h.must::<ApplyDependencyToChild>(apply(first, Some(&join))).await;
        assert_eq!(applied, Apply::Applied { unsatisfied_count: 1 });
        // The policy is the child's by now, so that the edge need not name it.
        assert_eq!(h.refused::<ApplyDependencyToChild>(apply(second, None)).await, Code::Forbidden);
        assert_eq!(complete_one(&h, "a").await, mine);
        assert_eq!(h.state(&theirs).await, PublicState::Waiting);
        h.caller = Caller::system();
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_submitter_declares_no_join_that_cancels_what_others_submitted() {
    let mut h = Harness::start().await;
    let flow = open_flow(&h).await;
    h.caller = with_token("ann", Role::Submitter);
    let anns = h.submit(json!({ "flow_id": flow })).await;
    h.caller = with_token("bob", Role::Submitter);
    let bobs = h.submit(json!({ "flow_id": flow })).await;
    let child = |upstreams: [ExecutionId; 2]| {
        let dependencies = upstreams.map(|one| json!({ "upstream": one }));
        json!({ "kind": "test", "flow_id": flow, "dependencies": dependencies, "join": { "any_of": {} } })
    };
    let refused = h.call::<CreateExecution>(child([bobs, anns])).await.unwrap_err();
    assert_eq!((refused.code, &refused.details["execution_id"]), (Code::Forbidden, &json!(anns)));
    let own = h.submit(json!({ "flow_id": flow })).await;
    h.must::<CreateExecution>(child([bobs, own])).await;
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_submitter_makes_nothing_of_others_wait_and_skips_none_of_it() {
    let mut h = Harness::start().await;
    let flow = open_flow(&h).await;
    h.caller = with_token("ann", Role::Submitter);
    let anns = h.submit(json!({ "flow_id": flow })).await;
    let minted = ff_core::id::Mint { now_ms: h.engine.now(), random: [9; 10] };
    let alone = h.submit(json!({ "execution_id": ExecutionId::for_flow(&flow, &minted) })).await;
    let upstream = json!([{ "upstream": anns }]);
    let quorum = json!({ "quorum": { "k": 2, "on_satisfied": "let_run" } });
    let short = h.submit(json!({ "flow_id": flow, "dependencies": upstream, "join": quorum })).await;
    h.caller = with_token("bob", Role::Submitter);
    let bobs = h.submit(json!({ "flow_id": flow })).await;
    let edge = |upstream: ExecutionId, downstream: ExecutionId| json!({ "flow_id": flow, "upstream": upstream, "downstream": downstream });
    let join = json!({ "flow_id": flow, "execution_id": alone });
    assert_eq!(h.refused::<AddExecutionToFlow>(join.clone()).await, Code::Forbidden);
    assert_eq!(h.refused::<StageDependencyEdge>(edge(bobs, anns)).await, Code::Forbidden);
    assert_eq!(h.refused::<CloseFlow>(json!({ "flow_id": flow })).await, Code::Forbidden);
    // Its own may wait for an execution that somebody else submitted.
    let own = stage(&h, flow, anns, bobs).await;
    h.must::<ApplyDependencyToChild>(json!({ "flow_id": flow, "edge_id": own })).await;
    h.caller = with_token("ann", Role::Submitter);
    assert_eq!(h.state(&short).await, PublicState::WaitingChildren);
    h.must::<AddExecutionToFlow>(join).await;
    let staged = stage(&h, flow, alone, anns).await;
    h.caller = with_token("bob", Role::Submitter);
    let apply = json!({ "flow_id": flow, "edge_id": staged });
    assert_eq!(h.refused::<ApplyDependencyToChild>(apply).await, Code::Forbidden);
    h.caller = with_token("ann", Role::Submitter);
    h.must::<CloseFlow>(json!({ "flow_id": flow })).await;
    assert_eq!(h.state(&short).await, PublicState::Skipped);
    h.caller = Caller::system();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_lane_takes_no_debounce_key_from_another() {
    // A key of the caller's own leads to the record of it first, in another partition; the other way looks at once.
    for key in [json!(null), json!("once")] {
        let mut h = Harness::start().await;
        let debounced = |lane: &str, key: &Value| json!({ "lane": lane, "idempotency_key": key, "debounce": { "key": "index", "wait_ms": 1_000 } });
        let waiting = h.submit(debounced("b", &json!(null))).await;
        let mut args = debounced("a", &key);
        args["kind"] = json!("test");
        h.caller = limited("a", Role::Submitter);
        let refused = h.call::<CreateExecution>(args.clone()).await.unwrap_err();
        assert_eq!((refused.code, &refused.details["execution_id"]), (Code::Forbidden, &json!(waiting)));
        assert_eq!(h.state(&waiting).await, PublicState::Delayed);
        // One that runs would lose its key to a burst beside it.
        h.caller = Caller::system();
        let task = h.claim_with(json!({ "lanes": ["b"] })).await.unwrap();
        assert_eq!(task.execution_id, waiting);
        h.caller = limited("a", Role::Submitter);
        assert_eq!(h.refused::<CreateExecution>(args.clone()).await, Code::Forbidden);
        h.caller = Caller::system();
        h.must::<Complete>(json!({ "execution_id": waiting, "fence": task.fence })).await;
        h.caller = limited("a", Role::Submitter);
        let first = h.must::<CreateExecution>(args.clone()).await;
        assert!(!first.duplicate, "a refused submission does not use up its key");
        let second = h.submit(debounced("a", &json!(null))).await;
        let view = h.must::<GetExecution>(json!({ "execution_id": first.execution_id })).await;
        assert_eq!(view.cancellation.unwrap().superseded_by, Some(second), "in its own lane keys work as ever");
        h.caller = Caller::system();
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_submitter_replaces_only_what_it_submitted() {
    let mut h = Harness::start().await;
    let submitter =
        |name| Caller { standing: Standing::Token, ..Caller::new(name, Some("default".into()), Role::Submitter) };
    let debounced = json!({ "kind": "test", "debounce": { "key": "index", "wait_ms": 1_000 } });
    h.caller = submitter("one");
    let first = h.submit(debounced.clone()).await;
    h.caller = submitter("two");
    let refused = h.call::<CreateExecution>(debounced.clone()).await.unwrap_err();
    assert_eq!((refused.code, &refused.details["field"]), (Code::Forbidden, &json!("debounce.key")));
    assert_eq!(h.state(&first).await, PublicState::Delayed);
    h.caller = submitter("one");
    let second = h.submit(debounced.clone()).await;
    assert_eq!(h.state(&first).await, PublicState::Cancelled);
    // A caller that may cancel anything may replace anything.
    h.caller = Caller::system();
    h.submit(debounced).await;
    assert_eq!(h.state(&second).await, PublicState::Cancelled);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_lane_changes_no_limit_that_lanes_share() {
    let mut h = Harness::start().await;
    let budget = |name: &str| json!({ "name": name, "dimensions": { "tokens": { "hard": 10 } } });
    let quota = |name: &str| json!({ "name": name, "max_concurrent": 1 });
    let provider = |name: &str| json!({ "name": name, "max_requests": 5, "window_ms": 1_000 });
    h.must::<CreateBudget>(budget("b")).await;
    h.must::<CreateQuota>(quota("q")).await;
    h.must::<CreateProvider>(provider("p")).await;
    h.must::<CreateBudget>(budget("other")).await;
    h.submit(json!({ "lane": "a", "budget_ids": ["b"] })).await;
    h.caller = limited("a", Role::Operator);
    let task = h.claim_with(json!({ "lanes": ["a"] })).await.unwrap();
    let named = |name: &str| json!({ "name": name });
    let forced = |name: &str| json!({ "name": name, "force": true });
    let spent = |name: &str| json!({ "name": name, "usage": { "tokens": 1 } });
    let spent_by_task = |name: &str| json!({ "name": name, "usage": { "tokens": 1 }, "execution_id": task.execution_id, "fence": task.fence });
    for (what, refused) in [
        ("create a budget", h.refused::<CreateBudget>(budget("mine")).await),
        ("set its limits", h.refused::<SetBudgetLimits>(budget("b")).await),
        ("update it", h.refused::<UpdateBudget>(budget("b")).await),
        ("reset it", h.refused::<ResetBudget>(named("b")).await),
        ("delete it", h.refused::<DeleteBudget>(forced("b")).await),
        ("charge it", h.refused::<ReportBudgetUsage>(spent("b")).await),
        ("charge another", h.refused::<ReportBudgetUsage>(spent_by_task("other")).await),
        ("decide it", h.refused::<DecideBudget>(json!({ "name": "b", "answer": "no" })).await),
        ("create a quota", h.refused::<CreateQuota>(quota("mine")).await),
        ("update it", h.refused::<UpdateQuota>(quota("q")).await),
        ("delete it", h.refused::<DeleteQuota>(forced("q")).await),
        ("create a provider", h.refused::<CreateProvider>(provider("mine")).await),
        ("update it", h.refused::<UpdateProvider>(provider("p")).await),
        ("delete it", h.refused::<DeleteProvider>(forced("p")).await),
    ] {
        assert_eq!(refused, Code::Forbidden, "{what}");
    }
    // It reads them, and its work is charged as that of others.
    h.must::<GetQuota>(named("q")).await;
    h.must::<GetProvider>(named("p")).await;
    h.must::<ReportBudgetUsage>(spent_by_task("b")).await;
    let usage = json!({ "execution_id": task.execution_id, "fence": task.fence, "usage": { "tokens": 1 } });
    h.must::<ReportUsage>(usage).await;
    assert_eq!(h.must::<GetBudget>(named("b")).await.usage["tokens"], 2);
    h.caller = Caller::system();
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_of_one_lane_takes_over_no_tool_of_another() {
    let mut h = Harness::start().await;
    let registered = |instance: &str, lane: &str, description: &str| {
        let tool = json!({ "kind": "sum", "description": description, "input_schema": { "type": "object" } });
        json!({ "worker_id": instance, "instance_id": instance, "nonce": "n", "lanes": [lane], "tools": [tool] })
    };
    h.must::<RegisterWorker>(registered("w-b", "b", "Sums up.")).await;
    h.caller = limited("a", Role::Worker);
    let refused = h.call::<RegisterWorker>(registered("w-a", "a", "Sums up.")).await.unwrap_err();
    assert_eq!((refused.code, &refused.details["kind"]), (Code::Forbidden, &json!("sum")));
    h.caller = limited("b", Role::Worker);
    h.must::<RegisterWorker>(registered("w-b2", "b", "Sums up better.")).await;
    let tools = h.must::<ListTools>(json!({})).await.items;
    assert_eq!((tools.len(), tools[0].lane.as_str(), tools[0].description.as_str()), (1, "b", "Sums up better."));
    h.caller = Caller::system();
    h.finish().await;
}
