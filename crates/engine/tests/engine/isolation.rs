//! A caller that goes away, a partition that does not answer, a reply that is lost: no other caller has to wait for it.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Harness;
use ff_core::execution::Execution;
use ff_core::index::Due;
use ff_core::op::parts::RenewalOutcome;
use ff_core::op::{Complete, CreateExecution, CreateFlow, RenewLeases, create_flow};
use ff_core::{ExecutionId, Partition, PartitionConfig};
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_store::memory::{Call, Fault, Plan};
use ff_store::{Batch, EntryChange, Fence, Guard, Put, Store};
use serde_json::{Value, json};

const SIXTEEN: PartitionConfig = PartitionConfig { flow: 16, budget: 1, quota: 1 };

fn later(ms: u64) -> Option<ff_store::memory::Pause> {
    Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms))))
}

/// Executions in two different partitions.
async fn apart(h: &Harness, more: Value) -> (ExecutionId, ExecutionId) {
    let first = h.submit(more.clone()).await;
    loop {
        let second = h.submit(more.clone()).await;
        if second.partition() != first.partition() {
            return (first, second);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_given_out_although_its_submitter_went_away_during_the_commit() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    trouble.begin(|call| match call {
        Call::Commit { .. } => Plan { after: later(50), ..Plan::default() },
        Call::Read { .. } => Plan::default(),
    });
    let left = tokio::time::timeout(Duration::from_millis(10), h.submit(json!({}))).await;
    assert!(left.is_err(), "its commit takes longer");
    trouble.end();
    let task = h.claim().await.expect("it was submitted");
    // An end that others wait for.
    let flow = json!({
        "nodes": [{ "name": "a", "request": { "kind": "test" } }, { "name": "b", "request": { "kind": "test" } }],
        "edges": [{ "from": "a", "to": "b" }],
    });
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.must::<CreateFlow>(flow).await;
    let first = h.claim().await.unwrap();
    trouble.begin(|call| match call {
        Call::Commit { .. } => Plan { after: later(50), ..Plan::default() },
        Call::Read { .. } => Plan::default(),
    });
    let complete = h.must::<Complete>(json!({ "execution_id": first.execution_id, "fence": first.fence }));
    assert!(tokio::time::timeout(Duration::from_millis(10), complete).await.is_err());
    trouble.end();
    let second = h.claim().await.expect("the end of the first is told to the second");
    h.must::<Complete>(json!({ "execution_id": second.execution_id, "fence": second.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_although_a_partition_does_not_answer() {
    let (h, trouble) = Harness::with_trouble(Options { partitions: Some(SIXTEEN), ..Options::default() }).await;
    let (first, second) = apart(&h, json!({})).await;
    let mut leases = Vec::new();
    while leases.len() < 2 {
        let task = h.claim().await.unwrap();
        if task.execution_id == first || task.execution_id == second {
            leases.push(json!({ "execution_id": task.execution_id, "fence": task.fence }));
        } else {
            h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
        }
    }
    let silent = first.partition();
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. } | Call::Read { partition, .. } if partition == silent => {
            Plan { before: later(60_000), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let began = h.engine.now();
    let renewed = h.must::<RenewLeases>(json!({ "leases": leases })).await.results;
    assert!(h.engine.now() - began < 5_000, "{} ms", h.engine.now() - began);
    for outcome in renewed {
        match outcome {
            RenewalOutcome::Renewed { execution_id, .. } => assert_eq!(execution_id, second),
            RenewalOutcome::Failed { execution_id, .. } => assert_eq!(execution_id, first),
            RenewalOutcome::Lost { .. } | RenewalOutcome::Unknown(_) => panic!("{outcome:?}"),
        }
    }
    trouble.end();
    h.pass(120_000).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn timers_fire_although_a_partition_does_not_answer() {
    let (h, trouble) = Harness::with_trouble(Options { partitions: Some(SIXTEEN), ..Options::default() }).await;
    let due = h.engine.now() + 1_000;
    let (first, second) = apart(&h, json!({ "delay_until": due })).await;
    let silent = first.partition();
    trouble.begin(move |call| match call {
        Call::Read { partition, .. } if partition == silent => Plan { before: later(60_000), ..Plan::default() },
        _ => Plan::default(),
    });
    h.pass(1_100).await;
    // The timers look for what was due; an entry that comes due meanwhile does not wait for that.
    let soon = h.submit(json!({ "delay_until": h.engine.now() + 500, "execution_id": beside(&h, &second) })).await;
    let mut taken = Vec::new();
    while !taken.contains(&soon) {
        let task = h.claim_with(json!({ "wait_ms": 5_000 })).await.expect("it is due");
        taken.push(task.execution_id);
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    assert!(h.engine.now() - due < 5_000, "{} ms late", h.engine.now() - due);
    trouble.end();
    h.pass(120_000).await;
    while let Some(task) = h.claim_with(json!({ "wait_ms": 100 })).await {
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn timers_fire_although_others_before_them_cannot() {
    let h = Harness::start().await;
    let damaged = (0..150u8).map(|number| {
        let mint = ff_core::id::Mint { now_ms: h.engine.now(), random: [number; 10] };
        let key = Execution::key_of(&ExecutionId::in_partition(Partition::flow(0), &mint));
        let (index, member) = (ff_core::index::due(), Due::Timer.member(&key));
        Batch {
            guards: vec![Guard::Absent(key.clone())],
            puts: vec![Put { key, body: "damaged".into(), fence: Fence::default(), expires_at: None }],
            entries: vec![EntryChange::Set { index, member, score: h.engine.now() + 100 }],
            ..Batch::new(ff_core::CommandId::mint(&mint))
        }
    });
    h.store.commit(Partition::flow(0), damaged.collect()).await.unwrap();
    let id = h.submit(json!({ "delay_until": h.engine.now() + 1_000 })).await;
    let task = h.claim_with(json!({ "wait_ms": 5_000 })).await.expect("it is due after a second");
    assert_eq!(task.execution_id, id);
    // The damaged document stays, so the state is not checked.
    h.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_told_to_the_caller_soon() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    trouble.begin(|call| match call {
        // As a store with a time limit of five seconds for a request.
        Call::Commit { .. } => Plan { before: later(5_000), fault: Some(Fault::LostRequest), ..Plan::default() },
        Call::Read { .. } => Plan::default(),
    });
    let began = h.engine.now();
    assert_eq!(h.refused::<CreateExecution>(json!({ "kind": "test" })).await, ff_core::Code::Unavailable);
    assert!(h.engine.now() - began < 10_000, "{} ms", h.engine.now() - began);
    trouble.end();
    h.finish().await;
}

/// An id in the partition of another.
fn beside(h: &Harness, id: &ExecutionId) -> ExecutionId {
    let mint = ff_core::id::Mint { now_ms: h.engine.now(), random: [7; 10] };
    ExecutionId::in_partition(id.partition(), &mint)
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_was_lost_is_ours_although_its_flow_changed_since() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let node = json!({ "nodes": [{ "name": "a", "request": { "kind": "test" } }] });
    let created = h.must::<CreateFlow>(node).await;
    let create_flow::Outcome::Created { flow_id, .. } = created else { panic!("{created:?}") };
    let mut lost = false;
    trouble.begin(move |call| {
        let Call::Commit { batches, .. } = call else { return Plan::default() };
        if lost || batches.iter().all(|batch| batch.leases.is_empty()) {
            return Plan::default();
        }
        lost = true;
        Plan { fault: Some(Fault::LostReply), after: later(50), ..Plan::default() }
    });
    let change = async {
        h.pass(10).await;
        h.must::<CreateExecution>(json!({ "kind": "other", "lane": "elsewhere", "flow_id": flow_id })).await
    };
    let (task, _) = tokio::join!(h.claim_with(json!({ "wait_ms": 2_000 })), change);
    let task = task.expect("the claim was applied");
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_services_finds_what_was_queued_before_it_came() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let options = Options { services: false, ..Options::default() };
    let engine = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), options).await.unwrap();
    let other = Harness { engine, store: h.store.clone(), caller: ff_engine::Caller::system() };
    let task = other.claim().await.expect("it waits");
    assert_eq!(task.execution_id, id);
    other.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_counts_although_the_id_lies_in_another_partition() {
    let h = Harness::with(Options { partitions: Some(SIXTEEN), ..Options::default() }).await;
    let home = h.engine.partitions().key_partition("default", "once");
    let elsewhere = |from: u8| {
        let partition = (u16::from(from)..16).map(Partition::flow).find(|partition| *partition != home).unwrap();
        let mint = ff_core::id::Mint { now_ms: h.engine.now(), random: [from; 10] };
        ExecutionId::in_partition(partition, &mint)
    };
    let (first, second) = (elsewhere(0), elsewhere(8));
    let args = |id: Option<ExecutionId>| json!({ "kind": "test", "idempotency_key": "once", "execution_id": id });
    let created = h.must::<CreateExecution>(args(Some(first))).await;
    assert_eq!((created.execution_id, created.duplicate), (first, false));
    for again in [Some(first), Some(second), None] {
        let answer = h.must::<CreateExecution>(args(again)).await;
        assert_eq!((answer.execution_id, answer.duplicate), (first, true), "{again:?}");
        assert_eq!(answer.public_state, ff_core::PublicState::Waiting);
    }
    let executions = h.store.inspect(|contents| {
        let documents = SIXTEEN.all().filter_map(|partition| contents.partition(partition));
        documents.flat_map(|one| one.documents()).filter(|(key, _)| **key == Execution::key_of(&first)).count()
    });
    assert_eq!(executions, 1);
    assert!(h.claim().await.is_some() && h.claim_with(json!({ "wait_ms": 0 })).await.is_none());
    h.pass(600_000).await;
    h.finish().await;
}
