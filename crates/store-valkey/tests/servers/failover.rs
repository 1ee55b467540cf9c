//! Servers die, are replaced and hand over slots while commits go on. Nothing of ours is restarted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::{CommandId, Partition};
use ff_store::{Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Cluster, Server, wait_until};

use crate::support::{Load, creation, new_key};

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

fn slot_of(cluster: &Cluster, partition: Partition) -> u16 {
    let answer = cluster.nodes[0].client().command(&format!("CLUSTER KEYSLOT {partition}"));
    u16::try_from(answer.integer()).expect("a slot")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_has_everything_acknowledged_as_replicated() {
    let mut primary = Server::start();
    // A chain, so that one confirmation means the server that will be promoted, and that one has a replica then.
    let (replica, last) = (Server::start(), Server::start());
    replica.follow(&primary);
    last.follow(&replica);
    let url = format!("valkey://{},{}?tier=replicated&request_timeout_ms=2000", primary.address(), replica.address());
    let store = open(&url).await;
    let load = Load::start(&store, &[0, 1, 2, 3, 4, 5, 6, 7].map(Partition::flow));
    load.more(300).await;
    primary.kill();
    replica.promote();
    load.more(300).await;
    let ledger = load.finish().await;
    println!("{} acknowledged, {} unknown", ledger.acknowledged.len(), ledger.unknown);
    assert_eq!(ledger.errors, vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_found_again_and_its_watchers_resync() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = open(&server.url()).await;
    let mut hints = store.watch();
    let load = Load::start(&store, &[0, 1].map(Partition::flow));
    for _ in 0..3 {
        load.more(50).await;
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart();
            server
        })
        .await
        .expect("the server restarts");
    }
    load.more(50).await;
    assert_eq!(hints.next().await, Some(ff_store::WatchEvent::Resync));
    let ledger = load.finish().await;
    assert_eq!(ledger.errors, vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_costs_unknown_outcomes_and_nothing_else() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let load = Load::start(&store, &[0, 1, 2, 3, 4, 5, 6, 7].map(Partition::flow));
    for _ in 0..20 {
        load.more(40).await;
        server.command("CLIENT KILL TYPE normal SKIPME yes");
    }
    load.more(40).await;
    let ledger = load.finish().await;
    println!("{} acknowledged, {} unknown", ledger.acknowledged.len(), ledger.unknown);
    assert_eq!((ledger.unavailable, ledger.errors), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_reported_in_time_and_used_again_when_it_speaks() {
    let server = Server::start();
    let store = open(&format!("{}?request_timeout_ms=300&connect_timeout_ms=500", server.url())).await;
    let (here, key) = (Partition::flow(1), new_key());
    assert!(store.commit(here, [creation(&key, CommandId::default())].into()).await.is_ok());
    server.freeze();
    let started = Instant::now();
    let unknown = store.commit(here, [creation(&new_key(), CommandId::default())].into()).await;
    assert!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    let unanswered = store.documents(here, vec![key.clone()]).await;
    assert!(matches!(unanswered, Err(StoreError::Unavailable(_))), "{unanswered:?}");
    // Now it is known that the server is silent: nothing is sent, so nothing is unknown.
    let unsent = store.commit(here, [creation(&new_key(), CommandId::default())].into()).await;
    assert!(matches!(unsent, Err(StoreError::Unavailable(_))), "{unsent:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    server.thaw();
    assert!(store.documents(here, vec![key]).await.is_ok_and(|found| found[0].is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_survives_the_loss_of_a_primary() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start).await.expect("the cluster starts");
    let store = open(&format!("{}&tier=replicated", cluster.url())).await;
    let partitions: Vec<Partition> = (0..8).map(Partition::flow).collect();
    let slot = slot_of(&cluster, partitions[0]);
    let load = Load::start(&store, &partitions);
    load.more(200).await;
    let victim = cluster.owner(slot);
    cluster.nodes[victim].kill();
    cluster = tokio::task::spawn_blocking(move || {
        wait_until("a replica takes over", || cluster.owner(slot) != victim);
        // Without a replica the new primary could confirm nothing. The dead server does not come back for that: some
        // versions of Valkey refuse the cluster file that a crash during a failover leaves.
        cluster.add_replica(cluster.owner(slot));
        cluster
    })
    .await
    .expect("the cluster fails over");
    load.more(200).await;
    // A committer of its own for the slot that moved: it goes on there.
    let moved = Load::start(&store, &partitions[..1]);
    moved.more(20).await;
    for load in [load, moved] {
        let ledger = load.finish().await;
        println!("{} acknowledged, {} unknown", ledger.acknowledged.len(), ledger.unknown);
        assert_eq!(ledger.errors, vec![]);
    }
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_to_a_fresh_server_and_no_call_fails() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start_patient).await.expect("the cluster starts");
    let store = open(&cluster.url()).await;
    let partitions: Vec<Partition> = (0..6).map(Partition::flow).collect();
    let slot = slot_of(&cluster, partitions[0]);
    let mut hints = store.watch();
    let load = Load::start(&store, &partitions);
    load.more(300).await;
    cluster = tokio::task::spawn_blocking(move || {
        let fresh = cluster.add_node();
        cluster.nodes[fresh].command("FUNCTION FLUSH");
        cluster.migrate_slot(slot, fresh, || {});
        assert_eq!(cluster.owner(slot), fresh);
        cluster
    })
    .await
    .expect("the slot moves");
    load.more(300).await;
    assert_eq!(hints.next().await, Some(ff_store::WatchEvent::Resync), "the channel moved with its slot");
    let ledger = load.finish().await;
    assert_eq!((ledger.unknown, ledger.unavailable, ledger.errors), (0, 0, vec![]));
    drop(cluster);
}

/// How long each of many calls took.
async fn timed<T>(count: usize, call: impl AsyncFn() -> T) -> Vec<(Duration, T)> {
    let mut times = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        let answer = call().await;
        times.push((started.elapsed(), answer));
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_dead_primary_fail_at_once_and_those_to_others_go_on() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start_patient).await.expect("the cluster starts");
    let store = open(&cluster.url()).await;
    let dead = Partition::flow(0);
    let victim = cluster.owner(slot_of(&cluster, dead));
    let mut others = (1..32).map(Partition::flow);
    let healthy = others.find(|partition| cluster.owner(slot_of(&cluster, *partition)) != victim).expect("some are");
    let create = async |partition| store.commit(partition, [creation(&new_key(), CommandId::default())].into()).await;
    assert!(create(dead).await.is_ok() && create(healthy).await.is_ok());
    cluster.nodes[victim].kill();
    // A short outage is waited for, once; a commit that was under way is unknown and no matter here.
    let started = Instant::now();
    while !matches!(create(dead).await, Err(StoreError::Unavailable(_))) {}
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let on_dead = timed(100, async || {
        let read = store.documents(dead, vec![new_key()]).await;
        (create(dead).await, read)
    });
    let on_healthy = timed(200, async || create(healthy).await);
    let (on_dead, on_healthy) = tokio::join!(on_dead, on_healthy);
    for (took, (committed, read)) in on_dead {
        assert!(matches!(committed, Err(StoreError::Unavailable(_))), "{committed:?}");
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
    assert!(on_healthy.iter().all(|(_, committed)| committed.is_ok()));
    let mut times: Vec<Duration> = on_healthy.into_iter().map(|(took, _)| took).collect();
    times.sort();
    println!("healthy: p50 {:?}, p99 {:?}", times[100], times[197]);
    assert!(times[197] < Duration::from_millis(500), "{:?}", times[197]);
    drop(cluster);
}
