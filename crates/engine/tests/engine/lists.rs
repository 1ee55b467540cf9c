//! Lists of executions and of what they went through.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::Harness;
use ff_core::lease::{AttemptKind, AttemptOutcome, LeaseEnd};
use ff_core::op::{Complete, Fail, ListAttempts, ListExecutionEvents, ListExecutions, SetTags};
use ff_core::{Code, ExecutionId, Mint, Partition, PartitionConfig, PublicState, index};
use ff_engine::Options;
use ff_store::Query;
use ff_store::memory::{Call, Plan};
use serde_json::{Value, json};

async fn many_partitions() -> Harness {
    let partitions = PartitionConfig { flow: 4, budget: 1, quota: 1 };
    Harness::with(Options { partitions: Some(partitions), ..Options::default() }).await
}

async fn ids(h: &Harness, filter: Value) -> Vec<ExecutionId> {
    h.must::<ListExecutions>(filter).await.items.into_iter().map(|item| item.execution_id).collect()
}

/// Whether a call reads the list of what waits.
fn lists_what_waits(call: &Call<'_>) -> bool {
    let waiting = index::state("default", PublicState::Waiting);
    let is_of_it = |query: &Query| matches!(query, Query::Scan(scan) if scan.index == waiting);
    matches!(call, Call::Read { queries, .. } if queries.iter().any(is_of_it))
}

#[tokio::test(start_paused = true)]
async fn what_changes_its_state_between_two_reads_of_a_page_is_on_the_page() {
    let partitions = PartitionConfig { flow: 2, budget: 1, quota: 1 };
    let (h, trouble) = Harness::with_trouble(Options { partitions: Some(partitions), ..Options::default() }).await;
    let mut submitted = Vec::new();
    for number in 0..40_u8 {
        let mint = Mint { now_ms: h.engine.now(), random: [number; 10] };
        let id = ExecutionId::in_partition(Partition::flow(1), &mint);
        // The first read of a page of 30 brings 16 of each state; this one comes with the second.
        let priority = i32::from(number == 20);
        submitted.push(h.submit(json!({ "execution_id": id, "priority": priority })).await);
        h.pass(1).await;
    }
    trouble.begin(|call| {
        let pause = lists_what_waits(&call).then(|| Box::pin(tokio::time::sleep(Duration::from_millis(50))) as _);
        Plan { before: pause, ..Plan::default() }
    });
    let claiming = async {
        h.pass(60).await;
        h.claim().await.unwrap().execution_id
    };
    let (listed, claimed) = tokio::join!(ids(&h, json!({ "limit": 30, "order": "oldest" })), claiming);
    trouble.end();
    assert_eq!(claimed, submitted[20]);
    assert_eq!(listed, submitted[..30]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn pages_are_newest_first_and_lose_nothing_while_states_change() {
    let h = many_partitions().await;
    let mut submitted = Vec::new();
    for n in 0..60 {
        submitted.push(h.submit(json!({})).await);
        // Several share an instant.
        if n % 7 == 0 {
            h.pass(1).await;
        }
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let mut args = json!({ "limit": 7 });
        if let Some(cursor) = cursor {
            args["cursor"] = json!(cursor);
        }
        let page = h.must::<ListExecutions>(args).await;
        assert!(page.items.len() == 7 || page.next_cursor.is_none());
        seen.extend(page.items.iter().map(|item| (item.created_at, item.execution_id)));
        // Listed executions and others change their state in between.
        for _ in 0..3 {
            if let Some(task) = h.claim_with(json!({ "wait_ms": 0 })).await {
                h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
            }
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert!(seen.is_sorted_by(|a, b| a.0 >= b.0));
    assert_eq!(seen.len(), 60);
    let distinct: BTreeSet<_> = seen.into_iter().map(|(_, id)| id).collect();
    assert_eq!(distinct, submitted.into_iter().collect());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn filters_narrow_a_list_and_bad_ones_are_refused() {
    let h = many_partitions().await;
    let plain = h.submit(json!({})).await;
    h.pass(5).await;
    let tagged = h.submit(json!({ "tags": { "team": "a" }, "lane": "slow" })).await;
    let done = h.claim().await.unwrap();
    h.must::<Complete>(json!({ "execution_id": done.execution_id, "fence": done.fence })).await;
    assert_eq!(ids(&h, json!({})).await, [tagged, plain]);
    assert_eq!(ids(&h, json!({ "state": "completed" })).await, [plain]);
    assert_eq!(ids(&h, json!({ "tag": "team=a" })).await, [tagged]);
    assert_eq!(ids(&h, json!({ "lane": "slow", "kind": "test" })).await, [tagged]);
    assert_eq!(ids(&h, json!({ "kind": "other" })).await, []);
    let created = h.must::<ListExecutions>(json!({ "tag": "team=a" })).await.items[0].created_at;
    assert_eq!(ids(&h, json!({ "created_from": created })).await, [tagged]);
    assert_eq!(ids(&h, json!({ "created_to": created })).await, [plain]);
    assert_eq!(ids(&h, json!({ "namespace": "elsewhere" })).await, []);
    h.must::<SetTags>(json!({ "execution_id": tagged, "tags": {} })).await;
    assert_eq!(ids(&h, json!({ "tag": "team=a" })).await, []);
    assert_eq!(h.refused::<ListExecutions>(json!({ "tag": "team" })).await, Code::InvalidFilter);
    assert_eq!(h.refused::<ListExecutions>(json!({ "cursor": "nonsense" })).await, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn attempts_are_listed_with_their_leases_and_events_in_order() {
    let h = many_partitions().await;
    let policy = json!({ "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 10 } } } });
    let id = h.submit(json!({ "policy": policy })).await;
    h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.pass(1_001).await;
    let second = h.claim().await.unwrap();
    h.must::<Fail>(json!({ "execution_id": id, "fence": second.fence, "reason": "broke", "category": "io" })).await;
    let third = h.claim().await.unwrap();
    let attempts = h.must::<ListAttempts>(json!({ "execution_id": id })).await.items;
    let shape: Vec<_> = attempts.iter().map(|one| (one.index.0, one.kind, one.outcome, one.leases[0].end)).collect();
    assert_eq!(
        shape,
        [
            (0, AttemptKind::Initial, Some(AttemptOutcome::InterruptedReclaimed), Some(LeaseEnd::Expired)),
            (1, AttemptKind::Reclaim, Some(AttemptOutcome::Failed), Some(LeaseEnd::Failed)),
            (2, AttemptKind::Retry, None, None),
        ]
    );
    assert_eq!(attempts[1].failure_reason.as_deref(), Some("broke"));
    h.must::<Complete>(json!({ "execution_id": id, "fence": third.fence })).await;
    let mut types = Vec::new();
    let mut args = json!({ "execution_id": id, "limit": 3 });
    loop {
        let page = h.must::<ListExecutionEvents>(args.clone()).await;
        types.extend(page.items.into_iter().map(|item| item.event.event_type.as_str()));
        match page.next_cursor {
            Some(next) => args["cursor"] = json!(next),
            None => break,
        }
    }
    let expected = [
        "lease_acquired",
        "lease_expired",
        "lease_reclaimed",
        "lease_released",
        "lease_acquired",
        "lease_released",
        "completed",
    ];
    assert_eq!(types, expected);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn several_values_of_a_filter_take_any_and_different_tags_must_all_be_there() {
    let h = many_partitions().await;
    let a = h.submit(json!({ "kind": "a", "tags": { "team": "x", "tier": "gold" } })).await;
    h.pass(5).await;
    let b = h.submit(json!({ "kind": "b", "lane": "slow", "tags": { "team": "y", "tier": "gold" } })).await;
    h.pass(5).await;
    let c = h.submit(json!({ "kind": "c", "lane": "slow", "tags": { "team": "x" } })).await;
    assert_eq!(ids(&h, json!({ "kind": ["a", "c"] })).await, [c, a]);
    assert_eq!(ids(&h, json!({ "lane": ["slow", "default"], "order": "oldest" })).await, [a, b, c]);
    assert_eq!(ids(&h, json!({ "tag": ["team=x", "team=y"] })).await, [c, b, a]);
    assert_eq!(ids(&h, json!({ "tag": ["team=x", "tier=gold"] })).await, [a]);
    assert_eq!(ids(&h, json!({ "tag": ["team=x", "tier=gold"], "kind": "b" })).await, []);
    let task = h.claim_with(json!({ "lanes": ["default"] })).await.unwrap();
    let failed = json!({ "execution_id": a, "fence": task.fence, "reason": "broke", "category": "io" });
    h.must::<ff_core::op::Progress>(json!({ "execution_id": a, "fence": task.fence, "pct": 40 })).await;
    assert_eq!(ids(&h, json!({ "worker": "w-1" })).await, [a]);
    h.pass(5).await;
    h.must::<Fail>(failed).await;
    h.must::<ff_core::op::CancelExecution>(json!({ "execution_id": b })).await;
    assert_eq!(ids(&h, json!({ "state": ["delayed", "cancelled"] })).await, [b, a]);
    assert_eq!(ids(&h, json!({ "state": "delayed,cancelled" })).await, [b, a]);
    assert_eq!(ids(&h, json!({ "terminal": true })).await, [b]);
    assert_eq!(ids(&h, json!({ "open": true })).await, [c, a]);
    assert_eq!(ids(&h, json!({ "open": true, "state": "cancelled" })).await, []);
    assert_eq!(ids(&h, json!({ "failure_category": ["io", "model"] })).await, [a]);
    let listed = h.must::<ListExecutions>(json!({ "terminal": true })).await.items.remove(0);
    let ended_at = listed.completed_at.unwrap();
    assert_eq!(ids(&h, json!({ "ended_from": ended_at, "ended_to": ended_at + 1 })).await, [b]);
    assert_eq!(ids(&h, json!({ "ended_to": ended_at })).await, []);
    let short = h.must::<ListExecutions>(json!({ "failure_category": "io" })).await.items.remove(0);
    assert_eq!((short.attempt.unwrap().0, short.failure_category.as_deref()), (0, Some("io")));
    assert_eq!((short.tags["tier"].as_str(), short.progress.unwrap().pct), ("gold", Some(40)));
    assert!(short.started_at.is_some() && short.delay_until > short.started_at && short.completed_at.is_none());
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_come_first_page_by_page_when_asked_for() {
    let h = many_partitions().await;
    for n in 0..30 {
        h.submit(json!({})).await;
        if n % 7 == 0 {
            h.pass(1).await;
        }
    }
    let mut newest_first = ids(&h, json!({})).await;
    newest_first.reverse();
    let (mut seen, mut args) = (Vec::new(), json!({ "limit": 4, "order": "oldest" }));
    loop {
        let page = h.must::<ListExecutions>(args.clone()).await;
        seen.extend(page.items.iter().map(|item| item.execution_id));
        match page.next_cursor {
            Some(cursor) => args["cursor"] = json!(cursor),
            None => break,
        }
    }
    assert_eq!(seen, newest_first);
    h.finish().await;
}
