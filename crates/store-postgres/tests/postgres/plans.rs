//! Plans that are made while tables are empty are kept for long: they must be the ones that scale.

use ff_store::{Batch, EntryChange, Guard};
use ff_testkit::postgres::Server;

use crate::fixture::{PARTITION, command, connect, create, index, key, open, set};

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_to_remove_is_found_by_its_key_on_a_new_database() {
    const ENTRIES: i64 = 40;
    let url = Server::shared().create_database("plans");
    let store = open(&url).await;
    for number in 0..ENTRIES {
        let member = key(&format!("m{number}"));
        let made = Batch { entries: vec![set("queue", &member, number)], ..create(&member, "body") };
        let removed = Batch {
            guards: vec![Guard::Version(member.clone(), made.command)],
            entries: vec![EntryChange::Remove { index: index("queue"), member }],
            ..Batch::new(command())
        };
        store.commit(PARTITION, [made].into()).await.unwrap();
        store.commit(PARTITION, [removed].into()).await.unwrap();
    }
    // Connections that end hand in what they counted.
    store.close().await;
    let client = connect(&url).await;
    let scans = async |name: &str| -> i64 {
        let counted = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = $1";
        client.query_one(counted, &[&name]).await.unwrap().get(0)
    };
    // One look for each entry that is set, one for each that is removed.
    while scans("entries_pkey").await + scans("entries_ordered").await < 2 * ENTRIES {}
    assert_eq!(scans("entries_ordered").await, 0, "the order was read to find a member");
}

#[tokio::test(flavor = "multi_thread")]
async fn how_far_an_index_is_drained_is_found_by_its_name_on_a_new_database() {
    const COMMITS: i64 = 40;
    const DRAINED: i64 = 500;
    let url = Server::shared().create_database("plans_drained");
    let store = open(&url).await;
    let client = connect(&url).await;
    // A vacuum would have the plan made anew.
    client.batch_execute("ALTER TABLE flowfabric.drained SET (autovacuum_enabled = off)").await.unwrap();
    let commit = async |number: i64| {
        let member = key(&format!("m{number}"));
        let made = Batch { entries: vec![set("queue", &member, number)], ..create(&member, "body") };
        store.commit(PARTITION, [made].into()).await.unwrap();
    };
    for number in 0..COMMITS {
        commit(number).await;
    }
    let others =
        format!("INSERT INTO flowfabric.drained SELECT 0, n::text::bytea, 0 FROM generate_series(1, {DRAINED}) n");
    client.batch_execute(&others).await.unwrap();
    for number in COMMITS..2 * COMMITS {
        commit(number).await;
    }
    // Connections that end hand in what they counted.
    store.close().await;
    let read = async |column: &str| -> i64 {
        let counted = format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = 'drained'");
        client.query_one(&counted, &[]).await.unwrap().get(0)
    };
    while read("idx_scan").await < 2 * COMMITS {}
    assert_eq!(read("idx_tup_fetch").await, 0, "what is noted of other indexes was read");
}
