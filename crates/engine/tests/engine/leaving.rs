//! Ended work leaves after its retention, with everything it has; definitions stay.

use crate::support::Harness;
use ff_core::execution::Execution;
use ff_core::flow::FlowState;
use ff_core::op::create_flow::Outcome as Created;
use ff_core::op::{
    CancelFlow, Complete, CreateBudget, CreateExecution, CreateFlow, CreatePendingWaitpoint, CreateQuota, CreateToken,
    DeliverSignal, GetBudget, GetExecution, GetFlow, GetQuota, ListTokens, PauseLane, ReplayExecution, RevokeToken,
};
use ff_core::{AttemptIndex, Code, Document, ExecutionId, Family, FlowId, Indexed, Partition, PublicState, limits};
use ff_engine::Options;
use ff_store::memory::{Call, Plan};
use ff_store::{Batch, Guard, Put, Store};
use serde_json::{Value, json};

const DAY_MS: u64 = 24 * 3600 * 1000;

async fn flow_of(h: &Harness, members: usize, more: Value) -> (FlowId, Vec<ExecutionId>) {
    let mut request = json!({ "kind": "test", "lane": "idle" });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let nodes: Vec<Value> = (0..members).map(|n| json!({ "name": format!("n{n}"), "request": request })).collect();
    match h.must::<CreateFlow>(json!({ "kind": "test", "nodes": nodes })).await {
        Created::Created { flow_id, executions, .. } => (flow_id, executions.into_values().collect()),
        other => panic!("{other:?}"),
    }
}

/// Documents, entries, blobs and logs of executions and flows. Events are kept by their own rule, and so is the evidence
/// of commands, which expires.
fn left(h: &Harness) -> usize {
    h.store.inspect(|contents| {
        let flows = contents.partitions().filter(|(partition, _)| partition.family == Family::Flow);
        let logs = |contents: &ff_store::memory::PartitionContents| {
            contents.logs().filter(|(key, page)| key.as_bytes() != b"E" && !page.records.is_empty()).count()
        };
        let documents = |contents: &ff_store::memory::PartitionContents| {
            contents.documents().filter(|(_, raw)| raw.expires_at.is_none()).count()
        };
        flows.map(|(_, c)| documents(c) + c.entries().count() + c.blobs().count() + logs(c)).sum()
    })
}

async fn is_gone(h: &Harness, flow: FlowId) -> bool {
    matches!(h.call::<GetFlow>(json!({ "flow_id": flow })).await, Err(error) if error.code == Code::FlowNotFound)
}

#[tokio::test(start_paused = true)]
async fn a_member_is_not_replayed_once_the_removal_of_its_flow_has_begun() {
    let (h, trouble) = Harness::with_trouble(Options { retention_ms: 60_000, ..Options::default() }).await;
    let (flow, members) = flow_of(&h, 300, json!({})).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    let ended_at = h.must::<GetFlow>(json!({ "flow_id": flow })).await.ended_at.unwrap();
    h.pass(u64::try_from(ended_at + 59_990 - h.engine.now()).unwrap()).await;
    trouble.begin(|call| match call {
        Call::Commit { .. } => {
            let pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(10)));
            Plan { after: Some(pause), ..Plan::default() }
        }
        Call::Read { .. } => Plan::default(),
    });
    let mut refused = Vec::new();
    let mut under_way = true;
    while under_way {
        let mut present = Vec::new();
        for id in &members {
            if h.call::<GetExecution>(json!({ "execution_id": id })).await.is_ok() {
                present.push(*id);
            }
        }
        if present.len() < members.len() {
            for id in present.iter().take(1) {
                refused.push(h.refused::<ReplayExecution>(json!({ "execution_id": id })).await);
            }
        }
        under_way = !present.is_empty();
        h.pass(5).await;
    }
    assert!(!refused.is_empty(), "somebody tried while the removal was under way");
    assert!(refused.iter().all(|code| *code == Code::ExecutionNotFound), "{refused:?}");
    trouble.end();
    h.pass(1_000).await;
    assert_eq!(left(&h), 0, "nothing is left behind");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_replayed_before_the_removal_begins_keeps_its_whole_flow() {
    let h = Harness::with(Options { retention_ms: 60_000, ..Options::default() }).await;
    let (flow, members) = flow_of(&h, 100, json!({})).await;
    h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    h.pass(59_000).await;
    h.must::<ReplayExecution>(json!({ "execution_id": members[0] })).await;
    h.pass(600_000).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flow })).await.counts.total(), 100);
    h.finish().await;
}

/// Changes an execution behind the engine's back.
async fn tamper(h: &Harness, id: ExecutionId, change: impl FnOnce(&mut Execution)) {
    let store: &dyn Store = h.store.as_ref();
    let key = Execution::key_of(&id);
    let found = store.documents(Partition::flow(0), vec![key.clone()]).await.unwrap().remove(0).unwrap();
    let mut execution = Execution::decode(&found.body).unwrap();
    change(&mut execution);
    let mut batch = Batch::new(ff_core::CommandId::mint(&ff_core::Mint { now_ms: 9, random: [9; 10] }));
    batch.guards.push(Guard::Version(key.clone(), found.version));
    batch.puts.push(Put {
        key: execution.key(),
        body: execution.encode().into(),
        fence: found.fence,
        expires_at: None,
    });
    let outcomes = store.commit(Partition::flow(0), [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
}

#[tokio::test(start_paused = true)]
async fn executions_with_very_many_attempts_are_removed() {
    let h = Harness::start().await;
    let retention = json!({ "policy": { "retention_ms": 60_000 } });
    let solo = h.submit(retention.clone()).await;
    let (flow, members) = flow_of(&h, 1, json!({ "policy": { "retention_ms": 60_000 }, "lane": "default" })).await;
    for _ in 0..2 {
        let task = h.claim().await.unwrap();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.pass(10).await;
    let attempts = u32::try_from(limits::COMMIT_OPERATIONS_MAX).unwrap();
    for id in [solo, members[0]] {
        tamper(&h, id, |execution| execution.attempt.as_mut().unwrap().index = AttemptIndex(attempts)).await;
    }
    h.pass(70_000).await;
    assert_eq!(h.refused::<GetExecution>(json!({ "execution_id": solo })).await, Code::ExecutionNotFound);
    assert!(is_gone(&h, flow).await);
    assert_eq!(left(&h), 0, "nothing is left behind");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_of_several_commits_goes_on_by_itself_and_allows_no_replay() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let id = h.submit(json!({ "policy": { "retention_ms": 60_000 } })).await;
    let task = h.claim().await.unwrap();
    let args = json!({ "execution_id": id, "fence": task.fence, "waitpoint_key": "k" });
    let waitpoint = h.must::<CreatePendingWaitpoint>(args).await;
    for number in 0..3 * limits::RESOLVE_CHUNK {
        let signal = json!({
            "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id, "token": waitpoint.token,
            "name": format!("s{number}"),
        });
        h.must::<DeliverSignal>(signal).await;
    }
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(59_000).await;
    trouble.begin(|call| match call {
        Call::Commit { .. } => {
            let pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(10)));
            Plan { after: Some(pause), ..Plan::default() }
        }
        Call::Read { .. } => Plan::default(),
    });
    h.pass(1_015).await;
    let code = h.refused::<ReplayExecution>(json!({ "execution_id": id })).await;
    assert_eq!(code, Code::ExecutionNotFound, "what is half gone does not come back");
    h.pass(2_000).await;
    assert_eq!(left(&h), 0, "the rest goes without waiting for a sweep");
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_is_kept_as_long_as_the_longest_of_its_members_asks() {
    let h = Harness::start().await;
    let (short, _) = flow_of(&h, 2, json!({ "policy": { "retention_ms": 60_000 } })).await;
    let (default, _) = flow_of(&h, 2, json!({})).await;
    let mixed = match h.must::<CreateFlow>(json!({ "kind": "test" })).await {
        Created::Created { flow_id, .. } => flow_id,
        other => panic!("{other:?}"),
    };
    for days in [1u64, 10, 2] {
        let policy = json!({ "retention_ms": days * DAY_MS });
        h.submit(json!({ "flow_id": mixed, "lane": "idle", "policy": policy })).await;
    }
    for flow in [short, default, mixed] {
        h.must::<CancelFlow>(json!({ "flow_id": flow, "wait": true })).await;
    }
    h.pass(59_000).await;
    assert!(!is_gone(&h, short).await);
    h.pass(2_000).await;
    assert!(is_gone(&h, short).await && !is_gone(&h, default).await);
    h.pass(7 * DAY_MS).await;
    assert!(is_gone(&h, default).await && !is_gone(&h, mixed).await);
    h.pass(3 * DAY_MS).await;
    assert!(is_gone(&h, mixed).await);
    assert_eq!(left(&h), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_stays_empty_leaves_and_one_that_is_filled_stays() {
    let h = Harness::with(Options { retention_ms: 60_000, ..Options::default() }).await;
    let mut flows = Vec::new();
    for _ in 0..2 {
        let Created::Created { flow_id, .. } = h.must::<CreateFlow>(json!({ "kind": "test" })).await else { panic!() };
        flows.push(flow_id);
    }
    h.pass(59_000).await;
    let member = h.submit(json!({ "flow_id": flows[1] })).await;
    h.pass(2_000).await;
    assert!(is_gone(&h, flows[0]).await, "nobody ever used it");
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "test", "flow_id": flows[0] })).await, Code::FlowNotFound);
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": flows[1] })).await.state, FlowState::Running);
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": member, "fence": task.fence })).await;
    h.pass(61_000).await;
    assert!(is_gone(&h, flows[1]).await);
    assert_eq!(left(&h), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_cancelled_alone_leaves_with_what_it_paused() {
    let h = Harness::with(Options { retention_ms: 600_000, ..Options::default() }).await;
    let (quiet, paused) = flow_of(&h, 250, json!({})).await;
    let (busy, members) = flow_of(&h, 2, json!({ "lane": "default" })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 3_600_000 })).await.unwrap();
    for flow in [quiet, busy] {
        h.must::<CancelFlow>(json!({ "flow_id": flow, "policy": "flow_only", "wait": true })).await;
    }
    assert_eq!(h.state(&paused[0]).await, PublicState::Waiting);
    h.pass(599_000).await;
    assert_eq!(h.must::<GetFlow>(json!({ "flow_id": quiet })).await.counts.of(PublicState::Waiting), 250);
    h.pass(2_000).await;
    assert!(is_gone(&h, quiet).await, "its retention is over, and nothing of it ran");
    // Members that never started are cancelled; the running member comes to its own end, and its retention begins
    // there.
    let other = members.iter().find(|id| **id != task.execution_id).unwrap();
    assert_eq!(h.state(other).await, PublicState::Cancelled);
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(599_000).await;
    assert_eq!(h.state(&task.execution_id).await, PublicState::Completed);
    h.pass(2_000).await;
    assert!(is_gone(&h, busy).await);
    assert_eq!(left(&h), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_ended_under_a_flow_cancelled_alone_is_kept_for_its_retention() {
    let h = Harness::with(Options { retention_ms: 600_000, ..Options::default() }).await;
    let (flow, members) = flow_of(&h, 2, json!({ "lane": "default" })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 3_600_000 })).await.unwrap();
    h.must::<CancelFlow>(json!({ "flow_id": flow, "policy": "flow_only", "wait": true })).await;
    h.pass(400_000).await;
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(300_000).await;
    assert_eq!(h.state(&task.execution_id).await, PublicState::Completed, "it ended five minutes ago");
    let other = members.iter().find(|id| **id != task.execution_id).unwrap();
    assert_eq!(h.state(other).await, PublicState::Cancelled);
    h.pass(301_000).await;
    assert!(is_gone(&h, flow).await);
    assert_eq!(left(&h), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn revoked_and_expired_tokens_leave_and_definitions_stay() {
    let h = Harness::start().await;
    for (name, more) in [("gone", json!({})), ("short", json!({ "expires_in_ms": 1_000 })), ("live", json!({}))] {
        let mut args = json!({ "name": name, "role": "reader" });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        h.must::<CreateToken>(args).await;
    }
    h.must::<RevokeToken>(json!({ "name": "gone" })).await;
    h.must::<CreateBudget>(json!({ "name": "b", "dimensions": { "tokens": { "hard": 5 } } })).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 5 })).await;
    h.must::<PauseLane>(json!({ "lane": "l" })).await;
    let names = async || {
        let page = h.must::<ListTokens>(json!({})).await;
        page.items.into_iter().map(|token| token.name).collect::<Vec<_>>()
    };
    h.pass(6 * DAY_MS).await;
    assert_eq!(names().await, ["gone", "live", "short"], "people may still look at them");
    h.pass(2 * DAY_MS).await;
    assert_eq!(names().await, ["live"]);
    h.pass(30 * DAY_MS).await;
    assert_eq!(names().await, ["live"]);
    h.must::<GetBudget>(json!({ "name": "b" })).await;
    h.must::<GetQuota>(json!({ "name": "q" })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_given_to_a_new_token_is_not_forgotten_with_the_old_one() {
    let h = Harness::start().await;
    h.must::<CreateToken>(json!({ "name": "ci", "role": "reader" })).await;
    h.must::<RevokeToken>(json!({ "name": "ci" })).await;
    h.pass(DAY_MS).await;
    let secret = h.must::<CreateToken>(json!({ "name": "ci", "role": "reader" })).await.secret.0;
    h.pass(30 * DAY_MS).await;
    h.engine.authenticate(&secret).await.unwrap();
    h.finish().await;
}
