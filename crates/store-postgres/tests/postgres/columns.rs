//! The columns for people.

use ff_core::Key;
use ff_store::{Batch, Guard, Store};
use ff_store_postgres::{Columns, Options, PostgresStore};
use ff_testkit::postgres::Server;

use crate::fixture::{PARTITION, command, connect, create, key, put};

fn describe(_: &Key, body: &[u8]) -> Option<Columns> {
    let state = std::str::from_utf8(body).ok()?;
    Some(Columns {
        namespace: Some("default".into()),
        state: Some(state.into()),
        priority: Some(7),
        created_at: Some(1_700_000_000_123),
        ..Columns::default()
    })
}

fn view(_: &Key, body: &[u8]) -> Option<String> {
    std::str::from_utf8(body).ok().map(|state| format!(r#"{{"state":"{state}"}}"#))
}

fn options(url: &str) -> Options {
    Options::parse(url).unwrap().describe(describe).view(view)
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_follow_the_document() {
    let url = Server::shared().create_database("columns");
    let store = PostgresStore::open(options(&format!("{url}?view=on"))).await.unwrap();
    let created = create(&key("a"), "waiting");
    let changed = Batch {
        guards: vec![Guard::Version(key("a"), created.command)],
        puts: vec![put(&key("a"), "completed")],
        ..Batch::new(command())
    };
    store.commit(PARTITION, [created, changed].into()).await.unwrap();
    let client = connect(&url).await;
    let row = client
        .query_one(
            "SELECT namespace, state, lane, priority, view ->> 'state', extract(epoch FROM created_at)::text
             FROM flowfabric.documents",
            &[],
        )
        .await
        .unwrap();
    let texts: Vec<Option<String>> = [0, 1, 2, 4, 5].map(|column| row.get(column)).into();
    let expected = [Some("default"), Some("completed"), None, Some("completed"), Some("1700000000.123000")];
    assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    assert_eq!(row.get::<_, i32>(3), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_written_only_where_the_address_asks_for_it() {
    let url = Server::shared().create_database("columns_view");
    let client = connect(&url).await;
    let view = async || -> Option<String> {
        client.query_one("SELECT view ->> 'state' FROM flowfabric.documents", &[]).await.unwrap().get(0)
    };
    let with = PostgresStore::open(options(&format!("{url}?view=on"))).await.unwrap();
    let created = create(&key("a"), "waiting");
    let changed = Batch {
        guards: vec![Guard::Version(key("a"), created.command)],
        puts: vec![put(&key("a"), "completed")],
        ..Batch::new(command())
    };
    with.commit(PARTITION, [created].into()).await.unwrap();
    assert_eq!(view().await, Some("waiting".to_owned()));
    // One of before must not stay beside a document that has changed.
    let without = PostgresStore::open(options(&url)).await.unwrap();
    without.commit(PARTITION, [changed].into()).await.unwrap();
    assert_eq!(view().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queries_of_the_manual_answer() {
    let url = Server::shared().create_database("columns_manual");
    let store = PostgresStore::open(options(&url)).await.unwrap();
    let documents = ["waiting", "active", "failed"].map(|state| create(&key(&format!("x{state}")), state));
    store.commit(PARTITION, documents.into()).await.unwrap();
    let client = connect(&url).await;
    let manual = include_str!("../../../../docs/postgres.md");
    let (mut queries, mut found) = (0, 0);
    for block in manual.split("\n\n").filter(|block| block.starts_with("    SELECT")) {
        found += client.query(block.trim().trim_end_matches(';'), &[]).await.unwrap().len();
        queries += 1;
    }
    // The failure has no time of change here, so it is not of today.
    assert_eq!((queries, found), (3, 2));
}
