//! What an acknowledgement means, and what a full server still does.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, Partition};
use ff_store::{Batch, BlobChange, Guard, Outcome, Store, StoreError};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Replicated, Server};
use uuid::Uuid;

use crate::support::{creation, new_key};

const HERE: Partition = Partition::flow(3);

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

fn command() -> CommandId {
    CommandId(Uuid::now_v7())
}

#[tokio::test]
async fn a_commit_the_replica_did_not_confirm_is_unknown() {
    let pair = Replicated::start();
    let store = open(&format!("{}?tier=replicated&request_timeout_ms=3000", pair.primary.url())).await;
    let (first, second) = (new_key(), new_key());
    assert!(store.commit(HERE, [creation(&first, command())].into()).await.is_ok());
    pair.replica.freeze();
    let unconfirmed = store.commit(HERE, [creation(&second, command())].into()).await;
    assert!(matches!(unconfirmed, Err(StoreError::Unknown(_))), "{unconfirmed:?}");
    pair.replica.thaw();
    let there = store.documents(HERE, vec![second]).await.expect("it reads");
    assert!(there[0].is_some(), "unknown is not undone");
}

#[tokio::test]
async fn an_answer_decided_by_reading_is_confirmed_too() {
    let pair = Replicated::start();
    let store = open(&format!("{}?tier=replicated&request_timeout_ms=3000", pair.primary.url())).await;
    let key = new_key();
    assert!(store.commit(HERE, [creation(&key, command())].into()).await.is_ok());
    let conflict = store.commit(HERE, [creation(&key, command())].into()).await;
    assert!(matches!(conflict.as_deref(), Ok([Outcome::Conflict(_)])), "{conflict:?}");
    pair.replica.freeze();
    let unconfirmed = store.commit(HERE, [creation(&key, command())].into()).await;
    assert!(matches!(unconfirmed, Err(StoreError::Unknown(_))), "{unconfirmed:?}");
    let barrier = store.commit(HERE, [Batch::new(command())].into()).await;
    assert!(matches!(barrier, Err(StoreError::Unknown(_))), "{barrier:?}");
    pair.replica.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_waits_for_the_replicas_and_is_shared() {
    let pair = Replicated::start();
    let store = open(&format!("{}?tier=replicated&request_timeout_ms=3000", pair.primary.url())).await;
    assert_eq!(store.barrier(HERE).await, Ok(()));
    let writes = || {
        let text = pair.primary.command("INFO commandstats").into_text();
        let line =
            text.lines().find(|line| line.starts_with("cmdstat_fcall:")).expect("functions were called").to_owned();
        let calls = line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()).expect("a count");
        calls.parse::<u64>().expect("a number")
    };
    let before = writes();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let store = store.clone();
        waiting.spawn(async move { store.barrier(HERE).await });
    }
    assert!(waiting.join_all().await.into_iter().all(|answer| answer.is_ok()));
    let spent = writes() - before;
    println!("{spent} calls for 500 barriers");
    assert!(spent < 250, "{spent} calls for 500 barriers");
    pair.replica.freeze();
    let unconfirmed = store.barrier(HERE).await;
    assert!(matches!(unconfirmed, Err(StoreError::Unknown(_))), "{unconfirmed:?}");
    pair.replica.thaw();
    assert_eq!(store.barrier(HERE).await, Ok(()));
}

#[tokio::test]
async fn the_fsynced_tier_acknowledges_nothing_once_the_server_stops_to_sync() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = open(&format!("{}?tier=fsynced", server.url())).await;
    assert!(store.commit(HERE, [creation(&new_key(), command())].into()).await.is_ok());
    server.command("CONFIG SET appendfsync everysec");
    let unsynced = store.commit(HERE, [creation(&new_key(), command())].into()).await;
    let Err(StoreError::Unknown(why)) = &unsynced else { panic!("{unsynced:?}") };
    assert!(why.contains("appendfsync everysec"), "{why}");
    assert!(store.barrier(HERE).await.is_err());
    server.command("CONFIG SET appendfsync always");
    assert!(store.commit(HERE, [creation(&new_key(), command())].into()).await.is_ok());
    assert_eq!(store.barrier(HERE).await, Ok(()));
}

#[tokio::test]
async fn without_replicas_nothing_is_acknowledged_as_replicated() {
    let server = Server::start();
    let store = open(&format!("{}?tier=replicated&request_timeout_ms=3000", server.url())).await;
    let unconfirmed = store.commit(HERE, [creation(&new_key(), command())].into()).await;
    let Err(StoreError::Unknown(why)) = &unconfirmed else { panic!("{unconfirmed:?}") };
    assert!(why.contains("0 of 1 replicas"), "{why}");
}

#[tokio::test]
async fn a_full_server_refuses_growth_and_takes_relief() {
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let (key, version) = (new_key(), command());
    let blob = BlobChange { key: key.clone(), bytes: Some(Bytes::from(vec![7; 1 << 20])) };
    let batch = Batch { blobs: vec![blob], ..creation(&key, version) };
    assert!(store.commit(HERE, [batch].into()).await.is_ok());
    server.command("CONFIG SET maxmemory 1000000");
    let other = new_key();
    let refused = store.commit(HERE, [creation(&other, command())].into()).await;
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    let reads = store.documents(HERE, vec![key.clone(), other.clone()]).await.expect("a full server reads");
    assert!(reads[0].is_some() && reads[1].is_none(), "nothing was half done");
    let ending = Batch {
        guards: vec![Guard::Version(key.clone(), version)],
        deletes: vec![key.clone()],
        blobs: vec![BlobChange { key: key.clone(), bytes: None }],
        relief: true,
        ..Batch::new(command())
    };
    let relieved = store.commit(HERE, [ending].into()).await;
    assert!(matches!(relieved.as_deref(), Ok([Outcome::Applied(_)])), "{relieved:?}");
    server.command("CONFIG SET maxmemory 0");
    assert!(store.commit(HERE, [creation(&other, command())].into()).await.is_ok());
}
