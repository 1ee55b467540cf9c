//! Concurrency keys: never more at once under a key than each request says, whichever servers claim and whatever
//! crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Harness, Trouble};
use ff_core::id::Mint;
use ff_core::index::kind;
use ff_core::op::view::Task;
use ff_core::op::{
    ChangePriority, Claim, Complete, CreateQuota, Delay, ExplainExecution, Fail, GetExecution, ReasonCode,
};
use ff_core::{ExecutionId, Family, Partition, PartitionConfig, PublicState};
use ff_engine::Options;
use ff_store::Batch;
use ff_store::memory::{Call, Fault, Plan};
use serde_json::{Value, json};

async fn submit(h: &Harness, keys: Value) -> ExecutionId {
    h.submit(json!({ "concurrency": keys })).await
}

async fn claim_now(h: &Harness) -> Option<ff_core::op::view::Task> {
    h.claim_with(json!({ "wait_ms": 0 })).await
}

async fn complete(h: &Harness, task: &ff_core::op::view::Task) {
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
}

/// How many documents of keys and of their slots there are.
fn documents(h: &Harness) -> (usize, usize) {
    let count = |of: u8| {
        h.store.inspect(|contents| {
            let all = contents.partitions().map(|(_, c)| c.documents().filter(|(key, _)| key.kind() == of).count());
            all.sum()
        })
    };
    (count(kind::CONCURRENCY_KEY), count(kind::SLOT))
}

#[tokio::test(start_paused = true)]
async fn ten_racing_workers_at_two_servers_never_run_two_under_a_limit_of_one() {
    let h = Harness::start().await;
    let other = h.second().await;
    for _ in 0..30 {
        submit(&h, json!([{ "key": "door", "limit": 1 }])).await;
    }
    let running = AtomicUsize::new(0);
    let worker = |number: usize| {
        let (h, running) = (if number.is_multiple_of(2) { &h } else { &other }, &running);
        async move {
            let mut done = 0;
            let ask = json!({ "instance_id": format!("w-{number}"), "wait_ms": 20_000 });
            while let Some(task) = h.claim_with(ask.clone()).await {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                assert_eq!(now, 1, "{now} run at once");
                h.pass(50).await;
                running.fetch_sub(1, Ordering::SeqCst);
                complete(h, &task).await;
                done += 1;
            }
            done
        }
    };
    let done: usize = futures_util::future::join_all((0..10).map(worker)).await.into_iter().sum();
    assert_eq!(done, 30);
    h.pass(30_000).await;
    assert_eq!(documents(&h), (0, 0), "the documents of an idle key leave");
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_runs_the_moment_the_key_is_given_up() {
    for how in ["complete", "fail", "delay", "lose"] {
        let h = Harness::start().await;
        let policy = json!({ "retry": { "max_retries": 0 }, "max_reclaim_count": 0 });
        let first = h.submit(json!({ "concurrency": [{ "key": "k", "limit": 1 }], "policy": policy })).await;
        let task = h.claim_with(json!({ "lease_ttl_ms": 2_000 })).await.unwrap();
        let second = submit(&h, json!([{ "key": "k", "limit": 1 }])).await;
        let began = h.engine.now();
        let (taken, ()) = tokio::join!(h.claim(), async {
            h.pass(1_000).await;
            assert_eq!(h.state(&second).await, PublicState::RateLimited, "{how}");
            match how {
                "complete" => complete(&h, &task).await,
                "fail" => {
                    h.must::<Fail>(json!({ "execution_id": first, "fence": task.fence, "reason": "x" })).await;
                }
                "delay" => {
                    h.must::<Delay>(json!({ "execution_id": first, "fence": task.fence, "delay_ms": 60_000 })).await;
                }
                _ => {}
            }
        });
        let taken = taken.unwrap();
        assert_eq!(taken.execution_id, second, "{how}");
        let waited = h.engine.now() - began;
        assert!(waited <= 2_100, "{how}: it ran after {waited} ms");
        complete(&h, &taken).await;
        h.pass(15_000).await;
        assert_eq!(documents(&h), (0, 0), "{how}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_is_held_to_its_own_limit_and_nobody_stands_in_anothers_way() {
    let h = Harness::start().await;
    submit(&h, json!([{ "key": "k", "limit": 2 }])).await;
    let first = claim_now(&h).await.unwrap();
    let alone = h.submit(json!({ "concurrency": [{ "key": "k", "limit": 1 }], "priority": 5 })).await;
    let pair = submit(&h, json!([{ "key": "k", "limit": 2 }])).await;
    let full = submit(&h, json!([{ "key": "k", "limit": 2 }])).await;
    let free = submit(&h, json!([{ "key": "other", "limit": 1 }])).await;
    let mut taken = Vec::new();
    while let Some(task) = claim_now(&h).await {
        taken.push(task);
    }
    let ids: Vec<ExecutionId> = taken.iter().map(|task| task.execution_id).collect();
    assert_eq!(ids, [pair, free]);
    for held in [alone, full] {
        assert_eq!(h.state(&held).await, PublicState::RateLimited);
    }
    let why = h.must::<ExplainExecution>(json!({ "execution_id": alone })).await;
    assert_eq!(why.reasons[0].code, ReasonCode::ConcurrencyKeyFull);
    assert_eq!((&why.reasons[0].details["key"], &why.reasons[0].details["in_use"]), (&json!("k"), &json!(2)));
    let view = h.must::<GetExecution>(json!({ "execution_id": alone })).await;
    assert_eq!(view.blocking_detail.as_deref(), Some("concurrency key k: 1/1 running"));
    complete(&h, &first).await;
    let next = h.claim().await.unwrap();
    assert_eq!(next.execution_id, full, "one runs: there is room under two, and none under one");
    complete(&h, &next).await;
    complete(&h, &taken[0]).await;
    assert_eq!(h.claim().await.unwrap().execution_id, alone);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_gives_back_the_keys_that_were_taken_before_it() {
    let h = Harness::start().await;
    submit(&h, json!([{ "key": "b", "limit": 1 }])).await;
    let holder = claim_now(&h).await.unwrap();
    let both = submit(&h, json!([{ "key": "b", "limit": 1 }, { "key": "a", "limit": 1 }])).await;
    assert!(claim_now(&h).await.is_none());
    let only = submit(&h, json!([{ "key": "a", "limit": 1 }])).await;
    let task = h.claim_with(json!({ "wait_ms": 100 })).await.unwrap();
    assert_eq!(task.execution_id, only, "the refused one keeps no key");
    complete(&h, &task).await;
    complete(&h, &holder).await;
    assert_eq!(h.claim().await.unwrap().execution_id, both);
    h.must::<CreateQuota>(json!({ "name": "none", "max_concurrent": 1 })).await;
    h.submit(json!({ "quota_policy_id": "none" })).await;
    let filler = claim_now(&h).await.unwrap();
    h.submit(json!({ "quota_policy_id": "none", "concurrency": [{ "key": "z", "limit": 1 }] })).await;
    assert!(claim_now(&h).await.is_none());
    assert!(claim_now(&h).await.is_none());
    submit(&h, json!([{ "key": "z", "limit": 1 }])).await;
    assert!(h.claim_with(json!({ "wait_ms": 100 })).await.is_some(), "a quota that refuses gives the key back");
    complete(&h, &filler).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_claim_never_came_is_freed_and_one_in_use_is_kept() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let id = submit(&h, json!([{ "key": "k", "limit": 1 }])).await;
    // The slot is taken, and the claim itself fails for a while.
    trouble.begin(|call| {
        let claim = matches!(call, ff_store::memory::Call::Commit { partition, .. }
            if partition.family == ff_core::Family::Flow);
        ff_store::memory::Plan { fault: claim.then_some(ff_store::memory::Fault::Unavailable), ..Default::default() }
    });
    let refused = h.call::<ff_core::op::Claim>(json!({ "instance_id": "w", "lanes": ["default"], "wait_ms": 0 })).await;
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.tasks.is_empty()));
    trouble.end();
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.unwrap();
    assert_eq!(task.execution_id, id);
    h.pass(11_000).await;
    assert_eq!(documents(&h), (1, 1), "the slot of a live lease is kept past the age of orphans");
    complete(&h, &task).await;
    h.pass(15_000).await;
    assert_eq!(documents(&h), (0, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_was_lost_keeps_its_slot_though_its_execution_was_changed_since() {
    for mode in ["lease", "grant"] {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        let door = json!([{ "key": "door", "limit": 1 }]);
        let first = submit(&h, door.clone()).await;
        let mut lost = false;
        trouble.begin(move |call| {
            let Call::Commit { partition, batches } = call else { return Plan::default() };
            let claims = |batch: &Batch| batch.puts.iter().any(|put| put.key.kind() == kind::EXECUTION);
            if lost || partition.family != Family::Flow || !batches.iter().any(claims) {
                return Plan::default();
            }
            lost = true;
            let after = tokio::time::sleep(Duration::from_millis(50));
            Plan { fault: Some(Fault::LostReply), after: Some(Box::pin(after)), ..Plan::default() }
        });
        let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 2_000, "mode": mode });
        let change = async {
            h.pass(10).await;
            h.must::<ChangePriority>(json!({ "execution_id": first, "priority": 7 })).await
        };
        let (answer, _) = tokio::join!(h.must::<Claim>(ask), change);
        trouble.end();
        let granted = answer.grants.iter().map(|grant| grant.execution_id);
        let taken: Vec<ExecutionId> = answer.tasks.iter().map(|task| task.execution_id).chain(granted).collect();
        assert_eq!(taken, [first], "{mode}: it was taken by the commit whose reply was lost");
        let second = submit(&h, door).await;
        assert_eq!(claim_now(&h).await, None, "{mode}: one runs under the key");
        assert_eq!((h.state(&second).await, documents(&h)), (PublicState::RateLimited, (1, 1)), "{mode}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_holds_its_keys_until_it_lapses() {
    let h = Harness::start().await;
    submit(&h, json!([{ "key": "k", "limit": 1 }])).await;
    let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "grant_ttl_ms": 5_000 });
    assert_eq!(h.must::<ff_core::op::Claim>(ask).await.grants.len(), 1);
    assert_eq!(documents(&h), (1, 1));
    let task = h.claim_with(json!({ "wait_ms": 20_000 })).await.unwrap();
    complete(&h, &task).await;
    h.pass(15_000).await;
    assert_eq!(documents(&h), (0, 0));
    h.finish().await;
}

const SICK: Partition = Partition::flow(1);

async fn submit_in(h: &Harness, number: u8, partition: Partition) -> ExecutionId {
    let id = ExecutionId::in_partition(partition, &Mint { now_ms: h.engine.now(), random: [number; 10] });
    h.submit(json!({ "execution_id": id, "concurrency": [{ "key": "door", "limit": 1 }] })).await
}

/// A task has a key of one, and an execution in the partition that is about to fail waits for it.
async fn one_waits_in_another_partition() -> (Harness, Arc<Trouble>, Task, ExecutionId) {
    let partitions = Some(PartitionConfig { flow: 2, budget: 1, quota: 1 });
    let (h, trouble) = Harness::with_trouble(Options { partitions, ..Options::default() }).await;
    submit_in(&h, 1, Partition::flow(0)).await;
    let first = h.claim().await.unwrap();
    let waiting = submit_in(&h, 2, SICK).await;
    assert_eq!(claim_now(&h).await, None);
    (h, trouble, first, waiting)
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_key_out_of_reach_is_not_asked_for_again_and_again() {
    let (h, trouble, first, waiting) = one_waits_in_another_partition().await;
    assert_eq!(h.state(&waiting).await, PublicState::RateLimited);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    trouble.begin(move |call| {
        let (Call::Read { partition, .. } | Call::Commit { partition, .. }) = call;
        if partition != SICK {
            return Plan::default();
        }
        // The look at what waits there takes so long that the key is taken and given back meanwhile.
        let ms = if counted.fetch_add(1, Ordering::SeqCst) == 0 { 1_000 } else { 1 };
        let refused = tokio::time::sleep(Duration::from_millis(ms));
        Plan { before: Some(Box::pin(refused)), fault: Some(Fault::Unavailable), ..Plan::default() }
    });
    complete(&h, &first).await;
    submit_in(&h, 3, Partition::flow(0)).await;
    let second = h.claim().await.unwrap();
    complete(&h, &second).await;
    h.pass(100).await;
    assert_eq!(documents(&h), (1, 0), "nobody holds the key, and its document says where it is waited for");
    h.pass(5_000).await;
    let asked = calls.load(Ordering::SeqCst);
    assert!(asked < 40, "asked {asked} times in five seconds");
    trouble.end();
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("it looks at its gate again");
    assert_eq!(task.execution_id, waiting);
    complete(&h, &task).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_a_partition_that_answers_again_is_let_in_before_it_looks_for_itself() {
    let (h, trouble, first, waiting) = one_waits_in_another_partition().await;
    trouble.begin(|call| {
        let (Call::Read { partition, .. } | Call::Commit { partition, .. }) = call;
        Plan { fault: (partition == SICK).then_some(Fault::Unavailable), ..Plan::default() }
    });
    complete(&h, &first).await;
    h.pass(3_000).await;
    trouble.end();
    let answers_again = h.engine.now();
    let task = h.claim_with(json!({ "wait_ms": 30_000 })).await.expect("the key is free");
    assert_eq!(task.execution_id, waiting);
    let took = h.engine.now() - answers_again;
    assert!(took <= 3_000, "after {took} ms");
    complete(&h, &task).await;
    h.pass(15_000).await;
    assert_eq!(documents(&h), (0, 0));
    h.finish().await;
}
