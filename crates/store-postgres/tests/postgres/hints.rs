//! Hints between processes.

use ff_store::{Batch, Hint, Hints, WatchEvent};
use ff_testkit::postgres::Server;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, connect, open};

fn hinting(payload: &str) -> Batch {
    let hint = Hint { partition: PARTITION, payload: payload.to_owned().into() };
    Batch { hints: vec![hint], ..Batch::new(command()) }
}

/// The payload of the next hint; a resync now and then is allowed.
async fn next_hint(hints: &mut Hints) -> String {
    loop {
        match timeout(TEST_TIMEOUT, hints.next()).await.expect("a hint comes").expect("the store is open") {
            WatchEvent::Hint(hint) => return String::from_utf8(hint.payload.to_vec()).unwrap(),
            WatchEvent::Resync => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_database_hear_each_other_and_themselves_once() {
    let url = Server::shared().create_database("hints_two");
    let (one, two) = (open(&url).await, open(&url).await);
    let (mut at_one, mut at_two) = (one.watch(), two.watch());
    one.commit(PARTITION, [hinting("from one")].into()).await.unwrap();
    assert_eq!(next_hint(&mut at_one).await, "from one");
    assert_eq!(next_hint(&mut at_two).await, "from one");
    two.commit(PARTITION, [hinting("from two")].into()).await.unwrap();
    // Had it heard its own hint a second time, from the database, it would be here.
    assert_eq!(next_hint(&mut at_two).await, "from two");
    assert_eq!(next_hint(&mut at_one).await, "from two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_listener_asks_for_a_resync_and_hears_again() {
    let url = Server::shared().create_database("hints_lost");
    let (one, two) = (open(&url).await, open(&url).await);
    let client = connect(&url).await;
    let mut hints = two.watch();
    client
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
            &[],
        )
        .await
        .unwrap();
    let signal = timeout(TEST_TIMEOUT, hints.next()).await.expect("a signal comes");
    assert_eq!(signal, Some(WatchEvent::Resync));
    let mut told = timeout(TEST_TIMEOUT, one.commit(PARTITION, [hinting("again")].into())).await.unwrap();
    while told.is_err() {
        told = timeout(TEST_TIMEOUT, one.commit(PARTITION, [hinting("again")].into())).await.unwrap();
    }
    assert_eq!(next_hint(&mut hints).await, "again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_ends_its_watchers() {
    let store = open(&Server::shared().create_database("hints_closed")).await;
    let mut hints = store.watch();
    store.close().await;
    assert_eq!(timeout(TEST_TIMEOUT, hints.next()).await.expect("the end comes"), None);
    assert!(store.commit(PARTITION, [hinting("late")].into()).await.is_err());
}
