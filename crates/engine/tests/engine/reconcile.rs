//! What the reconciler finds and repairs.

use crate::support::Harness;
use ff_core::{Document, Indexed, Key, Partition, index};
use ff_store::{Batch, EntryChange, Guard, Store};
use serde_json::json;

/// Damages an index behind the engine's back, under the version of a document.
async fn damage(h: &Harness, key: &Key, change: EntryChange) {
    let store: &dyn Store = h.store.as_ref();
    let found = store.documents(Partition::flow(0), vec![key.clone()]).await.unwrap();
    let version = found[0].as_ref().unwrap().version;
    let mut batch = Batch::new(ff_core::CommandId::default());
    batch.guards.push(Guard::Version(key.clone(), version));
    batch.entries.push(change);
    let outcomes = store.commit(Partition::flow(0), vec![batch]).await.unwrap();
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
    let stray = index::queue("default", "elsewhere", "", "");
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
