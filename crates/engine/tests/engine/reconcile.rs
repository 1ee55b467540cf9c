//! Findings and repairs of the reconciler.

use std::sync::atomic::Ordering;

use crate::support::Harness;
use ff_core::op::{Complete, CreateQuota, RenewLeases};
use ff_core::{Document, Family, Indexed, Key, Partition, QuotaPolicy, index};
use ff_store::memory::{Call, Plan};
use ff_store::{Batch, EntryChange, Guard, Put, Store};
use serde_json::json;

/// Damages an index behind the engine's back, under the version of a document.
pub(crate) async fn damage(h: &Harness, key: &Key, change: EntryChange) {
    let store: &dyn Store = h.store.as_ref();
    let found = store.documents(Partition::flow(0), vec![key.clone()]).await.unwrap();
    let version = found[0].as_ref().unwrap().version;
    let mut batch = Batch::new(ff_core::CommandId::default());
    batch.guards.push(Guard::Version(key.clone(), version));
    batch.entries.push(change);
    let outcomes = store.commit(Partition::flow(0), [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
}

#[tokio::test(start_paused = true)]
async fn missing_surplus_and_moved_entries_are_repaired() {
    let h = Harness::with(ff_engine::Options { reconcile_ms: 0, ..Default::default() }).await;
    let id = h.submit(json!({ "tags": { "team": "a" } })).await;
    let key = ff_core::execution::Execution::key_of(&id);
    let stored = (h.store.as_ref() as &dyn Store).documents(Partition::flow(0), vec![key.clone()]).await.unwrap();
    let execution = ff_core::execution::Execution::decode(&stored[0].as_ref().unwrap().body).unwrap();
    let queue = execution.index_entries(0).into_iter().find(|entry| entry.index.as_bytes()[0] == b'q').unwrap();
    damage(&h, &key, EntryChange::Remove { index: queue.index.clone(), member: key.clone() }).await;
    let stray = index::queue("default", "elsewhere", "kind", "", "");
    damage(&h, &key, EntryChange::Set { index: stray, member: key.clone(), score: 7 }).await;
    let tag = index::tag("default", "team", "a");
    damage(&h, &key, EntryChange::Set { index: tag, member: key.clone(), score: 7 }).await;
    let found = h.engine.reconcile(Partition::flow(0)).await;
    assert_eq!((found.repaired, found.unreadable), (3, 0), "{found:?}");
    h.check();
    let again = h.engine.reconcile(Partition::flow(0)).await;
    assert_eq!(again.repaired, 0, "there is nothing left to repair: {again:?}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn reconcilers_have_been_through_everything_when_nothing_of_a_large_partition_is_left() {
    let h = Harness::with(ff_engine::Options { reconcile_ms: 1_000, ..Default::default() }).await;
    let rounds = || h.engine.metrics().reconciled.load(Ordering::Relaxed);
    h.pass(1_500).await;
    assert_eq!(rounds(), 1);
    for _ in 0..1_200 {
        h.submit(json!({})).await;
    }
    let before = rounds();
    h.pass(10_000).await;
    let rounds = rounds() - before;
    assert!((1..=7).contains(&rounds), "a round takes several looks at 1,000 entries each: {rounds}");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn losing_the_race_for_a_timer_is_no_repair() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let other = h.second().await;
    h.submit(json!({})).await;
    h.claim_with(json!({ "lease_ttl_ms": 1_000 })).await.expect("the work");
    // Whichever server fires first is slow, so that both fire and one comes too late.
    let mut first = true;
    trouble.begin(move |call| {
        let expires = matches!(call, Call::Commit { partition, batches } if partition != Partition::SYSTEM
            && batches.iter().any(|batch| batch.guards.iter().any(|guard| matches!(guard, Guard::Expired(_)))));
        let mut plan = Plan::default();
        if expires && std::mem::take(&mut first) {
            plan.before = Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(1_000))));
        }
        plan
    });
    h.pass(3_000).await;
    h.claim().await.expect("the lease was given up");
    for engine in [&h.engine, &other.engine] {
        assert_eq!(engine.metrics().repairs.load(Ordering::Relaxed), 0);
    }
    trouble.end();
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_while_its_entry_is_checked_is_no_repair() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options { reconcile_ms: 0, ..Default::default() }).await;
    h.submit(json!({})).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 5_000 })).await.expect("the work");
    // Every read of the reconciler is slow; the holder renews between any two of them.
    trouble.begin(|call| {
        let mut plan = Plan::default();
        if matches!(call, Call::Read { .. }) {
            plan.after = Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(100))));
        }
        plan
    });
    let (engine, caller) = (h.engine.clone(), h.caller.clone());
    let renewing = tokio::spawn(async move {
        loop {
            let args = json!({ "leases": [{ "execution_id": task.execution_id, "fence": task.fence }] });
            let args = serde_json::from_str(&args.to_string()).expect("the arguments are readable");
            engine.call::<RenewLeases>(&caller, args).await.expect("the lease holds");
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
    });
    let found = h.engine.reconcile(Partition::flow(0)).await;
    renewing.abort();
    assert_eq!((found.repaired, h.engine.metrics().repairs.load(Ordering::Relaxed)), (0, 0), "{found:?}");
    trouble.end();
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_its_execution_still_owes_is_not_leaked() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options { reconcile_ms: 0, ..Default::default() }).await;
    h.must::<CreateQuota>(json!({ "name": "q", "max_concurrent": 1 })).await;
    h.submit(json!({ "quota_policy_id": "q" })).await;
    let task = h.claim().await.expect("the work");
    h.pass(15_000).await;
    // The end is committed, and giving the slot back takes a while.
    trouble.begin(|call| {
        let mut plan = Plan::default();
        if matches!(call, Call::Commit { partition, .. } if partition.family == Family::Quota) {
            plan.before = Some(Box::pin(tokio::time::sleep(std::time::Duration::from_millis(500))));
        }
        plan
    });
    h.must::<Complete>(json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
    let found = h.engine.reconcile(Partition::quota(0)).await;
    assert_eq!(found.repaired, 0, "{found:?}");
    trouble.end();
    h.pass(1_000).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn more_quotas_than_fit_on_a_page_are_all_recounted() {
    const QUOTAS: usize = 405;
    let h = Harness::with(ff_engine::Options { reconcile_ms: 0, ..Default::default() }).await;
    let place = Partition::quota(0);
    let mut batch = Batch::new(ff_core::CommandId::default());
    for number in 0..QUOTAS {
        let name = format!("q-{number}");
        h.must::<CreateQuota>(json!({ "name": name, "max_concurrent": 1 })).await;
        let key = QuotaPolicy::key_of("default", &name);
        let found = (h.store.as_ref() as &dyn Store).documents(place, vec![key.clone()]).await.unwrap();
        let stored = found[0].as_ref().unwrap();
        // A slot that nothing holds is counted.
        let mut quota = QuotaPolicy::decode(&stored.body).unwrap();
        quota.recount(1, h.engine.now());
        batch.guards.push(Guard::Version(key.clone(), stored.version));
        batch.puts.push(Put { key, body: quota.encode().into(), fence: Default::default(), expires_at: None });
    }
    let outcomes = (h.store.as_ref() as &dyn Store).commit(place, [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some(), "{outcomes:?}");
    let found = h.engine.reconcile(place).await;
    assert_eq!(found.repaired, QUOTAS as u64, "{found:?}");
    assert_eq!(h.engine.reconcile(place).await.repaired, 0);
    h.finish().await;
}
