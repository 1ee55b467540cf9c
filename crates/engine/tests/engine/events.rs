//! Subscriptions over all partitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::Harness;
use ff_core::encoding::Document;
use ff_core::id::Mint;
use ff_core::op::{
    Complete, CreateBudget, CreateFlow, CreateSubscription, DeleteSubscription, ListEvents, ReportBudgetUsage,
};
use ff_core::{Code, ExecutionId, Family, Indexed, Partition, PartitionConfig, SubscriptionCursor};
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_store::Query;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

async fn many_partitions() -> Harness {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await
}

async fn run_one(h: &Harness, more: Value) {
    h.submit(more).await;
    let task = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_reads_every_event_once_also_those_that_come_while_it_reads() {
    let h = many_partitions().await;
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    let mut args = json!({ "limit": 5 });
    for round in 0..40 {
        if round < 20 {
            run_one(&h, json!({})).await;
            h.pass(round * 700).await;
        }
        let page = h.must::<ListEvents>(args.clone()).await;
        assert!(!page.gap);
        for item in page.items {
            assert!(seen.insert(item.event_id.clone()), "{} came twice", item.event_id);
            all.push(item);
        }
        args["cursor"] = json!(page.next_cursor);
    }
    assert_eq!(all.len(), 60, "acquired, released and completed, of twenty");
    assert!(all.is_sorted_by_key(|item| item.happened_at));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_waits_for_what_it_asked_for() {
    let h = many_partitions().await;
    run_one(&h, json!({})).await;
    let end = h.must::<ListEvents>(json!({})).await.next_cursor;
    let waiting = json!({ "cursor": end, "kinds": ["completion"], "tag": "team=a", "wait_ms": 30_000 });
    let (page, ()) = tokio::join!(h.must::<ListEvents>(waiting.clone()), async {
        h.pass(20).await;
        run_one(&h, json!({})).await;
        h.pass(20).await;
        run_one(&h, json!({ "tags": { "team": "a" } })).await;
    });
    let types: Vec<_> = page.items.iter().map(|item| item.event.event_type.as_str()).collect();
    assert_eq!(types, ["completed"]);
    let mut again = waiting;
    again["cursor"] = json!(page.next_cursor);
    again["wait_ms"] = json!(100);
    assert_eq!(h.must::<ListEvents>(again).await.items, []);
    let elsewhere = h.must::<ListEvents>(json!({ "namespace": "elsewhere" })).await;
    assert_eq!(elsewhere.items, []);
    assert_eq!(h.refused::<ListEvents>(json!({ "cursor": "x" })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_waits_however_much_happens_that_it_did_not_ask_for() {
    let h = many_partitions().await;
    let end = h.must::<ListEvents>(json!({})).await.next_cursor;
    let waiting = json!({ "cursor": end, "tag": "team=a", "wait_ms": 30_000 });
    let (page, ()) = tokio::join!(h.must::<ListEvents>(waiting), async {
        for _ in 0..120 {
            run_one(&h, json!({})).await;
            h.pass(20).await;
        }
        run_one(&h, json!({ "tags": { "team": "a" } })).await;
    });
    assert!(!page.items.is_empty());
    assert!(page.items.iter().all(|item| item.event.tags.get("team").is_some_and(|team| team == "a")));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_small_page_finds_what_matches_behind_much_that_does_not() {
    let h = Harness::start().await;
    for number in 0..100 {
        let tags = if number == 99 { json!({ "team": "a" }) } else { json!({}) };
        run_one(&h, json!({ "tags": tags })).await;
    }
    let page = h.must::<ListEvents>(json!({ "tag": "team=a", "limit": 2 })).await;
    assert_eq!(page.items.len(), 2);
    let rest = h.must::<ListEvents>(json!({ "tag": "team=a", "limit": 2, "cursor": page.next_cursor })).await;
    assert_eq!(rest.items.len(), 1, "acquired, released and completed");
    let end = h.must::<ListEvents>(json!({ "tag": "team=a", "limit": 2, "cursor": rest.next_cursor })).await;
    assert_eq!(end.items.len(), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_begins_now_sees_what_comes_and_little_of_what_was() {
    let h = many_partitions().await;
    run_one(&h, json!({ "kind": "early" })).await;
    // Clocks of partitions may differ by so much; what is younger may be shown.
    h.pass(11_000).await;
    let begun = h.must::<ListEvents>(json!({ "cursor": "now" })).await;
    assert_eq!((begun.items.len(), begun.gap), (0, false));
    run_one(&h, json!({ "kind": "late" })).await;
    let page = h.must::<ListEvents>(json!({ "cursor": begun.next_cursor })).await;
    assert_eq!(page.items.len(), 3, "acquired, released and completed, of one");
    assert!(page.items.iter().all(|item| item.event.execution_kind == "late"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_older_than_the_log_is_told_of_the_gap() {
    let h = Harness::start().await;
    run_one(&h, json!({})).await;
    let old = h.must::<ListEvents>(json!({})).await.next_cursor;
    let log = ff_core::Key::from_bytes(*b"E");
    for _ in 0..3 {
        run_one(&h, json!({})).await;
    }
    let mut batch = ff_store::Batch::new(ff_core::CommandId::default());
    batch.trims.push(ff_store::Trim { log, before: 9 });
    let store: &dyn ff_store::Store = h.store.as_ref();
    store.commit(ff_core::Partition::flow(0), [batch].into()).await.unwrap();
    let page = h.must::<ListEvents>(json!({ "cursor": old })).await;
    assert!(page.gap);
    assert_eq!(page.items.len(), 4);
    assert!(!h.must::<ListEvents>(json!({ "cursor": page.next_cursor })).await.gap);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_beyond_what_the_store_remembers_is_told_of_the_gap_and_goes_on() {
    let h = Harness::start().await;
    run_one(&h, json!({})).await;
    let remembered = h.store.snapshot();
    run_one(&h, json!({})).await;
    let read = h.must::<ListEvents>(json!({})).await;
    assert_eq!(read.items.len(), 6);
    h.store.restore(remembered);
    let told = h.must::<ListEvents>(json!({ "cursor": read.next_cursor })).await;
    assert!(told.gap, "three events that were read never happened");
    run_one(&h, json!({})).await;
    let next = h.must::<ListEvents>(json!({ "cursor": told.next_cursor })).await;
    assert_eq!((next.items.len(), next.gap), (3, false), "{next:?}");
    h.finish().await;
}

/// Removes the oldest events of the first flow partition.
async fn trim(h: &Harness, before: u64) {
    let mut batch = ff_store::Batch::new(ff_core::CommandId::default());
    batch.trims.push(ff_store::Trim { log: ff_core::Key::from_bytes(*b"E"), before });
    let store: &dyn ff_store::Store = h.store.as_ref();
    store.commit(ff_core::Partition::flow(0), [batch].into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cursor_taken_before_the_first_event_is_told_of_the_gap() {
    let h = Harness::start().await;
    let empty = h.must::<ListEvents>(json!({})).await;
    assert_eq!((empty.items.len(), empty.gap), (0, false));
    run_one(&h, json!({})).await;
    let page = h.must::<ListEvents>(json!({ "cursor": empty.next_cursor })).await;
    assert_eq!((page.items.len(), page.gap), (3, false), "nothing is lost yet");
    trim(&h, 3).await;
    let page = h.must::<ListEvents>(json!({ "cursor": empty.next_cursor })).await;
    assert_eq!((page.items.len(), page.gap), (1, true), "two events were removed unread");
    assert!(!h.must::<ListEvents>(json!({})).await.gap, "a new subscriber has missed nothing it asked for");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_taken_on_a_log_that_was_emptied_sees_no_gap_in_what_comes_after() {
    let h = Harness::start().await;
    run_one(&h, json!({})).await;
    trim(&h, 4).await;
    let empty = h.must::<ListEvents>(json!({})).await;
    assert_eq!((empty.items.len(), empty.gap), (0, false));
    let page = h.must::<ListEvents>(json!({ "cursor": empty.next_cursor })).await;
    assert_eq!((page.items.len(), page.gap), (0, false));
    run_one(&h, json!({})).await;
    let page = h.must::<ListEvents>(json!({ "cursor": empty.next_cursor })).await;
    assert_eq!((page.items.len(), page.gap), (3, false));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_another_partition_was_slow_to_answer_is_not_passed_over() {
    let partitions = Some(PartitionConfig { flow: 2, budget: 1, quota: 1 });
    let (h, trouble) = Harness::with_trouble(Options { partitions, ..Options::default() }).await;
    let run_in = async |number: u8, partition: u16| {
        let mint = Mint { now_ms: h.engine.now(), random: [number; 10] };
        run_one(&h, json!({ "execution_id": ExecutionId::in_partition(Partition::flow(partition), &mint) })).await;
    };
    // The first look reads one log at once and the other one half a minute later.
    let mut slow = true;
    trouble.begin(move |call| {
        let Call::Read { partition, queries } = call else { return Plan::default() };
        let reads_log = queries.iter().any(|query| matches!(query, Query::Log { .. }));
        if partition != Partition::flow(1) || !reads_log || !std::mem::take(&mut slow) {
            return Plan::default();
        }
        Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_secs(30)))), ..Plan::default() }
    });
    let (first, ()) = tokio::join!(h.must::<ListEvents>(json!({})), async {
        h.pass(1_000).await;
        run_in(1, 0).await;
        h.pass(28_000).await;
        run_in(2, 1).await;
    });
    let mut seen = first.items;
    seen.extend(h.must::<ListEvents>(json!({ "cursor": first.next_cursor })).await.items);
    assert!(!first.gap);
    assert_eq!(seen.len(), 6, "three of each: {seen:?}");
    h.finish().await;
}

/// The events of some kinds, as their types and details.
async fn told(h: &Harness, kinds: Value) -> Vec<(String, String)> {
    let page = h.must::<ListEvents>(json!({ "kinds": kinds })).await;
    page.items.into_iter().map(|item| (item.event.event_type.to_string(), item.event.detail)).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, detail)| ((*name).to_owned(), (*detail).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_breach_is_told_once_though_the_engine_dies_before_it_stands_in_the_log() {
    let partitions = PartitionConfig { flow: 4, budget: 2, quota: 1 };
    let (h, trouble) = Harness::with_trouble(Options { partitions: Some(partitions), ..Options::default() }).await;
    h.must::<CreateBudget>(json!({ "name": "team", "dimensions": { "tokens": { "hard": 10 } } })).await;
    // Nothing gets into a log of events for a while.
    trouble.begin(|call| match call {
        Call::Commit { partition, .. } if partition.family == Family::Flow => Fault::Unavailable.into(),
        _ => Plan::default(),
    });
    h.must::<ReportBudgetUsage>(json!({ "name": "team", "usage": { "tokens": 11 } })).await;
    h.pass(20_000).await;
    trouble.end();
    assert_eq!(told(&h, json!(["budget"])).await, []);
    h.pass(120_000).await;
    assert_eq!(told(&h, json!(["budget"])).await, owned(&[("breached", "hard tokens 0/10")]));
    h.pass(120_000).await;
    assert_eq!(told(&h, json!(["budget"])).await.len(), 1);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn creations_are_told_while_a_subscription_asks_for_them() {
    let h = many_partitions().await;
    h.submit(json!({})).await;
    let target = json!({ "execution": { "kind": "told", "lane": "told" } });
    for name in ["a", "b"] {
        let filter = json!({ "event_types": ["created"] });
        h.must::<CreateSubscription>(json!({ "name": name, "filter": filter, "target": target })).await;
    }
    h.submit(json!({})).await;
    h.must::<DeleteSubscription>(json!({ "name": "a" })).await;
    let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
    h.must::<CreateFlow>(json!({ "nodes": [node("x"), node("y")] })).await;
    h.must::<DeleteSubscription>(json!({ "name": "b" })).await;
    h.submit(json!({})).await;
    assert_eq!(told(&h, json!(["creation"])).await, owned(&[("created", ""); 3]));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_gone_in_one_partition_keeps_nobody_busy() {
    let options = || Options { partitions: Some(PartitionConfig::SINGLE), chunk_max: 2, ..Options::default() };
    let (h, trouble) = Harness::with_trouble(options()).await;
    let target = json!({ "execution": { "kind": "told", "lane": "told" } });
    let mut ids = Vec::new();
    for name in ["quiet", "gone"] {
        let filter = json!({ "event_types": ["breached"] });
        let created = h.must::<CreateSubscription>(json!({ "name": name, "filter": filter, "target": target })).await;
        ids.push(created.subscription_id().expect("it was created"));
    }
    // The list of subscriptions has forgotten that one of them was removed, and its cursor has not.
    let gone = SubscriptionCursor { subscription: ids[1], removed: true, ..Default::default() };
    let mut batch = ff_store::Batch::new(ff_core::CommandId::default());
    let store: &dyn ff_store::Store = h.store.as_ref();
    let (key, body) = (gone.key(), gone.encode().into());
    let begun = store.documents(Partition::flow(0), vec![key.clone()]).await.unwrap().remove(0).expect("a cursor");
    batch.guards.push(ff_store::Guard::Version(key.clone(), begun.version));
    let member = key.clone();
    batch.entries.push(ff_store::EntryChange::Remove { index: ff_core::index::cursors(), member });
    batch.puts.push(ff_store::Put { key, body, fence: ff_store::Fence::default(), expires_at: None });
    store.commit(Partition::flow(0), [batch].into()).await.unwrap();
    // Of an engine that has no copy of the cursor as it was.
    let engine = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), options()).await.expect("it starts");
    let other = Harness { engine, store: h.store.clone(), caller: h.caller.clone() };
    h.engine.close().await;
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    trouble.begin(move |call| {
        let is_look = matches!(&call, Call::Read { queries, .. }
            if queries.iter().any(|query| matches!(query, Query::Log { .. })));
        counted.fetch_add(usize::from(is_look), Ordering::SeqCst);
        let pause = is_look.then(|| Box::pin(tokio::time::sleep(Duration::from_millis(1))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    for _ in 0..3 {
        run_one(&other, json!({})).await;
    }
    other.pass(5_000).await;
    let looks = reads.load(Ordering::SeqCst);
    assert!((1..100).contains(&looks), "{looks} looks at a few events");
    trouble.end();
    other.finish().await;
}
