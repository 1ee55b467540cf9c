//! The store's time when the server's clock is set: it never goes back, never stands still, and is the same for all.

use ff_store::{Outcome, Store};
use ff_testkit::postgres::Server;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, connect, create, key, open};

const HOUR_MS: i64 = 3_600_000;
/// More than commits, reads and a busy machine take between two looks at the clock.
const NEAR_MS: i64 = 20_000;

/// Sets the clock that the store sees by so much from the true one.
async fn set_clock(client: &Client, by_ms: i64) {
    let wall = format!(
        "CREATE OR REPLACE FUNCTION flowfabric.ff_wall() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
           SELECT trunc(extract(epoch FROM clock_timestamp()) * 1000)::bigint + ({by_ms}) $$"
    );
    client.batch_execute(&wall).await.unwrap();
}

async fn commit(store: &dyn Store) -> i64 {
    let outcomes = store.commit(PARTITION, [create(&key(&command().0.to_string()), "body")].into()).await.unwrap();
    match &outcomes[..] {
        [Outcome::Applied(applied)] => applied.at,
        other => panic!("{other:?}"),
    }
}

async fn read(store: &dyn Store) -> i64 {
    store.read(PARTITION, Vec::new()).await.unwrap().at
}

/// Two processes tell the time apart by no more than this.
const APART_MS: i64 = 100;

/// Waits until time has passed at a store, and answers it. `since` may be what another process told.
async fn passed(store: &dyn Store, since: i64) -> i64 {
    let passes = async {
        loop {
            let now = read(store).await;
            assert!(now >= since - APART_MS, "went back by {} ms", since - now);
            if now >= since + 20 {
                return commit(store).await;
            }
        }
    };
    timeout(TEST_TIMEOUT, passes).await.expect("time goes on")
}

#[tokio::test(flavor = "multi_thread")]
async fn time_goes_on_for_all_when_the_clock_is_set_back() {
    let url = Server::shared().create_database("time_back");
    let (one, two) = (open(&url).await, open(&url).await);
    let client = connect(&url).await;
    let before = commit(&*one).await.max(commit(&*two).await);
    set_clock(&client, -HOUR_MS).await;
    let mut last = before;
    for store in [&one, &two, &one] {
        last = passed(&**store, last).await;
    }
    assert!(last < before + NEAR_MS, "jumped by {} ms", last - before);
    let fresh = open(&url).await;
    let first = commit(&*fresh).await;
    assert!(
        (last - APART_MS..last + NEAR_MS).contains(&first),
        "a new process is {} ms away from the others",
        first - last
    );
    let last = passed(&*one, passed(&*fresh, first).await).await;
    // The mistake is put right: the true time has come again, and is followed.
    set_clock(&client, 0).await;
    let right = passed(&*two, passed(&*fresh, last).await).await;
    assert!(right < last + NEAR_MS, "jumped by {} ms", right - last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_forward_is_followed_and_back_again_is_not() {
    let url = Server::shared().create_database("time_forward");
    let store = open(&url).await;
    let client = connect(&url).await;
    let before = commit(&*store).await;
    set_clock(&client, HOUR_MS).await;
    let ahead = commit(&*store).await;
    assert!((before + HOUR_MS..before + HOUR_MS + NEAR_MS).contains(&ahead));
    set_clock(&client, 0).await;
    let after = passed(&*store, ahead).await;
    assert!(after < ahead + NEAR_MS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_that_ended_gave_out_is_remembered() {
    let url = Server::shared().create_database("time_kept");
    let store = open(&url).await;
    let last = commit(&*store).await;
    store.close().await;
    drop(store);
    let client = connect(&url).await;
    set_clock(&client, -HOUR_MS).await;
    let fresh = open(&url).await;
    // Instants of the second before the end need not be known.
    let first = commit(&*fresh).await;
    assert!(first >= last - 1_000, "went back by {} ms", last - first);
    passed(&*fresh, first).await;
}
