//! Counts of executions, the list of namespaces, and inputs read back.

use std::sync::atomic::Ordering;

use crate::support::Harness;
use ff_core::op::{Complete, Count, CreateBudget, CreateExecutions, GetCounts, GetInput, ListNamespaces};
use ff_core::{Code, ExecutionId, Mint, Partition, PartitionConfig, PublicState, limits};
use ff_engine::{Caller, Options};
use serde_json::json;

async fn many_partitions() -> Harness {
    let partitions = PartitionConfig { flow: 4, budget: 2, quota: 1 };
    Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await
}

#[tokio::test(start_paused = true)]
async fn executions_are_counted_by_state_and_waiting_ones_by_lane() {
    let h = many_partitions().await;
    h.submit(json!({})).await;
    for lane in ["default", "slow", "slow"] {
        h.submit(json!({ "lane": lane })).await;
    }
    h.submit(json!({ "namespace": "elsewhere" })).await;
    h.claim().await.unwrap();
    let counts = h.must::<GetCounts>(json!({})).await;
    let exactly = |value| Count { value, more: false };
    assert_eq!(counts.states.len(), PublicState::ALL.len());
    assert_eq!(counts.states[&PublicState::Waiting], exactly(3));
    assert_eq!(counts.states[&PublicState::Active], exactly(1));
    assert_eq!(counts.states[&PublicState::Failed], exactly(0));
    let lane =
        |lane: &str| counts.waiting.iter().filter(|one| one.lane == lane).map(|one| one.count.value).sum::<u64>();
    assert_eq!((lane("default"), lane("slow")), (1, 2));
    assert!(counts.waiting.iter().all(|one| one.next_created_at.is_some() && one.kind.as_deref() == Some("test")));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn executions_that_crowd_in_one_partition_are_all_counted() {
    let partitions = PartitionConfig { flow: 256, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    // More than twice an even share of what is shown as it is.
    let crowd = 2 * limits::COUNTED_MAX / 256 + 20;
    let id = |number| {
        let mint = Mint { now_ms: h.engine.now(), random: [number; 10] };
        json!({ "kind": "test", "execution_id": ExecutionId::in_partition(Partition::flow(3), &mint) })
    };
    let executions: Vec<_> = (0..u8::try_from(crowd).unwrap()).map(id).collect();
    h.must::<CreateExecutions>(json!({ "executions": executions })).await;
    h.submit(json!({})).await;
    let counts = h.must::<GetCounts>(json!({})).await;
    let all = Count { value: crowd + 1, more: false };
    assert_eq!(counts.states[&PublicState::Waiting], all);
    assert_eq!(counts.waiting.iter().map(|one| one.count).collect::<Vec<_>>(), [all]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_count_is_shared_for_two_seconds_and_then_made_anew() {
    let h = many_partitions().await;
    let id = h.submit(json!({})).await;
    let before = h.must::<GetCounts>(json!({})).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(1_000).await;
    assert_eq!(h.must::<GetCounts>(json!({})).await, before);
    h.pass(1_001).await;
    let after = h.must::<GetCounts>(json!({})).await;
    assert_eq!(after.states[&PublicState::Completed].value, 1);
    assert_eq!(after.states[&PublicState::Waiting].value, 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn queues_that_appear_and_empty_between_two_readings_are_counted_as_they_are() {
    let h = many_partitions().await;
    let waiting = async || {
        h.pass(2_001).await;
        let counts = h.must::<GetCounts>(json!({})).await;
        let by_lane = counts.waiting.into_iter().map(|one| (one.lane, one.count.value, one.next_created_at.is_some()));
        by_lane.collect::<Vec<_>>()
    };
    assert_eq!(waiting().await, []);
    let id = h.submit(json!({})).await;
    assert_eq!(waiting().await, [("default".to_owned(), 1, true)]);
    for _ in 0..20 {
        h.submit(json!({ "lane": "late" })).await;
    }
    assert_eq!(waiting().await, [("default".to_owned(), 1, true), ("late".to_owned(), 20, true)]);
    let task = h.claim().await.unwrap();
    assert_eq!(waiting().await, [("late".to_owned(), 20, true)]);
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.submit(json!({})).await;
    assert_eq!(waiting().await, [("default".to_owned(), 1, true), ("late".to_owned(), 20, true)]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn many_queues_are_counted_each_for_itself() {
    let h = many_partitions().await;
    let kind = |number: usize| format!("kind-{:03}", number % 300);
    let executions: Vec<_> = (0..900).map(|number| json!({ "kind": kind(number) })).collect();
    h.must::<CreateExecutions>(json!({ "executions": executions })).await;
    let first = h.must::<GetCounts>(json!({})).await;
    assert_eq!(first.waiting.len(), 300);
    assert!(first.waiting.iter().all(|one| one.count == Count { value: 3, more: false }));
    h.submit(json!({ "kind": kind(7) })).await;
    h.pass(2_001).await;
    let then = h.must::<GetCounts>(json!({})).await;
    let of = |number| then.waiting.iter().find(|one| one.kind == Some(kind(number))).unwrap().count.value;
    assert_eq!((then.waiting.len(), of(7), of(8)), (300, 4, 3));
    assert_eq!(then.states[&PublicState::Waiting].value, 901);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn queues_that_were_found_before_are_counted_in_the_first_read() {
    let partitions = PartitionConfig { flow: 64, budget: 1, quota: 1 };
    let h = Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await;
    let executions = vec![json!({ "kind": "test" }); 1_000];
    h.must::<CreateExecutions>(json!({ "executions": executions })).await;
    let reads = || h.engine.metrics().reads.load(Ordering::Relaxed);
    let mut spent = Vec::new();
    for _ in 0..2 {
        h.pass(2_001).await;
        let before = reads();
        assert_eq!(h.must::<GetCounts>(json!({})).await.states[&PublicState::Waiting].value, 1_000);
        spent.push(reads() - before);
    }
    assert_eq!(spent, [128, 64]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_is_counted_is_told_as_more() {
    let h = Harness::start().await;
    for _ in 0..limits::COUNTED_MAX / 1_000 + 1 {
        h.must::<CreateExecutions>(json!({ "executions": vec![json!({ "kind": "test" }); 1_000] })).await;
    }
    let capped = Count { value: limits::COUNTED_MAX, more: true };
    for _ in 0..2 {
        h.pass(2_001).await;
        let counts = h.must::<GetCounts>(json!({})).await;
        assert_eq!(counts.states[&PublicState::Waiting], capped);
        assert_eq!(counts.waiting.iter().map(|one| one.count).collect::<Vec<_>>(), [capped]);
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_listed_for_who_may_see_them() {
    let h = many_partitions().await;
    h.submit(json!({ "namespace": "b" })).await;
    h.submit(json!({ "namespace": "a" })).await;
    let budget = json!({ "name": "t", "namespace": "c", "dimensions": { "tokens": { "hard": 1 } } });
    h.must::<CreateBudget>(budget).await;
    let names = |page: ff_core::op::list_namespaces::Outcome| {
        (page.items.into_iter().map(|item| item.name).collect::<Vec<_>>(), page.next_cursor)
    };
    let (first, cursor) = names(h.must::<ListNamespaces>(json!({ "limit": 3 })).await);
    assert_eq!(first, ["a", "b", "c"]);
    let (rest, end) = names(h.must::<ListNamespaces>(json!({ "cursor": cursor })).await);
    assert_eq!((rest, end), (vec!["default".to_owned()], None));
    let scoped = Caller { namespace: Some("b".into()), ..Caller::system() };
    let own = h.engine.call::<ListNamespaces>(&scoped, Default::default()).await.unwrap();
    assert_eq!(names(own).0, ["b"]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_input_is_read_back_as_it_was_sent() {
    let h = many_partitions().await;
    let small = h.submit(json!({ "input": { "n": 1.10 } })).await;
    let large = h.submit(json!({ "input": "x".repeat(100_000) })).await;
    let none = h.submit(json!({})).await;
    let input = h.must::<GetInput>(json!({ "execution_id": small })).await;
    assert_eq!((&input.bytes[..], input.content_type.as_str()), (&br#"{"n":1.1}"#[..], "application/json"));
    assert_eq!(h.must::<GetInput>(json!({ "execution_id": large })).await.bytes.len(), 100_002);
    assert_eq!(h.refused::<GetInput>(json!({ "execution_id": none })).await, Code::NoInput);
    let stranger = Caller { namespace: Some("other".into()), ..Caller::system() };
    let refused = h.engine.call::<GetInput>(&stranger, ff_core::op::get_input::Args { execution_id: small }).await;
    assert_eq!(refused.unwrap_err().code, Code::ExecutionNotFound);
    h.finish().await;
}
