//! Wide and random graphs, and resolvers that stop between two commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::Harness;
use ff_core::flow::{CancelFlowResult, FlowState};
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::{
    ApplyDependencyToChild, CancelFlow, Complete, CreateExecution, CreateFlow, Fail, GetExecution, GetFlow,
    StageDependencyEdge,
};
use ff_core::{ExecutionId, FlowId, PublicState};
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use serde_json::{Value, json};

fn node(name: &str) -> Value {
    json!({ "name": name, "request": { "kind": "test", "policy": { "retry": { "max_retries": 0 } } } })
}

async fn create(h: &Harness, nodes: Vec<Value>, edges: Vec<Value>) -> (FlowId, BTreeMap<String, ExecutionId>) {
    match h.must::<CreateFlow>(json!({ "nodes": nodes, "edges": edges })).await {
        Created::Created { flow_id, executions, .. } => (flow_id, executions),
        other => panic!("{other:?}"),
    }
}

async fn claim_many(h: &Harness) -> Vec<ff_core::op::view::Task> {
    let args = json!({ "instance_id": "w", "lanes": ["default"], "max_tasks": 100, "wait_ms": 50 });
    h.must::<ff_core::op::Claim>(args).await.tasks
}

#[tokio::test(start_paused = true)]
async fn a_fan_of_a_thousand_joins_in_tens_of_commits() {
    let h = Harness::start().await;
    let (flow, nodes) = create(&h, vec![node("first")], vec![]).await;
    let first = nodes["first"];
    let mut middle = Vec::new();
    for _ in 0..1_000 {
        let args = json!({ "kind": "test", "flow_id": flow, "dependencies": [{ "upstream": first }] });
        middle.push(h.must::<CreateExecution>(args).await.execution_id);
    }
    let some: Vec<Value> = middle[..900].iter().map(|id| json!({ "upstream": id })).collect();
    let args = json!({ "kind": "test", "flow_id": flow, "dependencies": some });
    let last = h.must::<CreateExecution>(args).await.execution_id;
    for id in &middle[900..] {
        let edge = json!({ "flow_id": flow, "upstream": id, "downstream": last });
        let staged = h.must::<StageDependencyEdge>(edge).await;
        let ff_core::op::stage_dependency_edge::Outcome::Staged { edge_id, .. } = staged else { panic!("{staged:?}") };
        h.must::<ApplyDependencyToChild>(json!({ "flow_id": flow, "edge_id": edge_id })).await;
    }
    let task = h.claim().await.unwrap();
    assert_eq!(task.execution_id, first);
    let commits = || h.engine.metrics().commits.snapshot().0.iter().sum::<u64>();
    let before = commits();
    h.must::<Complete>(json!({ "execution_id": first, "fence": task.fence })).await;
    h.pass(1).await;
    assert!(commits() - before <= 10, "{} commits to fan out", commits() - before);
    let mut ended = 0;
    let before = commits();
    while ended < 1_000 {
        let tasks = claim_many(&h).await;
        assert!(!tasks.is_empty() && tasks.iter().all(|task| task.execution_id != last));
        let done = tasks
            .iter()
            .map(|task| h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })));
        ended += futures_util::future::join_all(done).await.len();
    }
    h.pass(1).await;
    let resolving = commits() - before - 2_000;
    assert!(resolving <= 100, "{resolving} commits to join");
    assert_eq!(h.state(&last).await, PublicState::Waiting);
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": last, "fence": task.fence })).await;
    h.pass(1).await;
    let view = h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert_eq!((view.state, view.counts.of(PublicState::Completed)), (FlowState::Completed, 1_002));
    h.finish().await;
}

/// Numbers that repeat with their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

struct Plan {
    upstreams: Vec<BTreeSet<usize>>,
    /// How many upstreams must succeed; none for all.
    quorum: Vec<Option<usize>>,
    fails: Vec<bool>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 2 + random.below(14);
        let mut plan = Plan { upstreams: Vec::new(), quorum: Vec::new(), fails: Vec::new() };
        for node in 0..count {
            let mut upstreams = BTreeSet::new();
            for _ in 0..if node == 0 { 0 } else { random.below(4) } {
                upstreams.insert(random.below(node));
            }
            let quorum = (!upstreams.is_empty() && random.below(3) == 0).then(|| 1 + random.below(upstreams.len()));
            plan.upstreams.push(upstreams);
            plan.quorum.push(quorum);
            plan.fails.push(random.below(5) == 0);
        }
        plan
    }

    fn request(&self) -> Value {
        let name = |number: usize| format!("n{number}");
        let nodes: Vec<Value> = (0..self.fails.len())
            .map(|number| {
                let mut node = node(&name(number));
                if let Some(k) = self.quorum[number] {
                    node["join"] = json!({ "quorum": { "k": k, "on_satisfied": "let_run" } });
                }
                node
            })
            .collect();
        let pairs = self.upstreams.iter().enumerate().flat_map(|(to, froms)| froms.iter().map(move |from| (*from, to)));
        let edges: Vec<Value> = pairs.map(|(from, to)| json!({ "from": name(from), "to": name(to) })).collect();
        json!({ "nodes": nodes, "edges": edges })
    }

    /// How every node ends, by the rules and not by the engine.
    fn expected(&self) -> Vec<PublicState> {
        let mut states: Vec<PublicState> = Vec::new();
        for number in 0..self.fails.len() {
            let upstreams = &self.upstreams[number];
            let good = upstreams.iter().filter(|from| states[**from] == PublicState::Completed).count();
            let needed = self.quorum[number].unwrap_or(upstreams.len());
            states.push(match (good >= needed, self.fails[number]) {
                (false, _) => PublicState::Skipped,
                (true, true) => PublicState::Failed,
                (true, false) => PublicState::Completed,
            });
        }
        states
    }
}

async fn run_to_the_end(h: &Harness, plan: &Plan, numbers: &BTreeMap<ExecutionId, usize>) {
    let mut succeeded: BTreeSet<usize> = BTreeSet::new();
    loop {
        let tasks = claim_many(h).await;
        if tasks.is_empty() {
            return;
        }
        for task in tasks {
            let number = numbers[&task.execution_id];
            let upstreams = &plan.upstreams[number];
            let good = upstreams.iter().filter(|from| succeeded.contains(from)).count();
            assert!(good >= plan.quorum[number].unwrap_or(upstreams.len()), "{number} started too early");
            let args = json!({ "execution_id": task.execution_id, "fence": task.fence });
            if plan.fails[number] {
                let args = json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" });
                h.must::<Fail>(args).await;
            } else {
                succeeded.insert(number);
                h.must::<Complete>(args).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_graphs_end_as_the_rules_say() {
    for seed in 0..60 {
        let h = Harness::start().await;
        let plan = Plan::new(seed);
        let Created::Created { flow_id, executions, .. } = h.must::<CreateFlow>(plan.request()).await else { panic!() };
        let numbers = executions.iter().map(|(name, id)| (*id, name[1..].parse().unwrap())).collect();
        run_to_the_end(&h, &plan, &numbers).await;
        let expected = plan.expected();
        for (id, number) in &numbers {
            assert_eq!(h.state(id).await, expected[*number], "seed {seed}, node {number}");
        }
        let wanted = if expected.contains(&PublicState::Failed) { FlowState::Failed } else { FlowState::Completed };
        let view = h.must::<GetFlow>(json!({ "flow_id": flow_id })).await;
        assert_eq!(view.state, wanted, "seed {seed}");
        assert!(view.ended_at.is_some(), "seed {seed}");
        h.finish().await;
    }
}

/// Starts an engine that resolves, on the store of one that does not: what a crash left is found by its first sweep.
async fn rescue(h: &Harness) -> Engine {
    let env = Arc::new(TokioEnv::current());
    let engine = Engine::start(h.store.clone(), env, Options::default()).await.expect("it starts");
    h.pass(5).await;
    engine
}

#[tokio::test(start_paused = true)]
async fn marks_that_a_crash_left_are_found_by_the_sweep() {
    let h = Harness::with(Options { services: false, ..Default::default() }).await;
    let edges = vec![json!({ "from": "a", "to": "b" }), json!({ "from": "b", "to": "c" })];
    let (flow, nodes) = create(&h, vec![node("a"), node("b"), node("c")], edges).await;
    let task = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": nodes["a"], "fence": task.fence, "reason": "broke" })).await;
    h.pass(1_000).await;
    assert_eq!(h.state(&nodes["b"]).await, PublicState::WaitingChildren, "nobody resolves here");
    h.check();
    let engine = rescue(&h).await;
    assert_eq!(h.state(&nodes["c"]).await, PublicState::Skipped);
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.state, FlowState::Failed);
    engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_a_crash_interrupted_is_carried_out_and_nothing_starts_meanwhile() {
    let h = Harness::with(Options { services: false, ..Default::default() }).await;
    let nodes: Vec<Value> = (0..300).map(|number| node(&format!("n{number}"))).collect();
    let (flow, nodes) = create(&h, nodes, vec![]).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow })).await;
    assert!(claim_many(&h).await.is_empty(), "no member starts after the call returned");
    let engine = rescue(&h).await;
    for id in nodes.values() {
        assert_eq!(h.state(id).await, PublicState::Cancelled);
    }
    let view = h.must::<GetFlow>(json!({ "flow_id": flow })).await;
    assert!(view.state == FlowState::Cancelled && view.ended_at.is_some());
    engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_chain_is_cancelled_to_its_last_link() {
    for policy in ["cancel_all", "cancel_pending"] {
        let h = Harness::start().await;
        let nodes: Vec<Value> = (0..150).map(|number| node(&format!("n{number}"))).collect();
        let edge = |number: usize| json!({ "from": format!("n{number}"), "to": format!("n{}", number + 1) });
        let (flow, nodes) = create(&h, nodes, (0..149).map(edge).collect()).await;
        let cancel = json!({ "flow_id": flow, "policy": policy, "reason": "stop", "wait": true });
        let told = h.must::<CancelFlow>(cancel).await;
        let CancelFlowResult::Cancelled { members, .. } = told else { panic!("{told:?}") };
        assert_eq!(members.len(), 150, "{policy}");
        for id in nodes.values() {
            let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
            assert_eq!(view.public_state, PublicState::Cancelled, "{policy}");
            let cancellation = view.cancellation.expect("it was cancelled");
            assert_eq!((cancellation.reason.as_deref(), cancellation.source.as_str()), (Some("stop"), "flow"));
        }
        h.finish().await;
    }
}
