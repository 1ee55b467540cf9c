//! Time: the nodes of a store need not agree on it, and no estimate of it goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::support::{Harness, START};
use ff_core::op::{
    Claim, CreateExecution, CreateQuota, CreateSchedule, GetExecution, GetQuota, GetSchedule, ListExecutions,
};
use ff_core::{Code, Family, Partition, PartitionConfig};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::memory::{Call, Fault, Plan};
use ff_store::{Guard, Query};
use serde_json::json;

const HOUR_MS: i64 = 3_600_000;

fn several() -> Options {
    Options { partitions: Some(PartitionConfig { flow: 4, budget: 2, quota: 2 }), ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_claim_lands_on_no_freed_slot_wherever_the_quota_lives() {
    for skew in [HOUR_MS, 0, -HOUR_MS] {
        let skew_of = move |partition: Partition| if partition.family == Family::Quota { skew } else { 0 };
        let (h, trouble) = Harness::skewed(several(), skew_of).await;
        h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
        h.submit(json!({ "quota_policy_id": "q" })).await;
        h.submit(json!({ "quota_policy_id": "q" })).await;
        let delayed = AtomicBool::new(false);
        trouble.begin(move |call| {
            let Call::Commit { batches, .. } = call else { return Plan::default() };
            let claims = batches.iter().any(|batch| batch.guards.iter().any(|g| matches!(g, Guard::NotAfter(_))));
            if !claims || delayed.swap(true, Ordering::Relaxed) {
                return Plan::default();
            }
            Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_secs(15)))), ..Plan::default() }
        });
        let late = json!({ "instance_id": "late", "lanes": ["default"], "wait_ms": 0, "lease_ttl_ms": 60_000 });
        let late = h.call::<Claim>(late);
        let prompt = async {
            h.pass(11_000).await;
            h.claim_with(json!({ "instance_id": "prompt", "wait_ms": 1_000, "lease_ttl_ms": 60_000 })).await
        };
        let (late, prompt) = tokio::join!(late, prompt);
        assert!(prompt.is_some(), "skew {skew}: the orphaned slot was freed and taken");
        // Its caller does not wait for a commit that hangs, and nothing is known of it then.
        assert_eq!(late.unwrap_err().code, Code::Unavailable, "skew {skew}");
        h.pass(10_000).await;
        let active = h.must::<ListExecutions>(json!({ "state": "active" })).await.items.len();
        assert_eq!(active, 1, "skew {skew}: the delayed claim landed without a slot");
        assert_eq!(h.must::<GetQuota>(json!({ "name": "q" })).await.in_use, 1);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_promised_no_longer_than_the_store_keeps_it_even_if_the_reply_is_lost() {
    for replies_lost in [0, 1] {
        let back = Arc::new(AtomicI64::new(0));
        let set_back = back.clone();
        let (h, trouble) = Harness::skewed(Options::default(), move |_| -set_back.load(Ordering::Relaxed)).await;
        let id = h.submit(json!({})).await;
        // The store stands still until its clock is where it was; the engine believes that time goes on.
        back.store(400, Ordering::Relaxed);
        h.pass(300).await;
        let left = AtomicI64::new(replies_lost);
        trouble.begin(move |call| match call {
            Call::Commit { batches, .. } if batches.iter().any(|batch| !batch.leases.is_empty()) => {
                if left.fetch_sub(1, Ordering::Relaxed) > 0 { Fault::LostReply.into() } else { Plan::default() }
            }
            _ => Plan::default(),
        });
        let task = h.claim_with(json!({ "lease_ttl_ms": 5_000 })).await.unwrap();
        let key = ff_core::execution::Execution::key_of(&id);
        let kept = h.store.inspect(|contents| {
            let mut all = contents.partitions().flat_map(|(_, contents)| contents.documents());
            all.find(|(found, _)| **found == key).map(|(_, raw)| raw.lease_until)
        });
        assert!(Some(task.lease_expires_at) <= kept, "promised until {}, kept until {kept:?}", task.lease_expires_at);
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_happens_at_a_node_happens_by_its_own_clock() {
    let skew_of = |partition: Partition| match (partition.family, partition.number) {
        (Family::Flow, number) => (i64::from(number) - 1) * HOUR_MS,
        _ => 0,
    };
    let (h, _) = Harness::skewed(several(), skew_of).await;
    for _ in 0..20 {
        let began = tokio::time::Instant::now();
        let id = h.submit(json!({})).await;
        let view = h.must::<GetExecution>(json!({ "execution_id": id })).await;
        let there = h.store.now_in(id.partition());
        assert!((there - 10..=there).contains(&view.created_at), "dated {} at {there}", view.created_at);
        let first = h.claim_with(json!({ "lease_ttl_ms": 5_000 })).await.unwrap();
        let again = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("its lease runs out");
        assert_eq!((first.execution_id, again.execution_id), (id, id));
        let took = began.elapsed();
        assert!((Duration::from_secs(5)..Duration::from_secs(7)).contains(&took), "the lease of 5 s ran {took:?}");
        let done = json!({ "execution_id": id, "fence": again.fence });
        h.must::<ff_core::op::Complete>(done).await;
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_timer_is_not_looked_at_again_and_again_while_its_clock_stands_still() {
    let (back, reads) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let behind = Arc::clone(&back);
    let skew_of = move |partition: Partition| match partition.family {
        Family::Flow => -behind.load(Ordering::Relaxed),
        _ => 0,
    };
    let (h, trouble) = Harness::skewed(Options::default(), skew_of).await;
    let id = h.submit(json!({ "delay_until": START + 10_000 })).await;
    h.pass(9_900).await;
    h.state(&id).await;
    back.store(400, Ordering::Relaxed);
    let counted = Arc::clone(&reads);
    trouble.begin(move |call| {
        if !matches!(call, Call::Read { .. }) {
            return Plan::default();
        }
        counted.fetch_add(1, Ordering::Relaxed);
        // Reads that took no time at all would keep time itself from passing.
        Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(1)))), ..Plan::default() }
    });
    let task = h.claim().await.expect("its time comes");
    assert_eq!(task.execution_id, id);
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads < 60, "{reads} reads until the clock went on");
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_schedule_decides_about_no_instant_that_the_store_has_not_reached() {
    let back = Arc::new(AtomicI64::new(0));
    let behind = Arc::clone(&back);
    let skew_of = move |partition: Partition| match partition.family {
        Family::Flow => -behind.load(Ordering::Relaxed),
        _ => 0,
    };
    let single = Options { partitions: Some(PartitionConfig::SINGLE), ..Options::default() };
    let (h, trouble) = Harness::skewed(single, skew_of).await;
    let home = Partition::flow(0);
    h.must::<CreateSchedule>(json!({
        "name": "s", "spec": { "every_ms": 1_000 }, "overlap": "allow", "template": { "execution": { "kind": "test" } },
    }))
    .await;
    let next = h.must::<GetSchedule>(json!({ "name": "s" })).await.next;
    let (first, second) = (next[0], next[1]);
    h.pass(u64::try_from(first - h.store.now_in(home) - 100).unwrap()).await;
    // The look at what is due comes long after the first instant, and meanwhile the clock was set back. The engine has
    // heard nothing of that: by its estimate the second instant has come, too.
    trouble.begin(move |call| {
        let Call::Read { partition, queries } = call else { return Plan::default() };
        let looks = |query: &Query| matches!(query, Query::Scan(scan) if scan.index == ff_core::index::due());
        if partition != home || !queries.iter().any(looks) || back.swap(400, Ordering::Relaxed) != 0 {
            return Plan::default();
        }
        Plan { before: Some(Box::pin(tokio::time::sleep(Duration::from_millis(1_200)))), ..Plan::default() }
    });
    for instant in [first, second] {
        h.claim().await.expect("a run");
        let (view, now) = (h.must::<GetSchedule>(json!({ "name": "s" })).await, h.store.now_in(home));
        assert_eq!(view.runs[0].scheduled_for, instant);
        assert!(instant <= now, "decided about {instant} at {now}");
    }
    trouble.end();
    h.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_created_after_an_acknowledgement_is_not_dated_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = ff_store_sqlite::open(&ff_store_sqlite::Options::new(directory.path().join("ff.db"))).unwrap();
    let engine = Engine::start(store, Arc::new(TokioEnv::current()), Options::default()).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..200 {
        let args = serde_json::from_value(json!({ "kind": "test" })).unwrap();
        ids.push(engine.call::<CreateExecution>(&Caller::system(), args).await.unwrap().execution_id);
    }
    let args = serde_json::from_value(json!({ "limit": 200 })).unwrap();
    let mut listed = engine.call::<ListExecutions>(&Caller::system(), args).await.unwrap().items;
    listed.reverse();
    let listed: Vec<_> = listed.into_iter().map(|item| item.execution_id).collect();
    assert!(listed == ids, "they are listed, and claimed, in another order than they were acknowledged in");
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_follows_a_store_whose_time_was_set_forward() {
    let ahead = Arc::new(AtomicBool::new(false));
    let seen = ahead.clone();
    let skew_of = move |_: Partition| if seen.load(Ordering::Relaxed) { HOUR_MS } else { 0 };
    let (h, _) = Harness::skewed(Options::default(), skew_of).await;
    h.submit(json!({})).await;
    assert!(h.engine.now() < START + HOUR_MS);
    ahead.store(true, Ordering::Relaxed);
    let id = h.submit(json!({})).await;
    let second = h.submit(json!({})).await;
    let dated = h.must::<GetExecution>(json!({ "execution_id": second })).await.created_at;
    assert!(dated >= START + HOUR_MS, "{id} taught the engine the time");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_reads_every_event_once_whatever_the_nodes_clocks_say() {
    let skew_of = |partition: Partition| match (partition.family, partition.number) {
        (Family::Flow, number) => (i64::from(number) - 2) * HOUR_MS,
        _ => 0,
    };
    let (h, _) = Harness::skewed(several(), skew_of).await;
    let mut seen = std::collections::BTreeSet::new();
    let mut args = json!({ "limit": 5 });
    for round in 0..60 {
        if round < 30 {
            h.submit(json!({})).await;
            let task = h.claim().await.unwrap();
            h.must::<ff_core::op::Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
            h.pass(round * 900).await;
        }
        let page = h.must::<ff_core::op::ListEvents>(args.clone()).await;
        assert!(!page.gap);
        for item in page.items {
            assert!(seen.insert(item.event_id.clone()), "{} came twice", item.event_id);
        }
        args["cursor"] = json!(page.next_cursor);
    }
    assert_eq!(seen.len(), 90, "acquired, released and completed, of thirty");
    h.finish().await;
}
