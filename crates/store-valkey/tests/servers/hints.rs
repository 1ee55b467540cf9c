//! Hints travel between processes, also where the store does not expect a partition.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::{CommandId, Partition};
use ff_store::{Hint, Hints, Signal, Store};
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
    store.commit(from, vec![batch]).await.expect("it commits");
    hint
}

/// The next hint, whatever else is said.
async fn next_hint(hints: &mut Hints) -> Hint {
    loop {
        match hints.next().await.expect("the store is open") {
            Signal::Hint(hint) => return hint,
            Signal::Resync => {}
        }
    }
}

#[tokio::test]
async fn both_processes_hear_a_hint_on_a_single_server() {
    let server = Server::start();
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let (mut own, mut foreign) = (one.watch(), other.watch());
    let mut hint = send(&one, Partition::flow(1), Partition::quota(2)).await;
    assert_eq!(next_hint(&mut own).await, hint);
    // One that was alone until now may have kept this to itself. Then it said so, and publishes what comes next.
    if foreign.next().await == Some(Signal::Resync) {
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
    let published = || {
        let text = server.command("INFO commandstats").into_text();
        text.lines().find(|line| line.starts_with("cmdstat_publish:")).map(str::to_owned)
    };
    // That it is alone it learns from the answer to its greeting, which is the first publication.
    let mut before = published();
    loop {
        let hint = send(&store, Partition::flow(1), Partition::flow(1)).await;
        assert_eq!(next_hint(&mut hints).await, hint);
        let after = published();
        if after.is_some() && after == before {
            break;
        }
        before = after;
    }
}

#[tokio::test]
async fn both_processes_hear_hints_of_every_partition_of_a_cluster() {
    let cluster = Cluster::start_patient();
    let (one, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let (mut own, mut foreign) = (one.watch(), other.watch());
    for partition in [Partition::flow(0), Partition::flow(255), Partition::budget(31), Partition::SYSTEM] {
        let hint = send(&one, partition, partition).await;
        assert_eq!(next_hint(&mut own).await, hint);
        assert_eq!(next_hint(&mut foreign).await, hint);
    }
    // Beyond the default counts a process listens from its first use on, and looks at everything once.
    let far = Partition::flow(4_000);
    other.documents(far, vec![new_key()]).await.expect("it reads");
    assert_eq!(foreign.next().await, Some(Signal::Resync));
    let hint = send(&one, far, far).await;
    assert_eq!(next_hint(&mut foreign).await, hint);
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
    cluster.nodes[victim].kill();
    for round in 0..10 {
        for &partition in &healthy {
            let hint = send(&one, partition, partition).await;
            let heard = tokio::time::timeout(Duration::from_secs(5), next_hint(&mut foreign)).await;
            assert_eq!(heard, Ok(hint), "round {round}");
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
