//! Background work takes turns: what is large or cannot be reached holds up nothing else in its partition.

use crate::support::Harness;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::{CancelFlow, Claim, Complete, CreateFlow, CreateQuota, GetFlow, GetQuota, ListExecutions};
use ff_core::{Code, ExecutionId, Family, FlowId, PartitionConfig, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Pause, Plan};
use serde_json::{Value, json};

/// Members of a flow that takes tens of commits to go through.
const MANY: usize = 1_000;
/// How long a store takes for a commit here, in virtual milliseconds.
const COMMIT_MS: u64 = 10;
/// A few commits, and far fewer than a large flow needs.
const SOON_MS: i64 = 100;

fn later(ms: u64) -> Option<Pause> {
    Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(ms))))
}

fn slow_commits(call: Call<'_>) -> Plan {
    match call {
        Call::Commit { partition, .. } if partition.family == Family::Flow => {
            Plan { before: later(COMMIT_MS), ..Plan::default() }
        }
        _ => Plan::default(),
    }
}

async fn create(h: &Harness, nodes: Vec<Value>, edges: Value) -> (FlowId, Vec<ExecutionId>) {
    match h.must::<CreateFlow>(json!({ "nodes": nodes, "edges": edges })).await {
        Created::Created { flow_id, executions, .. } => (flow_id, executions.into_values().collect()),
        other => panic!("{other:?}"),
    }
}

fn node(name: &str, more: Value) -> Value {
    let mut request = json!({ "kind": "test" });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "name": name, "request": request })
}

/// A flow of many members that no worker claims.
async fn large(h: &Harness) -> (FlowId, Vec<ExecutionId>) {
    create(h, (0..MANY).map(|n| node(&format!("n{n}"), json!({ "lane": "idle" }))).collect(), json!([])).await
}

/// Claims one execution of a lane and says how long that took, in virtual time.
async fn timed_claim(h: &Harness, lane: &str, id: ExecutionId) -> i64 {
    let began = h.engine.now();
    let args = json!({ "instance_id": "w-1", "lanes": [lane], "wait_ms": 20_000 });
    let task = h.must::<Claim>(args).await.tasks.pop().expect("it can be claimed in the end");
    assert_eq!(task.execution_id, id);
    h.engine.now() - began
}

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_a_large_flow_holds_up_no_other_mark() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let (flow, members) = large(&h).await;
    let (_, pair) =
        create(&h, vec![node("a", json!({})), node("b", json!({}))], json!([{ "from": "a", "to": "b" }])).await;
    let task = h.claim().await.unwrap();
    trouble.begin(slow_commits);
    h.must::<CancelFlow>(json!({ "flow_id": flow })).await;
    h.must::<Complete>(json!({ "execution_id": pair[0], "fence": task.fence })).await;
    let took = timed_claim(&h, "default", pair[1]).await;
    assert!(took <= SOON_MS, "the downstream waited {took} ms for somebody else's flow");
    let left = h.must::<GetFlow>(json!({ "flow_id": flow })).await.counts.of(PublicState::Waiting);
    assert!(left > 0, "the cancellation is still being carried out");
    h.pass(2_000).await;
    for id in members {
        assert_eq!(h.state(&id).await, PublicState::Cancelled);
    }
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_removal_of_a_large_flow_holds_up_no_timer_and_no_mark() {
    let (h, trouble) = Harness::with_trouble(Options { retention_ms: 60_000, ..Options::default() }).await;
    let (flow, _) = large(&h).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    let ended_at = h.must::<GetFlow>(json!({ "flow_id": flow })).await.ended_at.unwrap();
    let due = ended_at + 60_000;
    let delayed = h.submit(json!({ "delay_until": due + 30, "lane": "timed" })).await;
    let (_, pair) =
        create(&h, vec![node("a", json!({})), node("b", json!({}))], json!([{ "from": "a", "to": "b" }])).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 600_000 })).await.unwrap();
    h.pass(u64::try_from(due - h.engine.now()).unwrap()).await;
    trouble.begin(slow_commits);
    let took = timed_claim(&h, "timed", delayed).await;
    assert!(took <= 30 + SOON_MS, "the delayed execution waited {took} ms");
    h.must::<Complete>(json!({ "execution_id": pair[0], "fence": task.fence })).await;
    let took = timed_claim(&h, "default", pair[1]).await;
    assert!(took <= SOON_MS, "the downstream waited {took} ms");
    assert_ne!(h.must::<ListExecutions>(json!({ "state": ["cancelled"] })).await.items, [], "it is under way");
    h.pass(2_000).await;
    assert_eq!(h.must::<ListExecutions>(json!({ "state": ["cancelled"] })).await.items, []);
    assert_eq!(h.refused::<GetFlow>(json!({ "flow_id": flow })).await, Code::FlowNotFound);
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn edges_do_not_wait_for_a_quota_that_cannot_be_reached() {
    let options = Options { partitions: Some(PartitionConfig::STANDALONE), ..Options::default() };
    let (h, trouble) = Harness::with_trouble(options).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 5 })).await;
    let nodes = vec![node("a", json!({ "quota_policy_id": "q" })), node("b", json!({}))];
    let (_, pair) = create(&h, nodes, json!([{ "from": "a", "to": "b" }])).await;
    let task = h.claim().await.unwrap();
    trouble.begin(|call| match call {
        Call::Read { partition, .. } | Call::Commit { partition, .. } if partition.family == Family::Quota => {
            Plan { before: later(5_000), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    h.must::<Complete>(json!({ "execution_id": pair[0], "fence": task.fence })).await;
    let took = timed_claim(&h, "default", pair[1]).await;
    assert!(took <= SOON_MS, "the downstream waited {took} ms for a quota of its upstream");
    trouble.end();
    h.pass(60_000).await;
    assert_eq!(h.must::<GetQuota>(json!({ "name": "q" })).await.in_use, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn slots_of_one_quota_do_not_wait_for_another_one() {
    let options = Options { partitions: Some(PartitionConfig::STANDALONE), ..Options::default() };
    let (h, trouble) = Harness::with_trouble(options).await;
    let home = |name: &str| h.engine.partitions().quota_partition("default", name);
    let silent = home("q0");
    let other = (1..).map(|n| format!("q{n}")).find(|name| home(name) != silent).unwrap();
    let mut tasks = Vec::new();
    // The members of one flow live in one partition, so that they meet in one queue of marks.
    let mut nodes = Vec::new();
    for (number, quota) in ["q0", "q0", "q0", &other].into_iter().enumerate() {
        nodes.push(node(&format!("n{number}"), json!({ "quota_policy_id": quota })));
    }
    for name in ["q0", &other] {
        h.must::<CreateQuota>(json!({ "name": name, "max_concurrent": 5 })).await;
    }
    create(&h, nodes, json!([])).await;
    for _ in 0..4 {
        tasks.push(h.claim().await.unwrap());
    }
    trouble.begin(move |call| match call {
        Call::Read { partition, .. } | Call::Commit { partition, .. } if partition == silent => {
            Plan { before: later(5_000), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    for task in tasks {
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.pass(100).await;
    assert_eq!(h.must::<GetQuota>(json!({ "name": other })).await.in_use, 0, "its slot came back at once");
    trouble.end();
    h.pass(60_000).await;
    assert_eq!(h.must::<GetQuota>(json!({ "name": "q0" })).await.in_use, 0);
    h.finish().await;
}
