//! Scans begin where an index is drained up to, and miss nothing that comes in front of that.

use std::sync::Arc;

use ff_core::{IndexName, Key};
use ff_store::{Batch, EntryChange, Guard, Scan, Store};
use ff_testkit::postgres::Server;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, connect, create, index, key, open, set};

/// More than is taken before it is noted.
const TAKEN: i64 = 2_500;
/// Entries that are added or taken in one batch.
const TOGETHER: usize = 500;

fn queue() -> IndexName {
    index("queue")
}

fn member(number: i64) -> Key {
    key(&format!("m{number:06}"))
}

/// Adds entries whose members are their scores, in the name of a document of their own.
async fn add(store: &dyn Store, scores: &[i64]) {
    for scores in scores.chunks(TOGETHER) {
        let entries = scores.iter().map(|score| set("queue", &member(*score), *score)).collect();
        let batch = Batch { entries, ..create(&key(&command().0.to_string()), "body") };
        store.commit(PARTITION, [batch].into()).await.unwrap();
    }
}

async fn take(store: &dyn Store, scores: &[i64]) {
    for scores in scores.chunks(TOGETHER) {
        let remove = |score: &i64| EntryChange::Remove { index: queue(), member: member(*score) };
        let guards = vec![Guard::Absent(key("nobody"))];
        let batch = Batch { guards, entries: scores.iter().map(remove).collect(), ..Batch::new(command()) };
        store.commit(PARTITION, [batch].into()).await.unwrap();
    }
}

async fn scan(store: &dyn Store, limit: usize) -> Vec<i64> {
    let page = store.scan(PARTITION, Scan::first(queue(), limit)).await.unwrap();
    page.entries.iter().map(|entry| entry.score).collect()
}

/// How far the queue is noted to be drained.
async fn noted(client: &Client) -> Option<i64> {
    client.query_opt("SELECT below FROM flowfabric.drained", &[]).await.unwrap().map(|row| row.get(0))
}

/// Opens two stores, adds entries, takes the first of them through one store, and waits until that is noted.
async fn drained(database: &str, entries: i64) -> (Arc<dyn Store>, Arc<dyn Store>, Client) {
    let url = Server::shared().create_database(database);
    let (one, two, client) = (open(&url).await, open(&url).await, connect(&url).await);
    add(&*one, &(1..=entries).collect::<Vec<_>>()).await;
    assert_eq!(scan(&*one, 2).await, [1, 2]);
    take(&*one, &(1..=TAKEN).collect::<Vec<_>>()).await;
    timeout(TEST_TIMEOUT, async { while noted(&client).await.is_none() {} }).await.expect("it is noted");
    (one, two, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_in_front_of_the_noted_place_is_found_by_every_process() {
    let (one, two, client) = drained("drained_front", TAKEN + 10).await;
    let below = noted(&client).await.unwrap();
    assert!((2_000..=TAKEN + 1).contains(&below), "{below}");
    for store in [&one, &two] {
        assert_eq!(scan(&**store, 1).await, [TAKEN + 1]);
    }
    add(&*two, &[7]).await;
    assert_eq!(noted(&client).await, Some(7));
    add(&*two, &[8]).await;
    for store in [&one, &two] {
        assert_eq!(scan(&**store, 3).await, [7, 8, TAKEN + 1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_was_emptied_fills_again() {
    let (one, two, _) = drained("drained_empty", TAKEN).await;
    assert!(scan(&*two, 1).await.is_empty());
    add(&*one, &[5]).await;
    add(&*one, &[3]).await;
    assert_eq!(scan(&*two, 10).await, [3, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_entry_is_lost_while_it_is_noted_again_and_again() {
    const ADDED: i64 = 200;
    let (one, two, client) = drained("drained_race", TAKEN).await;
    let lock = partition_lock(&one, &Server::shared().url_of("drained_race")).await;
    // From the highest to the lowest: each is in front of all that are there.
    let adding = async |store: &dyn Store, first: i64| {
        for score in (0..ADDED).rev().map(|number| first + number * 2) {
            add(store, &[score]).await;
            assert!(scan(store, 1_000).await.contains(&score), "{score}");
        }
    };
    let noting = async {
        client.batch_execute("SET search_path = flowfabric").await.unwrap();
        for _ in 0..ADDED * 2 {
            // It gives up where commits keep it waiting, and that is no harm.
            let _ = client.execute("SELECT ff_drain(0, 'queue', $1)", &[&lock]).await;
        }
    };
    tokio::join!(adding(&*one, 0), adding(&*two, 1), noting);
    for store in [&one, &two] {
        assert_eq!(scan(&**store, 1_000).await, (0..ADDED * 2).collect::<Vec<_>>());
    }
}

/// The number of the lock that every commit takes: the only one of a commit that guards no document.
async fn partition_lock(store: &Arc<dyn Store>, url: &str) -> i64 {
    const HELD: &str = "SELECT (held.classid::bigint << 32) | held.objid::bigint
         FROM pg_locks held JOIN pg_locks wanted ON wanted.pid = held.pid AND NOT wanted.granted
         WHERE held.locktype = 'advisory'";
    let client = connect(url).await;
    client.batch_execute("BEGIN; LOCK TABLE flowfabric.documents").await.unwrap();
    let committing = {
        let (store, batch) = (store.clone(), Batch { guards: vec![Guard::NotAfter(0)], ..Batch::default() });
        tokio::spawn(async move { store.commit(PARTITION, [batch].into()).await })
    };
    let held = async {
        loop {
            if let Some(row) = client.query_opt(HELD, &[]).await.unwrap() {
                return row.get(0);
            }
        }
    };
    let lock = timeout(TEST_TIMEOUT, held).await.expect("the commit waits for the table");
    client.batch_execute("COMMIT").await.unwrap();
    committing.await.unwrap().unwrap();
    lock
}
