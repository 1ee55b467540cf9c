//! Hints travel between processes, also where the store does not expect a partition.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::{CommandId, Partition};
use ff_store::{Hint, Hints, Store, WatchEvent};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Cluster, Server};

use crate::support::{creation, new_key};

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

async fn send(store: &Arc<dyn Store>, from: Partition, about: Partition) -> Hint {
    let key = new_key();
    let hint = Hint { partition: about, payload: Bytes::copy_from_slice(key.as_bytes()) };
    let mut batch = creation(&key, CommandId::default());
    batch.hints.push(hint.clone());
    store.commit(from, [batch].into()).await.expect("it commits");
    hint
}

/// The next hint, whatever else is said.
async fn next_hint(hints: &mut Hints) -> Hint {
    loop {
        match hints.next().await.expect("the store is open") {
            WatchEvent::Hint(hint) => return hint,
            WatchEvent::Resync => {}
        }
    }
}

/// Sends hints until one is heard elsewhere: a process that was alone keeps them to itself until it has heard the other's
/// greeting.
async fn until_heard(from: &Arc<dyn Store>, partition: Partition, elsewhere: &mut Hints) {
    loop {
        let hint = send(from, partition, partition).await;
        while let Ok(heard) = tokio::time::timeout(Duration::from_millis(500), next_hint(elsewhere)).await {
            if heard == hint {
                return;
            }
        }
    }
}

/// How often a server has published something on a channel.
fn published(server: &Server, command: &str) -> usize {
    let text = server.command("INFO commandstats").into_text();
    let line = text.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let count = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()).unwrap_or("0");
    count.parse().expect("a number")
}

#[tokio::test]
async fn both_processes_hear_a_hint_on_a_single_server() {
    let server = Server::start();
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let (mut own, mut foreign) = (one.watch(), other.watch());
    let mut hint = send(&one, Partition::flow(1), Partition::quota(2)).await;
    assert_eq!(next_hint(&mut own).await, hint);
    // One that was alone until now may have kept this to itself. Then it said so, and publishes what comes next.
    if foreign.next().await == Some(WatchEvent::Resync) {
        hint = send(&one, Partition::flow(1), Partition::quota(2)).await;
        assert_eq!(next_hint(&mut own).await, hint);
        assert_eq!(next_hint(&mut foreign).await, hint);
    }
}

#[tokio::test]
async fn who_listens_alone_hears_its_own_hints_and_publishes_nothing() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let mut hints = store.watch();
    // That it is alone it learns from the answer to its greeting, which is the first publication.
    let mut before = 0;
    loop {
        let hint = send(&store, Partition::flow(1), Partition::flow(1)).await;
        assert_eq!(next_hint(&mut hints).await, hint);
        let after = published(&server, "publish");
        if after > 0 && after == before {
            break;
        }
        before = after;
    }
}

#[tokio::test]
async fn who_listens_alone_in_a_cluster_publishes_nothing_until_somebody_comes() {
    let cluster = Cluster::start_patient();
    let store = open(&cluster.url()).await;
    let mut hints = store.watch();
    let mut before = 0;
    loop {
        for number in 0..12 {
            let hint = send(&store, Partition::flow(number), Partition::flow(number)).await;
            assert_eq!(next_hint(&mut hints).await, hint);
        }
        let after = cluster.nodes.iter().map(|node| published(node, "spublish")).sum();
        if after > 0 && after == before {
            break;
        }
        before = after;
    }
    let other = open(&cluster.url()).await;
    let mut foreign = other.watch();
    // The process that was alone tells the newcomer to look at everything, because it has not published its earlier
    // commits.
    assert_eq!(foreign.next().await, Some(WatchEvent::Resync));
    for number in 0..12 {
        until_heard(&store, Partition::flow(number), &mut foreign).await;
    }
}

#[tokio::test]
async fn both_processes_hear_hints_of_every_partition_of_a_cluster() {
    let cluster = Cluster::start_patient();
    let (one, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let (mut own, mut foreign) = (one.watch(), other.watch());
    let partitions = [Partition::flow(0), Partition::flow(255), Partition::budget(31), Partition::SYSTEM];
    for partition in partitions {
        until_heard(&one, partition, &mut foreign).await;
        until_heard(&one, partition, &mut own).await;
    }
    for partition in partitions {
        let hint = send(&one, partition, partition).await;
        assert_eq!(next_hint(&mut own).await, hint);
        while next_hint(&mut foreign).await != hint {}
    }
    // Beyond the default counts a process listens from its first use on, and looks at everything once.
    let far = Partition::flow(4_000);
    other.documents(far, vec![new_key()]).await.expect("it reads");
    while foreign.next().await != Some(WatchEvent::Resync) {}
    until_heard(&one, far, &mut foreign).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_silences_no_other() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start_patient).await.expect("the cluster starts");
    let (one, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let mut foreign = other.watch();
    let owner = |cluster: &Cluster, partition: Partition| {
        let slot = cluster.nodes[0].client().command(&format!("CLUSTER KEYSLOT {partition}"));
        cluster.owner(u16::try_from(slot.integer()).expect("a slot"))
    };
    let victim = (0..3).find(|number| *number != owner(&cluster, Partition::flow(0))).expect("there are three");
    let healthy: Vec<Partition> =
        (0..64).map(Partition::flow).filter(|partition| owner(&cluster, *partition) != victim).take(20).collect();
    for &partition in &healthy {
        until_heard(&one, partition, &mut foreign).await;
    }
    cluster.nodes[victim].kill();
    for round in 0..10 {
        for &partition in &healthy {
            let hint = send(&one, partition, partition).await;
            let heard = async { while next_hint(&mut foreign).await != hint {} };
            assert!(tokio::time::timeout(Duration::from_secs(5), heard).await.is_ok(), "round {round}");
        }
    }
    drop(cluster);
}

#[tokio::test]
async fn a_closed_store_answers_nobody() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let mut hints = store.watch();
    store.close().await;
    assert_eq!(hints.next().await, None);
    assert_eq!(store.watch().next().await, None);
    let refused = store.documents(Partition::SYSTEM, vec![new_key()]).await;
    assert!(matches!(refused, Err(ff_store::StoreError::Unavailable(_))), "{refused:?}");
}
