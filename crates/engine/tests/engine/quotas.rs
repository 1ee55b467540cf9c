//! Quotas: how many start within a window, how many run at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Harness, START};
use ff_core::op::{
    CancelExecution, Complete, CreateQuota, Delay, DeleteQuota, Fail, GetExecution, GetQuota, ListQuotas,
};
use ff_core::{Code, Family, PublicState};
use ff_engine::Options;
use ff_store::memory::{Call, Fault, Plan};
use ff_store::{Batch, EntryChange, Guard, Put, Store};
use serde_json::{Value, json};

async fn claim_now(h: &Harness) -> Option<ff_core::op::view::Task> {
    h.claim_with(json!({ "wait_ms": 0 })).await
}

async fn in_use(h: &Harness) -> u32 {
    h.must::<GetQuota>(json!({ "name": "q" })).await.in_use
}

async fn submit(h: &Harness, more: Value) -> ff_core::ExecutionId {
    let mut args = json!({ "quota_policy_id": "q" });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    h.submit(args).await
}

fn slots(h: &Harness) -> usize {
    h.store.inspect(|contents| {
        let slot = |key: &ff_core::Key| key.kind() == ff_core::index::kind::SLOT;
        contents.partitions().map(|(_, c)| c.documents().filter(|(key, _)| slot(key)).count()).sum()
    })
}

#[tokio::test(start_paused = true)]
async fn the_third_start_within_the_window_waits_until_it_opens() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "window_seconds": 10, "max_requests": 2 })).await;
    for _ in 0..3 {
        submit(&h, json!({})).await;
    }
    let first = claim_now(&h).await.unwrap();
    let second = claim_now(&h).await.unwrap();
    assert!(claim_now(&h).await.is_none());
    let opens_at = h.must::<GetQuota>(json!({ "name": "q" })).await.opens_at.unwrap();
    let third = h.claim_with(json!({ "wait_ms": 20_000 })).await.unwrap();
    assert!(third.execution_id != first.execution_id && third.execution_id != second.execution_id);
    let now = h.engine.now();
    assert!((opens_at..opens_at + 200).contains(&now), "opened at {}, ran at {}", opens_at - START, now - START);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_execution_is_shown_as_rate_limited() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_requests": 1 })).await;
    submit(&h, json!({})).await;
    claim_now(&h).await.unwrap();
    let second = submit(&h, json!({})).await;
    assert!(claim_now(&h).await.is_none());
    let view = h.must::<GetExecution>(json!({ "execution_id": second })).await;
    assert_eq!(view.public_state, PublicState::RateLimited);
    assert!(view.blocking_detail.unwrap().contains("quota q"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_second_runs_the_moment_the_first_gives_up_its_slot() {
    for how in ["complete", "fail", "delay", "lose"] {
        let h = Harness::start().await;
        h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
        let policy = json!({ "retry": { "max_retries": 0 } });
        let first = submit(&h, json!({ "policy": policy, "priority": 1 })).await;
        let task = h.claim_with(json!({ "lease_ttl_ms": 2000 })).await.unwrap();
        let second = submit(&h, json!({ "priority": 2 })).await;
        let began = h.engine.now();
        let (taken, ()) = tokio::join!(h.claim(), async {
            h.pass(1_000).await;
            assert_eq!(h.state(&second).await, PublicState::RateLimited, "{how}");
            let call = json!({ "execution_id": first, "fence": task.fence });
            match how {
                "complete" => {
                    h.must::<Complete>(call).await;
                }
                "fail" => {
                    h.must::<Fail>(json!({ "execution_id": first, "fence": task.fence, "reason": "x" })).await;
                }
                "delay" => {
                    let delay = json!({ "execution_id": first, "fence": task.fence, "delay_ms": 60_000 });
                    {
                        h.must::<Delay>(delay).await;
                    };
                }
                _ => {}
            }
        });
        let taken = taken.unwrap();
        assert_eq!(taken.execution_id, second, "{how}");
        let waited = h.engine.now() - began;
        assert!(waited <= 2_100, "{how}: it ran after {waited} ms");
        h.must::<Complete>(json!({ "execution_id": second, "fence": taken.fence })).await;
        h.pass(10).await;
        assert_eq!((in_use(&h).await, slots(&h)), (0, 0), "{how}");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn racing_claimers_never_pass_the_limit_and_no_slot_leaks() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 5 })).await;
    for _ in 0..60 {
        submit(&h, json!({})).await;
    }
    let running = std::sync::atomic::AtomicUsize::new(0);
    let order = std::sync::atomic::Ordering::SeqCst;
    let worker = |number: usize| {
        let (h, running) = (&h, &running);
        async move {
            let mut done = 0;
            while let Some(task) = h.claim_with(json!({ "instance_id": format!("w-{number}"), "wait_ms": 5_000 })).await
            {
                let now = running.fetch_add(1, order) + 1;
                assert!(now <= 5, "{now} run at once");
                h.pass(50).await;
                running.fetch_sub(1, order);
                h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
                done += 1;
            }
            done
        }
    };
    let done: usize = futures_util::future::join_all((0..64).map(worker)).await.into_iter().sum();
    assert_eq!(done, 60);
    h.pass(20).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_task_with_a_quota_is_three_commits_of_its_partition() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 5 })).await;
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = commits.clone();
    trouble.begin(move |call| {
        if let Call::Commit { partition, batches } = &call
            && partition.family == Family::Flow
        {
            counted.fetch_add(batches.len(), Ordering::SeqCst);
        }
        Plan::default()
    });
    for _ in 0..10 {
        submit(&h, json!({})).await;
        let task = claim_now(&h).await.unwrap();
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    }
    h.pass(20).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    h.pass(30_000).await;
    assert_eq!(commits.load(Ordering::SeqCst), 30, "created, claimed, completed");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_cannot_be_given_back_is_tried_again_and_freed_by_its_timer_in_the_end() {
    for (away_ms, free_ms) in [(1_000, 2_000), (60_000, 75_000)] {
        let (h, trouble) = Harness::with_trouble(Options::default()).await;
        h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
        submit(&h, json!({})).await;
        let task = claim_now(&h).await.unwrap();
        let quotas = |call: &Call<'_>| {
            let (Call::Read { partition, .. } | Call::Commit { partition, .. }) = call;
            partition.family == Family::Quota
        };
        trouble.begin(move |call| if quotas(&call) { Fault::Unavailable.into() } else { Plan::default() });
        h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
        h.pass(away_ms).await;
        trouble.end();
        assert_eq!(slots(&h), 1);
        h.pass(free_ms - away_ms).await;
        assert_eq!((in_use(&h).await, slots(&h)), (0, 0), "away for {away_ms} ms");
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_dies_after_an_ending_leaves_a_slot_that_another_frees_in_time() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let other = h.second().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    submit(&h, json!({})).await;
    let task = claim_now(&h).await.unwrap();
    // The engine that ends the lease never gets as far as the quota.
    let mut first = true;
    trouble.begin(move |call| {
        let quota = matches!(&call, Call::Commit { partition, .. } if partition.family == Family::Quota);
        let hangs = quota && std::mem::take(&mut first);
        Plan { before: hangs.then(|| Box::pin(std::future::pending()) as _), ..Plan::default() }
    });
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(500).await;
    assert_eq!(slots(&h), 1);
    let second = submit(&other, json!({})).await;
    let taken = other.claim_with(json!({ "wait_ms": 15_000 })).await.expect("the slot is free within ten seconds");
    assert_eq!(taken.execution_id, second);
    trouble.end();
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_live_lease_is_kept_past_the_age_of_orphans() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    let id = submit(&h, json!({})).await;
    let task = claim_now(&h).await.unwrap();
    h.pass(11_000).await;
    assert_eq!((in_use(&h).await, slots(&h)), (1, 1));
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(10).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_lapses_gives_its_slot_back() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    submit(&h, json!({})).await;
    let ask = json!({ "instance_id": "w-1", "lanes": ["default"], "mode": "grant", "grant_ttl_ms": 20_000 });
    assert_eq!(h.must::<ff_core::op::Claim>(ask).await.grants.len(), 1);
    h.pass(15_000).await;
    assert_eq!(in_use(&h).await, 1, "an outstanding grant keeps its slot");
    h.pass(5_100).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_does_not_exist_parks_until_it_does() {
    let h = Harness::start().await;
    let id = submit(&h, json!({})).await;
    assert!(claim_now(&h).await.is_none());
    assert_eq!(h.state(&id).await, PublicState::RateLimited);
    h.must::<CreateQuota>(json!({ "name": "q" })).await;
    assert_eq!(claim_now(&h).await.unwrap().execution_id, id);
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0), "without a limit nothing is recorded");
    assert_eq!(h.must::<ListQuotas>(json!({})).await.items.len(), 1);
    assert_eq!(h.refused::<CreateQuota>(json!({ "name": "q", "max_requests": 1 })).await, Code::DefinitionConflict);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn two_claimers_with_one_lease_id_never_free_each_others_slot() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let other = h.second().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 2 })).await;
    submit(&h, json!({})).await;
    h.pass(10).await;
    // Both are admitted before either lease is written.
    trouble.begin(|call| {
        let claim = matches!(call, Call::Commit { partition, .. } if partition.family == ff_core::Family::Flow);
        let pause = || Box::pin(tokio::time::sleep(std::time::Duration::from_millis(50))) as ff_store::memory::Pause;
        Plan { before: claim.then(pause), ..Default::default() }
    });
    let lease = ff_core::LeaseId::mint(&ff_core::Mint { now_ms: START, random: [7; 10] });
    let ask = json!({ "lease_ids": [lease], "wait_ms": 0, "retry": true });
    let (first, second) = tokio::join!(h.claim_with(ask.clone()), other.claim_with(ask));
    trouble.end();
    let task = first.or(second).expect("one of them gets it");
    assert_eq!((in_use(&h).await, slots(&h)), (1, 1), "the loser gave back its own slot");
    h.pass(11_000).await;
    assert_eq!((in_use(&h).await, slots(&h)), (1, 1), "the slot of a live lease is kept");
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    h.pass(10).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_claim_the_store_forgot_is_freed_by_the_reconciler() {
    let h = Harness::with(ff_engine::Options { reconcile_ms: 0, ..Default::default() }).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    let first = submit(&h, json!({})).await;
    let task = claim_now(&h).await.unwrap();
    h.pass(11_000).await;
    let quota = ff_core::Partition::quota(0);
    let seen = h.store.inspect(|contents| {
        let documents = contents.partition(quota).unwrap().documents();
        documents.map(|(key, raw)| (key.clone(), raw.body.clone())).collect::<Vec<_>>()
    });
    assert_eq!((in_use(&h).await, seen.len()), (1, 2), "the slot was seen in use");
    h.must::<Complete>(json!({ "execution_id": first, "fence": task.fence })).await;
    h.pass(10).await;
    // The quota and its slot as they would be if the store had lost the claim and its end on the other side.
    let mut batch = Batch::new(ff_core::CommandId::default());
    for (key, body) in seen {
        let store: &dyn Store = h.store.as_ref();
        let there = store.documents(quota, vec![key.clone()]).await.unwrap().pop().unwrap();
        batch.guards.push(match there {
            Some(stored) => Guard::Version(key.clone(), stored.version),
            None => Guard::Absent(key.clone()),
        });
        for entry in ff_core::documents::index_entries(&key, &body, 0).unwrap().unwrap() {
            let (index, member, score) = (entry.index, entry.member, entry.score);
            batch.entries.push(EntryChange::Set { index, member, score });
        }
        batch.puts.push(Put { key, body, fence: Default::default(), expires_at: None });
    }
    let outcomes = (h.store.as_ref() as &dyn Store).commit(quota, [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some(), "{outcomes:?}");
    let second = submit(&h, json!({})).await;
    assert!(claim_now(&h).await.is_none(), "the quota is full");
    let found = h.engine.reconcile(quota).await;
    assert_eq!(found.repaired, 1, "{found:?}");
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    assert_eq!(claim_now(&h).await.map(|task| task.execution_id), Some(second));
    h.finish().await;
}

fn done(task: &ff_core::op::view::Task) -> Value {
    json!({ "execution_id": task.execution_id, "fence": task.fence })
}

#[tokio::test(start_paused = true)]
async fn room_that_its_first_waiter_does_not_take_goes_to_the_next() {
    let h = Harness::start().await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    submit(&h, json!({ "priority": 10 })).await;
    for _ in 0..9 {
        submit(&h, json!({ "lane": "nobody", "priority": 5 })).await;
    }
    let cancelled = submit(&h, json!({ "priority": 7 })).await;
    let last = submit(&h, json!({})).await;
    let claim = json!({ "lanes": ["default", "nobody"], "wait_ms": 0, "max_tasks": 20 });
    let first = h.claim_with(claim).await.unwrap();
    h.must::<Complete>(done(&first)).await;
    h.pass(10).await;
    h.must::<CancelExecution>(json!({ "execution_id": cancelled })).await;
    let began = h.engine.now();
    let next = h.claim_with(json!({ "wait_ms": 20_000 })).await.expect("there is room for it");
    assert_eq!(next.execution_id, last);
    assert!(h.engine.now() - began < 5_000, "after {} ms", h.engine.now() - began);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_made_anew_while_its_holder_runs_wakes_what_waits_for_it() {
    let h = Harness::start().await;
    let quota = json!({ "name": "q", "max_concurrent": 1 });
    h.must::<CreateQuota>(quota.clone()).await;
    submit(&h, json!({})).await;
    let second = submit(&h, json!({})).await;
    let first = claim_now(&h).await.unwrap();
    assert!(claim_now(&h).await.is_none());
    h.must::<DeleteQuota>(json!({ "name": "q", "force": true })).await;
    h.must::<CreateQuota>(quota).await;
    assert_eq!(in_use(&h).await, 1);
    h.must::<Complete>(done(&first)).await;
    let began = h.engine.now();
    assert_eq!(h.claim_with(json!({ "wait_ms": 20_000 })).await.unwrap().execution_id, second);
    assert!(h.engine.now() - began < 1_000, "after {} ms", h.engine.now() - began);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_not_there_is_not_in_use() {
    let h = Harness::start().await;
    submit(&h, json!({})).await;
    for force in [false, true] {
        assert_eq!(h.refused::<DeleteQuota>(json!({ "name": "q", "force": force })).await, Code::QuotaNotFound);
    }
    h.finish().await;
}

/// Gives a slot back at the moment at which a quota of its name is made: after it was counted, before the quota is there.
#[tokio::test(start_paused = true)]
async fn a_slot_that_is_given_back_while_its_quota_is_made_anew_is_not_counted_for_ever() {
    let (h, trouble) = Harness::with_trouble(Options::default()).await;
    let quota = json!({ "name": "q", "max_concurrent": 1 });
    h.must::<CreateQuota>(quota.clone()).await;
    submit(&h, json!({})).await;
    let task = claim_now(&h).await.unwrap();
    h.must::<DeleteQuota>(json!({ "name": "q", "force": true })).await;
    // Commits of quotas take their time; the one that gives the slot back was sent before.
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    trouble.begin(move |call| match call {
        Call::Commit { partition, .. }
            if partition.family == Family::Quota && counted.fetch_add(1, Ordering::Relaxed) == 0 =>
        {
            let pause: ff_store::memory::Pause = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(20)));
            Plan { before: Some(pause), ..Plan::default() }
        }
        _ => Plan::default(),
    });
    let (_, ()) = tokio::join!(h.must::<CreateQuota>(quota), async {
        h.pass(5).await;
        h.must::<Complete>(done(&task)).await;
    });
    trouble.end();
    h.pass(100).await;
    assert_eq!((in_use(&h).await, slots(&h)), (0, 0));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_for_a_slot_starts_when_the_window_opens() {
    for (max_requests, max_concurrent, at_once, all) in [(2, 1, 1, 6), (2, 1, 2, 6), (6, 3, 5, 18)] {
        let h = Harness::start().await;
        let quota =
            json!({ "name": "q", "window_seconds": 2, "max_requests": max_requests, "max_concurrent": max_concurrent });
        h.must::<CreateQuota>(quota).await;
        for _ in 0..all {
            submit(&h, json!({})).await;
        }
        let began = h.engine.now();
        let mut ended = 0;
        while ended < all {
            let claim = json!({ "instance_id": "w-1", "lanes": ["default"], "wait_ms": 300, "max_tasks": at_once });
            let tasks = h.must::<ff_core::op::Claim>(claim).await.tasks;
            h.pass(20).await;
            for task in &tasks {
                h.must::<Complete>(done(task)).await;
            }
            ended += tasks.len();
            let took = h.engine.now() - began;
            assert!(took < 10_000, "{ended} of {all} in {took} ms with {max_requests} and {max_concurrent}");
        }
        h.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_a_change_adds_is_used_when_the_window_opens() {
    let h = Harness::start().await;
    let quota = json!({ "name": "q", "window_seconds": 2, "max_requests": 1, "max_concurrent": 1 });
    h.must::<CreateQuota>(quota).await;
    submit(&h, json!({})).await;
    let waiting = submit(&h, json!({})).await;
    claim_now(&h).await.expect("the first starts");
    assert!(claim_now(&h).await.is_none());
    h.must::<ff_core::op::UpdateQuota>(json!({ "name": "q", "max_concurrent": 2 })).await;
    let began = h.engine.now();
    let next = h.claim_with(json!({ "wait_ms": 20_000 })).await.expect("it starts");
    assert_eq!(next.execution_id, waiting);
    assert!(h.engine.now() - began < 5_000, "after {} ms", h.engine.now() - began);
    h.finish().await;
}
