//! Two servers call themselves primary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::{CommandId, Key, Partition};
use ff_store::{Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, wait_until};

use crate::support::{creation, new_key};

const HERE: Partition = Partition::flow(3);

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

fn has(server: &Server, key: &Key) -> bool {
    let name = [format!("{HERE}d").as_bytes(), key.as_bytes()].concat();
    server.client().try_command(&[b"EXISTS", &name]).expect("the server answers").integer() == 1
}

/// A commit that may take a few tries: the servers are looked at between them.
async fn create(store: &Arc<dyn Store>) -> Key {
    for _ in 0..100 {
        let key = new_key();
        if store.commit(HERE, [creation(&key, CommandId::default())].into()).await.is_ok() {
            return key;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no commit was acknowledged");
}

/// A read that may take a few tries.
async fn is_found(store: &Arc<dyn Store>, key: &Key) -> bool {
    for _ in 0..100 {
        if let Ok(found) = store.documents(HERE, vec![key.clone()]).await {
            return found[0].is_some();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no read was answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_comes_back_after_a_failover_is_not_taken() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let (mut old, new) = (Server::start_with(&settings), Server::start_with(&settings));
    new.follow(&old);
    let url = format!("valkey://{},{}?request_timeout_ms=500&connect_timeout_ms=1500", old.address(), new.address());
    let store = open(&url).await;
    let before = create(&store).await;
    wait_until("the replica has it", || has(&new, &before));
    old.kill();
    new.promote();
    let after = create(&store).await;
    assert!(has(&new, &before) && has(&new, &after));
    let old = tokio::task::spawn_blocking(move || {
        old.restart();
        old
    })
    .await
    .expect("it starts again");
    assert_eq!(old.info("role").as_deref(), Some("master"), "two servers call themselves primary");
    // A process that was just started, to which the old one is the first in the list.
    let fresh = open(&url).await;
    let later = create(&fresh).await;
    assert!(has(&new, &later) && !has(&old, &later));
    // Processes that know better do not go back when the new one is silent for a while.
    new.freeze();
    for store in [&store, &fresh] {
        for _ in 0..5 {
            let refused = store.commit(HERE, [creation(&new_key(), CommandId::default())].into()).await;
            assert!(matches!(refused, Err(StoreError::Unavailable(_) | StoreError::Unknown(_))), "{refused:?}");
        }
    }
    new.thaw();
    for store in [&store, &fresh] {
        let last = create(store).await;
        assert!(has(&new, &last) && !has(&old, &last));
    }
}

/// A store on a primary and its replica, and a document that both have.
async fn replicated() -> (Arc<dyn Store>, Key, Server, Server) {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let store = open(&format!("valkey://{},{}", primary.address(), replica.address())).await;
    let key = create(&store).await;
    wait_until("the replica has it", || has(&replica, &key));
    (store, key, primary, replica)
}

/// Restarts a server without what it held.
async fn restarted(mut server: Server) -> Server {
    let restart = move || {
        server.kill();
        server.restart();
        server
    };
    tokio::task::spawn_blocking(restart).await.expect("it starts again")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_lost_everything_is_not_read_after_another_took_over() {
    let (store, before, mut old, new) = replicated().await;
    new.promote();
    let (reader, key) = (store.clone(), before.clone());
    let reading = tokio::spawn(async move {
        for at in 0_u32.. {
            let read = reader.documents(HERE, vec![key.clone()]).await;
            assert!(!matches!(&read, Ok(found) if found[0].is_none()), "lost in read {at}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    for _ in 0..5 {
        old = restarted(old).await;
        assert!(is_found(&store, &before).await, "what was acknowledged is there");
    }
    assert!(!reading.is_finished(), "{:?}", reading.await);
    reading.abort();
    assert_eq!(old.info("role").as_deref(), Some("master"), "two servers call themselves primary");
    let after = create(&store).await;
    assert!(has(&new, &after) && !has(&old, &after));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_lost_everything_is_not_read_while_its_replica_may_have_it() {
    let (store, before, old, replica) = replicated().await;
    replica.freeze();
    let old = restarted(old).await;
    let began = Instant::now();
    for _ in 0..3 {
        let refused = store.documents(HERE, vec![before.clone()]).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    // It is waited for like one that cannot be reached, and not for the ten seconds that a connection may take.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    // The replica must not follow a server that has nothing before it is promoted.
    old.freeze();
    replica.thaw();
    replica.promote();
    old.thaw();
    assert!(has(&replica, &before), "the replica kept it");
    assert!(is_found(&store, &before).await, "what was acknowledged is there");
}
