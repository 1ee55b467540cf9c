//! The sweep of expired documents takes no lock that commits take: it may come between the guards of one and its writes.

use ff_store::{Batch, Conflict, ConflictReason, Guard, Outcome, Store};
use ff_testkit::postgres::Server;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, connect, create, index, key, open, put, set};

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_the_sweep_takes_behind_its_guard_is_not_said_to_be_written() {
    const BLOCKED: &str = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)";
    let url = Server::shared().create_database("expiring");
    let (store, sweep) = (open(&url).await, connect(&url).await);
    let made = create(&key("a"), "first");
    let version = made.command;
    store.commit(PARTITION, [made].into()).await.unwrap();
    // The guards of the commit below still find the document, as they do when it expires just after their instant.
    sweep.batch_execute("BEGIN; DELETE FROM flowfabric.documents").await.unwrap();
    let change = Batch {
        guards: vec![Guard::Version(key("a"), version)],
        puts: vec![put(&key("a"), "second")],
        entries: vec![set("queue", &key("a"), 1)],
        ..Batch::new(command())
    };
    let committing = {
        let store = store.clone();
        tokio::spawn(async move { store.commit(PARTITION, [change].into()).await })
    };
    let blocked = async { while !sweep.query_one(BLOCKED, &[]).await.unwrap().get::<_, bool>(0) {} };
    timeout(TEST_TIMEOUT, blocked).await.expect("the commit waits for the sweep");
    sweep.batch_execute("COMMIT").await.unwrap();
    let outcome = committing.await.unwrap().unwrap().remove(0);
    let missing = Conflict { key: Some(key("a")), why: ConflictReason::Missing };
    assert_eq!(outcome, Outcome::Conflict(missing));
    let store: &dyn Store = &*store;
    assert_eq!(store.documents(PARTITION, vec![key("a")]).await.unwrap(), [None]);
    assert_eq!(store.count(PARTITION, index("queue"), 0, 2).await.unwrap(), 0);
}
