//! Two servers call themselves primary.

use std::sync::Arc;
use std::time::Duration;

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
