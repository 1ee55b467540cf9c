//! A store that forgets its last commits while an engine is in the middle of something: what the engine remembers of its
//! own progress must not outlive the commits it rests on.

use std::time::Duration;

use crate::support::{Harness, Trouble};
use ff_core::execution::{Execution, Hold};
use ff_core::index::{Indexed, kind};
use ff_core::op::{CancelFlow, Complete, CreateExecutions, CreateFlow, CreateSubscription, GetFlow, create_flow};
use ff_core::subscription::SubscriptionCursor;
use ff_core::{
    CommandId, Document, Entry, ExecutionId, FlowId, Partition, PartitionConfig, PublicState, SubscriptionId,
};
use ff_engine::Options;
use ff_store::memory::{Call, PartitionContents, Plan};
use ff_store::{Batch, EntryChange, Fence, Guard, Put, Query, Store};
use serde_json::{Value, json};
use uuid::Uuid;

/// When the commits under test are sent, and when the store forgets them.
const FIRST_MS: u64 = 100;
const FORGETS_MS: u64 = 300;
const NEXT_MS: u64 = 1_000;
const HOUR_MS: u64 = 3_600_000;

fn options() -> Options {
    let partitions = Some(PartitionConfig { flow: 1, budget: 1, quota: 1 });
    Options { partitions, chunk_max: 2, ..Options::default() }
}

fn later(ms: u64) -> Plan {
    Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms)))), ..Plan::default() }
}

/// From now on the first commit of this kind waits a moment, in which the test remembers, and the one after it until the
/// store has forgotten the first.
fn delay(trouble: &Trouble, mut concerns: impl FnMut(&Batch) -> bool + Send + 'static) {
    let mut seen = 0;
    trouble.begin(move |call| {
        let Call::Commit { batches, .. } = call else { return Plan::default() };
        if !batches.iter().any(&mut concerns) {
            return Plan::default();
        }
        seen += 1;
        match seen {
            1 => later(FIRST_MS),
            2 => later(NEXT_MS),
            _ => Plan::default(),
        }
    });
}

/// The store forgets what it was told between two moments.
async fn forget(h: &Harness) {
    h.pass(FIRST_MS / 2).await;
    let remembered = h.store.snapshot();
    h.pass(FORGETS_MS).await;
    h.store.restore(remembered);
    h.pass(2 * NEXT_MS).await;
}

async fn flow_of(h: &Harness, nodes: Value, edges: Value) -> (FlowId, Vec<ExecutionId>) {
    let created = h.must::<CreateFlow>(json!({ "nodes": nodes, "edges": edges })).await;
    let create_flow::Outcome::Created { flow_id, executions, .. } = created else { panic!("{created:?}") };
    (flow_id, executions.into_values().collect())
}

#[tokio::test(start_paused = true)]
async fn edges_that_were_resolved_and_forgotten_are_resolved_again() {
    let (h, trouble) = Harness::with_trouble(options()).await;
    let names: Vec<String> = (0..5).map(|number| format!("child-{number}")).collect();
    let request = json!({ "kind": "test" });
    let mut nodes = vec![json!({ "name": "a", "request": request })];
    nodes.extend(names.iter().map(|name| json!({ "name": name, "request": request })));
    let edges: Vec<Value> = names.iter().map(|name| json!({ "from": "a", "to": name })).collect();
    let (_, members) = flow_of(&h, json!(nodes), json!(edges)).await;
    let task = h.claim().await.unwrap();
    delay(&trouble, |batch| batch.puts.iter().any(|put| put.key.kind() == kind::EDGE));
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    forget(&h).await;
    trouble.end();
    h.pass(5_000).await;
    for id in members.iter().filter(|id| **id != task.execution_id) {
        assert_eq!(h.state(id).await, PublicState::Waiting, "{id} waits for a worker, and for no edge");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn members_that_were_told_of_a_cancellation_and_forgot_it_are_told_again() {
    let (h, trouble) = Harness::with_trouble(options()).await;
    let nodes: Vec<Value> =
        (0..3).map(|number| json!({ "name": number.to_string(), "request": { "kind": "test" } })).collect();
    let (flow, _) = flow_of(&h, json!(nodes), json!([])).await;
    let paused = |h: &Harness| {
        h.store.inspect(|contents| {
            let documents = contents.partition(Partition::flow(0)).unwrap().documents();
            let executions = documents.filter_map(|(_, raw)| Execution::decode(&raw.body).ok());
            executions.filter(|execution| execution.holds.has(Hold::Operator)).count()
        })
    };
    assert_eq!(paused(&h), 0);
    // The commit that tells the last members, and the one that takes the mark from the flow.
    let mut told = false;
    delay(&trouble, move |batch| {
        let puts = |of| batch.puts.iter().filter(|put| put.key.kind() == of).count();
        let tells = puts(kind::EXECUTION) == 2;
        let ends = told && puts(kind::FLOW) > 0;
        told |= tells;
        tells || ends
    });
    h.must::<CancelFlow>(json!({ "flow_id": flow, "policy": "flow_only", "reason": "a mistake" })).await;
    forget(&h).await;
    trouble.end();
    h.pass(5_000).await;
    assert_eq!(paused(&h), 3, "{:?}", h.must::<GetFlow>(json!({ "flow_id": flow })).await);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_got_the_number_of_a_forgotten_one_is_delivered() {
    let (h, trouble) = Harness::with_trouble(options()).await;
    let target = json!({ "execution": { "kind": "told", "lane": "told" } });
    let wanted = json!({ "event_types": ["completed"] });
    h.must::<CreateSubscription>(json!({ "name": "ends", "target": target, "filter": wanted })).await;
    h.submit(json!({ "lane": "other" })).await;
    h.pass(3_000).await;
    let remembered = h.store.snapshot();
    // The look at what happened is answered when the store has forgotten it.
    let mut slow = false;
    trouble.begin(move |call| {
        let reads = matches!(call, Call::Read { queries, .. } if queries.iter().any(reads_log));
        if !reads || std::mem::replace(&mut slow, true) {
            return Plan::default();
        }
        let after = tokio::time::sleep(Duration::from_millis(NEXT_MS));
        Plan { after: Some(Box::pin(after)), ..Plan::default() }
    });
    let passed_over: Vec<Value> = (0..2).map(|_| json!({ "kind": "test", "lane": "other" })).collect();
    h.must::<CreateExecutions>(json!({ "executions": passed_over })).await;
    h.pass(FORGETS_MS).await;
    h.store.restore(remembered);
    h.pass(2 * NEXT_MS).await;
    trouble.end();
    for _ in 0..2 {
        h.submit(json!({})).await;
        let task = h.claim().await.unwrap();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    for _ in 0..2 {
        let told = h.claim_with(json!({ "lanes": ["told"] })).await;
        assert!(told.is_some(), "both ends are told");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_the_store_forgot_with_its_cursor_is_made_again() {
    let (h, trouble) = Harness::with_trouble(options()).await;
    let target = json!({ "execution": { "kind": "told", "lane": "told" } });
    let wanted = json!({ "event_types": ["completed"] });
    h.must::<CreateSubscription>(json!({ "name": "ends", "target": target, "filter": wanted })).await;
    h.submit(json!({})).await;
    h.pass(3_000).await;
    // The look that follows the delivery is answered when the store has forgotten the delivery.
    let (mut delivered, mut looked) = (false, false);
    trouble.begin(move |call| match call {
        Call::Commit { batches, .. } if !delivered && batches.iter().any(writes_cursor) => {
            delivered = true;
            later(FIRST_MS)
        }
        Call::Read { queries, .. } if delivered && !looked && queries.iter().any(reads_log) => {
            looked = true;
            let after = tokio::time::sleep(Duration::from_millis(NEXT_MS));
            Plan { after: Some(Box::pin(after)), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    forget(&h).await;
    trouble.end();
    let told = h.claim_with(json!({ "lanes": ["told"] })).await;
    assert!(told.is_some(), "its event is still there");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn cursors_whose_subscription_is_gone_leave_every_partition_within_an_hour() {
    let partitions = PartitionConfig { flow: 3, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let cursor = SubscriptionCursor::at_end(SubscriptionId(Uuid::from_u128(7)), 1);
    for partition in [0, 1, 2].map(Partition::flow) {
        let entries = cursor.index_entries(0).into_iter();
        let batch = Batch {
            guards: vec![Guard::Absent(cursor.key())],
            puts: vec![Put {
                key: cursor.key(),
                body: cursor.encode().into(),
                fence: Fence::default(),
                expires_at: None,
            }],
            entries: entries.map(|Entry { index, member, score }| EntryChange::Set { index, member, score }).collect(),
            ..Batch::new(CommandId(Uuid::from_u128(1)))
        };
        h.store.commit(partition, [batch].into()).await.unwrap();
    }
    let key = cursor.key();
    let holds_one = |partition: &PartitionContents| partition.documents().any(|(found, _)| *found == key);
    let cursors = || h.store.inspect(|all| all.partitions().filter(|(_, partition)| holds_one(partition)).count());
    assert_eq!(cursors(), 3);
    h.pass(HOUR_MS / 2).await;
    assert!((1..3).contains(&cursors()), "one partition after another, {} are left", cursors());
    h.pass(HOUR_MS / 2).await;
    assert_eq!(cursors(), 0);
    h.finish().await;
}

fn writes_cursor(batch: &Batch) -> bool {
    batch.puts.iter().any(|put| put.key.kind() == kind::CURSOR)
}

fn reads_log(query: &Query) -> bool {
    matches!(query, Query::Log { .. })
}
