//! The registry of servers: what it costs a server that is alone, and how several find each other.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::recovery::join_late;
use crate::support::Harness;
use ff_core::op::{Claim, Complete, GetDeployment, RegisterWorker};
use ff_core::worker::Server;
use ff_core::{Code, CommandId, Document, Indexed, Partition, index};
use ff_store::{Batch, EntryChange, Fence, Guard, LeaseChange, Put, Store};
use futures_util::future::join_all;
use serde_json::json;

/// A registration of a server that is alone lasts for a day.
const LONE_TTL_MS: i64 = 86_400_000;

/// The registered servers: the id of each, and how long the registration lasts from each heartbeat.
fn registered(h: &Harness) -> Vec<(String, i64)> {
    h.store.inspect(|contents| {
        let system = contents.partition(Partition::SYSTEM).expect("somebody registered");
        let servers = system.documents().filter(|(key, _)| key.kind() == index::kind::SERVER);
        let servers = servers.map(|(_, raw)| Server::decode(&raw.body).expect("a readable server"));
        servers.map(|server| (server.server_id, server.ttl_ms)).collect()
    })
}

fn commits(h: &Harness) -> u64 {
    h.engine.metrics().commits.snapshot().0.iter().sum()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_alone_and_idle_commits_nothing() {
    let h = Harness::start().await;
    h.pass(2_000).await;
    let (before, reads) = (commits(&h), h.engine.metrics().reads.load(Ordering::Relaxed));
    h.pass(3_600_000).await;
    assert_eq!(commits(&h), before);
    let reads = h.engine.metrics().reads.load(Ordering::Relaxed) - reads;
    assert!(reads < 3_600, "{reads} reads in an hour");
    h.finish().await;
}

/// Lets workers claim again and again for five minutes while there is no work.
async fn claims_of_idle_workers(h: &Harness, instances: &[&str]) {
    for _ in 0..10 {
        let claims =
            instances.iter().map(|instance| h.claim_with(json!({ "instance_id": instance, "wait_ms": 30_000 })));
        assert!(join_all(claims).await.into_iter().all(|task| task.is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_wait_ask_the_store_nothing_whether_registered_or_not() {
    let h = Harness::start().await;
    let register = json!({ "instance_id": "bound", "worker_id": "w", "lanes": ["default"], "nonce": "n", "capacity": 2,
        "lease_ttl_ms": 600_000 });
    h.must::<RegisterWorker>(register.clone()).await;
    let reads = || h.engine.metrics().reads.load(Ordering::Relaxed);
    let instances = ["bound", "unknown"];
    claims_of_idle_workers(&h, &instances).await;
    let before = reads();
    h.pass(300_000).await;
    let alone = reads() - before;
    claims_of_idle_workers(&h, &instances).await;
    let beside = reads() - before - alone;
    // Each worker is counted anew once in that time.
    assert!(beside <= alone + 4, "{alone} reads without workers, {beside} with");
    // A registration that changes is counted by the next claim.
    for n in 0..4 {
        h.submit(json!({ "priority": n })).await;
    }
    assert!(h.claim_with(json!({ "instance_id": "bound" })).await.is_some());
    let narrower = json!({ "capacity": 1 });
    let again = register.as_object().unwrap().clone().into_iter().chain(narrower.as_object().unwrap().clone());
    h.must::<RegisterWorker>(again.collect::<serde_json::Map<_, _>>().into()).await;
    let claim = json!({ "instance_id": "bound", "lanes": ["default"], "wait_ms": 0 });
    assert_eq!(h.refused::<Claim>(claim.clone()).await, Code::WorkerAtCapacity);
    assert_eq!(
        h.must::<Claim>(json!({ "instance_id": "unknown", "lanes": ["default"], "max_tasks": 3 })).await.tasks.len(),
        3
    );
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn servers_that_see_each_other_heartbeat_until_one_is_alone_again() {
    let h = Harness::start().await;
    let other = h.second().await;
    h.pass(100).await;
    assert!(registered(&h).iter().all(|(_, ttl_ms)| *ttl_ms == 4_000), "{:?}", registered(&h));
    let before = commits(&h);
    h.pass(300_000).await;
    assert_eq!(registered(&h).len(), 2, "both are still there");
    assert!(commits(&h) > before, "a server among several heartbeats");
    other.engine.close().await;
    h.pass(100).await;
    assert_eq!(registered(&h).iter().map(|(_, ttl_ms)| *ttl_ms).collect::<Vec<_>>(), [LONE_TTL_MS]);
    let before = commits(&h);
    h.pass(300_000).await;
    assert_eq!(commits(&h), before);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_trace_of_a_server_that_died_alone_is_removed() {
    let h = Harness::start().await;
    let ghost = Server::start("ghost", "", LONE_TTL_MS, h.store.now()).expect("a server");
    let held = ghost.document_lease();
    let fence = Fence { epoch: held.epoch, lease: held.lease_id };
    let mut batch = Batch::new(CommandId::default());
    batch.guards.push(Guard::Absent(ghost.key()));
    batch.puts.push(Put { key: ghost.key(), body: ghost.encode().into(), fence, expires_at: None });
    for entry in ghost.index_entries(0) {
        let (index, member, score) = (entry.index, entry.member, entry.score);
        batch.entries.push(EntryChange::Set { index, member, score });
    }
    let member = index::Due::Lease.member(&ghost.key());
    batch.leases.push(LeaseChange { key: ghost.key(), ttl_ms: Some(LONE_TTL_MS), index: index::due(), member });
    let outcomes = (h.store.as_ref() as &dyn Store).commit(Partition::SYSTEM, [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some(), "{outcomes:?}");
    h.pass(120_000).await;
    assert!(registered(&h).iter().all(|(id, ttl_ms)| id != "ghost" && *ttl_ms == LONE_TTL_MS), "{:?}", registered(&h));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_tells_which_servers_live_without_asking_the_store() {
    let h = Harness::start().await;
    let other = h.second().await;
    h.pass(100).await;
    let reads = h.engine.metrics().reads.load(Ordering::Relaxed);
    let shown = h.must::<GetDeployment>(json!({})).await.servers;
    assert_eq!(h.engine.metrics().reads.load(Ordering::Relaxed), reads);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(shown.iter().filter(|server| server.answers).count(), 1, "{shown:?}");
    assert!(shown.iter().all(|server| server.version == env!("CARGO_PKG_VERSION")), "{shown:?}");
    other.engine.close().await;
    h.pass(100).await;
    let left = h.must::<GetDeployment>(json!({})).await.servers;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].answers);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_wait_finds_what_another_server_has_acknowledged() {
    let h = Harness::start().await;
    let (other, _) = join_late(&h, Duration::from_millis(10)).await;
    h.pass(100).await;
    assert!(other.claim_with(json!({ "wait_ms": 0 })).await.is_none(), "there is nothing yet");
    for _ in 0..10 {
        let id = h.submit(json!({})).await;
        let task = other.claim_with(json!({ "wait_ms": 0 })).await.expect("its hint is under way");
        assert_eq!(task.execution_id, id);
        other.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    }
    other.engine.close().await;
    h.finish().await;
}
