//! A client: submits work of every kind, alone, in batches and in graphs, and asks about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::op::{
    AddExecutionToFlow, ApplyDependencyToChild, CancelFlow, CreateExecution, CreateExecutions, CreateFlow,
    GetExecution, GetFlow, StageDependencyEdge, create_flow, stage_dependency_edge,
};
use ff_core::{ExecutionId, FlowId};
use serde_json::{Value, json};

use crate::checker::{KEY_TAG, LAST_GUSTS_MS, TOKENS};
use crate::desk::put;
use crate::gates::{BUDGETS, KEYS, QUOTAS};
use crate::worker::{CAPABILITIES, LANES};
use crate::world::World;

/// Submits until the weather is calm.
pub(crate) async fn run(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 400);
        world.wait(pause).await;
        match world.between(0, 99) {
            0..=49 => submit(&world).await,
            50..=54 => submit_under_a_key(&world).await,
            55..=64 => submit_many(&world).await,
            65..=79 => submit_graph(&world).await,
            80..=85 => grow_graph(&world).await,
            86..=91 => join_late(&world).await,
            93..=95 => cancel_crowd(&world).await,
            92 if world.profile.large => submit_masses(&world).await,
            _ => ask(&world).await,
        }
    }
}

/// Executions that come at once when the storm is over.
const RUSH: i64 = 40;

/// Plain work in calm, for a while: nothing hinders it, so it is taken at once and in order.
pub(crate) async fn encore(world: Arc<World>, ms: i64) {
    let until = world.executor.now_ms() + ms;
    world.wait(LAST_GUSTS_MS).await;
    // First more than the workers can do at once, so that the urgent overtakes what came before it.
    let mut count = RUSH;
    while world.executor.now_ms() < until {
        let pause = world.between(50, 2_000);
        world.wait(pause).await;
        if world.executor.now_ms() >= until {
            return;
        }
        let mut executions = Vec::new();
        for _ in 0..std::mem::replace(&mut count, world.between(1, 12)) {
            let namespace = world.pick(world.profile.namespaces());
            executions.push(json!({
                "kind": "simulated", "lane": world.pick(&LANES), "priority": world.between(0, 3),
                "namespace": namespace, "execution_id": world.mint_reachable(),
                "required_capabilities": world.pick(&CAPABILITIES), "policy": { "retention_ms": 100_000 },
            }));
        }
        drop(world.insist::<CreateExecutions>(&json!({ "executions": executions })).await);
    }
}

/// More than any page or chunk holds: many that are due at one instant, and many upstreams of one child.
async fn submit_masses(world: &Arc<World>) {
    let due = world.store.now() + 3_000;
    let mass = |count: i64, delay: Option<i64>| -> Vec<Value> {
        (0..count)
            .map(|_| {
                let mut args = json!({
                    "kind": "simulated", "lane": "bulk", "execution_id": world.mint_execution(),
                    "policy": { "retention_ms": 100_000 },
                });
                if let Some(delay) = delay {
                    args["delay_until"] = json!(delay);
                }
                args
            })
            .collect()
    };
    for executions in [mass(300, Some(due)), mass(100, None)] {
        drop(world.insist::<CreateExecutions>(&json!({ "executions": executions })).await);
    }
    let nodes: Vec<Value> =
        (0..260).map(|number| json!({ "name": format!("n{number}"), "request": { "kind": "simulated" } })).collect();
    let edges: Vec<Value> = (1..260).map(|number| json!({ "from": format!("n{number}"), "to": "n0" })).collect();
    let flow = FlowId::mint(&world.profile.partitions, &world.mint());
    let args = json!({ "flow_id": flow, "nodes": nodes, "edges": edges });
    if let Some(Ok(_)) = world.insist::<CreateFlow>(&args).await {
        put(&mut world.desk().flows, flow);
    }
}

/// A flow whose child is decided by its first upstream and gets another edge afterwards.
async fn join_late(world: &Arc<World>) {
    let flow = FlowId::mint(&world.profile.partitions, &world.mint());
    let on_satisfied = world.pick(&["cancel_remaining", "let_run"]);
    let join = match world.between(0, 1) {
        0 => json!({ "any_of": { "on_satisfied": on_satisfied } }),
        _ => json!({ "quorum": { "k": 1, "on_satisfied": on_satisfied } }),
    };
    let later = world.store.now() + world.between(1_000, 6_000);
    let plain = json!({ "kind": "simulated", "lane": world.pick(&LANES) });
    let args = json!({
        "flow_id": flow,
        "nodes": [
            { "name": "first", "request": plain },
            { "name": "second", "request": request(world) },
            { "name": "child", "join": join, "request": { "kind": "simulated", "delay_until": later } },
        ],
        "edges": [{ "from": "first", "to": "child" }],
    });
    let generation = world.checker().generation;
    let Some(Ok(outcome)) = world.insist::<CreateFlow>(&args).await else { return };
    let executions = executions_of(outcome);
    acknowledge(world, generation, executions.values().copied());
    put(&mut world.desk().flows, flow);
    let pause = world.between(0, 4_000);
    world.wait(pause).await;
    let args = json!({ "flow_id": flow, "upstream": executions.get("second"), "downstream": executions.get("child") });
    if let Some(Ok(stage_dependency_edge::Outcome::Staged { edge_id, .. })) =
        world.insist::<StageDependencyEdge>(&args).await
    {
        let pause = world.between(0, 1_000);
        world.wait(pause).await;
        drop(world.insist::<ApplyDependencyToChild>(&json!({ "flow_id": flow, "edge_id": edge_id })).await);
    }
}

/// A crowd that is cancelled while workers take its members.
async fn cancel_crowd(world: &Arc<World>) {
    let nodes: Vec<Value> = (0..world.between(4, 12))
        .map(|number| json!({ "name": format!("n{number}"), "request": { "kind": "simulated", "lane": world.pick(&LANES) } }))
        .collect();
    let flow = FlowId::mint(&world.profile.partitions, &world.mint());
    let generation = world.checker().generation;
    let args = json!({ "flow_id": flow, "nodes": nodes });
    let Some(Ok(outcome)) = world.insist::<CreateFlow>(&args).await else { return };
    acknowledge(world, generation, executions_of(outcome).into_values());
    let pause = world.between(0, 300);
    world.wait(pause).await;
    let policy = world.pick(&["cancel_all", "cancel_pending", "flow_only"]);
    drop(world.insist::<CancelFlow>(&json!({ "flow_id": flow, "policy": policy, "reason": "a mistake" })).await);
}

async fn ask(world: &Arc<World>) {
    let (executions, flows) = {
        let desk = world.desk();
        (desk.executions.clone(), desk.flows.clone())
    };
    if !executions.is_empty() {
        let id = world.pick(&executions);
        drop(world.insist::<GetExecution>(&json!({ "execution_id": id })).await);
    }
    if !flows.is_empty() {
        let id = world.pick(&flows);
        drop(world.insist::<GetFlow>(&json!({ "flow_id": id })).await);
    }
}

async fn submit(world: &Arc<World>) {
    let mut args = request(world);
    elsewhere(world, &mut args);
    if world.chance(500) {
        args["execution_id"] = json!(world.mint_execution());
    } else {
        let key = format!("key-{}", world.executor.entropy());
        args["tags"] = json!({ KEY_TAG: key });
        args["idempotency_key"] = json!(key);
    }
    // Some callers send everything twice.
    for _ in 0..world.between(1, 2) {
        let (generation, latest) = {
            let checker = world.checker();
            (checker.generation, checker.dated_until_now(|partition| world.clocks.times_set(partition)))
        };
        if let Some(Ok(outcome)) = world.insist::<CreateExecution>(&args).await {
            let mut checker = world.checker();
            if checker.generation == generation {
                checker.acknowledged_in_order(outcome.execution_id, outcome.duplicate, &latest);
            }
            drop(checker);
            acknowledge(world, generation, [outcome.execution_id]);
        }
    }
}

/// Some work belongs to another namespace, where there are no budgets and quotas.
fn elsewhere(world: &World, args: &mut Value) {
    let namespace = world.pick(world.profile.namespaces());
    if let Some(args) = args.as_object_mut().filter(|_| namespace != "default") {
        args.remove("budget_ids");
        args.remove("quota_policy_id");
        args.insert("namespace".into(), json!(namespace));
    }
}

/// Work of which one at a time waits or runs, or the last of a burst.
async fn submit_under_a_key(world: &Arc<World>) {
    let mut args = request(world);
    elsewhere(world, &mut args);
    let key = world.pick(&KEYS);
    if world.chance(500) {
        args["singleton"] = json!({ "key": key });
    } else {
        if let Some(args) = args.as_object_mut() {
            args.remove("delay_until");
        }
        let wait_ms = world.between(1, 2_000);
        args["debounce"] = json!({ "key": key, "wait_ms": wait_ms, "max_wait_ms": wait_ms + world.between(0, 4_000) });
    }
    let generation = world.checker().generation;
    if let Some(Ok(outcome)) = world.insist::<CreateExecution>(&args).await {
        acknowledge(world, generation, [outcome.execution_id]);
    }
}

async fn submit_many(world: &Arc<World>) {
    let mut executions = Vec::new();
    for _ in 0..world.between(1, 5) {
        let mut args = request(world);
        elsewhere(world, &mut args);
        args["execution_id"] = json!(world.mint_execution());
        executions.push(args);
    }
    let ids: Vec<ExecutionId> =
        executions.iter().filter_map(|args| serde_json::from_value(args["execution_id"].clone()).ok()).collect();
    if let Some(Ok(_)) = world.insist::<CreateExecutions>(&json!({ "executions": executions })).await {
        // Each of them has an answer of its own, and some may be refusals.
        for id in ids {
            put(&mut world.desk().executions, id);
        }
    }
}

/// A random graph: edges lead from earlier to later nodes, so there is no cycle.
async fn submit_graph(world: &Arc<World>) {
    let count = world.between(1, 6);
    // A flow is kept for as long as the member that is kept longest.
    let brief = world.chance(300).then(|| world.between(1, 4_000));
    let mut nodes = Vec::new();
    let mut edges = Vec::new();
    for to in 0..count {
        let mut node = json!({ "name": format!("n{to}"), "request": request(world) });
        if let Some(retention_ms) = brief {
            node["request"]["policy"]["retention_ms"] = json!(retention_ms);
        }
        let mut upstreams = 0;
        for from in 0..to {
            if world.chance(400) {
                edges.push(json!({ "from": format!("n{from}"), "to": format!("n{to}") }));
                upstreams += 1;
            }
        }
        if world.chance(300) {
            let on_satisfied = world.pick(&["cancel_remaining", "let_run"]);
            // A quorum above its dependencies is refused.
            node["join"] = match world.between(0, upstreams.min(1)) {
                0 => json!({ "any_of": { "on_satisfied": on_satisfied } }),
                _ => json!({ "quorum": { "k": world.between(1, upstreams.min(2)), "on_satisfied": on_satisfied } }),
            };
        }
        nodes.push(node);
    }
    let flow = FlowId::mint(&world.profile.partitions, &world.mint());
    let args = json!({ "flow_id": flow, "nodes": nodes, "edges": edges });
    let generation = world.checker().generation;
    if let Some(Ok(outcome)) = world.insist::<CreateFlow>(&args).await {
        acknowledge(world, generation, executions_of(outcome).into_values());
        put(&mut world.desk().flows, flow);
    }
}

/// Adds a member and an edge to a flow, step by step.
async fn grow_graph(world: &Arc<World>) {
    let flows = world.desk().flows.clone();
    if flows.is_empty() {
        return;
    }
    let flow = world.pick(&flows);
    let id = ExecutionId::for_flow(&flow, &world.mint());
    let mut args = request(world);
    args["execution_id"] = json!(id);
    let by_hand = world.chance(300);
    if by_hand {
        // Not before it has its edges; a member that started takes none.
        args["delay_until"] = json!(world.store.now() + 2_000);
    } else {
        args["flow_id"] = json!(flow);
    }
    let generation = world.checker().generation;
    let Some(Ok(outcome)) = world.insist::<CreateExecution>(&args).await else { return };
    acknowledge(world, generation, [outcome.execution_id]);
    if by_hand {
        drop(world.insist::<AddExecutionToFlow>(&json!({ "flow_id": flow, "execution_id": id })).await);
    }
    let siblings: Vec<ExecutionId> =
        world.desk().executions.iter().filter(|other| other.partition == flow.partition).copied().collect();
    if siblings.is_empty() {
        return;
    }
    let upstream = world.pick(&siblings);
    let args = json!({ "flow_id": flow, "upstream": upstream, "downstream": id });
    if let Some(Ok(stage_dependency_edge::Outcome::Staged { edge_id, .. })) =
        world.insist::<StageDependencyEdge>(&args).await
    {
        drop(world.insist::<ApplyDependencyToChild>(&json!({ "flow_id": flow, "edge_id": edge_id })).await);
    }
}

fn executions_of(outcome: create_flow::Outcome) -> BTreeMap<String, ExecutionId> {
    match outcome {
        create_flow::Outcome::Created { executions, .. } | create_flow::Outcome::AlreadyExists { executions, .. } => {
            executions
        }
        create_flow::Outcome::Unknown(_) => BTreeMap::new(),
    }
}

fn acknowledge(world: &World, generation: u64, ids: impl IntoIterator<Item = ExecutionId>) {
    for id in ids {
        let mut checker = world.checker();
        if checker.generation == generation {
            checker.acknowledged_create(id);
        }
        put(&mut world.desk().executions, id);
    }
}

/// The fields of every submission.
pub(crate) fn request(world: &World) -> Value {
    let mut args = json!({
        "kind": "simulated",
        "lane": world.pick(&LANES),
        "priority": world.between(0, 3),
        "policy": policy(world),
    });
    if world.chance(200) {
        args["delay_until"] = json!(world.store.now() + world.between(0, 8_000));
    }
    if world.profile.charged && world.chance(600) {
        args["budget_ids"] = json!([BUDGETS[0]]);
    } else if world.chance(200) {
        args["budget_ids"] = json!([world.pick(&BUDGETS)]);
    }
    if args["budget_ids"].is_array() && world.chance(250) {
        // More would never fit into the smallest of them.
        let most = if args["budget_ids"][0] == BUDGETS[2] { 1 } else { 6 };
        args["policy"]["estimate"] = json!({ TOKENS: world.between(1, most) });
    }
    if world.profile.gated && world.chance(800) {
        args["quota_policy_id"] = json!(QUOTAS[0]);
    } else if world.chance(250) {
        args["quota_policy_id"] = json!(world.pick(&QUOTAS));
    }
    if world.chance(250) {
        args["required_capabilities"] = json!(world.pick(&CAPABILITIES));
    }
    if world.chance(200) {
        let limit = |key: &str| json!({ "key": key, "limit": world.between(1, 2) });
        let both = world.chance(300);
        args["concurrency"] =
            if both { json!([limit(KEYS[1]), limit(KEYS[0])]) } else { json!([limit(world.pick(&KEYS))]) };
    }
    if world.chance(300) {
        args["fair_key"] = json!(world.pick(&KEYS));
    }
    args
}

fn policy(world: &World) -> Value {
    let mut policy = json!({
        "retry": {
            "max_retries": world.between(0, 3),
            "backoff": { "fixed": { "delay_ms": world.between(0, 2_000) } },
            "non_retryable_categories": ["fatal"],
        },
        "max_reclaim_count": world.between(0, 4),
        "retention_ms": if world.chance(150) { world.between(1, 4_000) } else { world.between(20_000, 100_000_000) },
    });
    if world.chance(100) {
        policy["timeout"] = json!({ "attempt_timeout_ms": world.between(500, 5_000) });
    }
    if world.chance(100) {
        policy["timeout"] = json!({ "execution_deadline_ms": world.between(2_000, 20_000) });
    }
    policy
}
