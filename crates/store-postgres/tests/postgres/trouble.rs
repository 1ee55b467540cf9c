//! Answers of the store when the server cannot serve: a standby, a full disk, missing rights, no connection left. It
//! goes on by itself once the cause is gone.

use ff_core::Key;
use ff_store::{Batch, BlobChange, Outcome, Result, StoreError};
use ff_store_postgres::{Options, PostgresStore};
use ff_testkit::postgres::Server;

use crate::fixture::{PARTITION, command, connect, create, key, open};

async fn started<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A blob that does not compress, beside a new document.
fn large(key: &Key) -> Batch {
    // The second half of an id is random.
    let random = std::iter::repeat_with(|| command().0.into_bytes()).flat_map(|id| id.into_iter().skip(9));
    let bytes: Vec<u8> = random.take(512 * 1024).collect();
    Batch { blobs: vec![BlobChange { key: key.clone(), bytes: Some(bytes.into()) }], ..create(key, "large") }
}

fn applied(outcomes: &Result<Vec<Outcome>>) -> bool {
    matches!(outcomes.as_deref(), Ok([Outcome::Applied(_)]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_until_it_is_promoted() {
    let (primary, standby) = started(|| {
        let primary = Server::start();
        let standby = primary.standby();
        (primary, standby)
    })
    .await;
    let store = open(&primary.url()).await;
    store.commit(PARTITION, [create(&key("a"), "body")].into()).await.unwrap();
    let refused = PostgresStore::open(Options::parse(&standby.url()).unwrap()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::ReadOnly(why) if why.contains("standby")), "{refused:?}");
    // An acknowledged commit has arrived there once its place in the log was replayed.
    let written = connect(&primary.url()).await.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap();
    let follower = connect(&standby.url()).await;
    let replayed = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
    while !follower.query_one(replayed, &[&written.get::<_, String>(0)]).await.unwrap().get::<_, bool>(0) {}
    let standby = started(move || {
        primary.kill9();
        standby.promote();
        standby
    })
    .await;
    let promoted = open(&standby.url()).await;
    assert!(promoted.documents(PARTITION, vec![key("a")]).await.unwrap()[0].is_some());
    assert!(applied(&promoted.commit(PARTITION, [create(&key("b"), "body")].into()).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_applies_nothing_and_heals() {
    // Not a whole number of pages: the last page is cut short, which is what a full disk looks like.
    const ROOM: u64 = 20 * 1024 * 1024 + 4_096;
    let server = started(Server::start).await;
    let store = open(&server.url()).await;
    assert!(applied(&store.commit(PARTITION, [create(&key("x"), "body")].into()).await));
    server.limit_file_size(Some(ROOM));
    let mut refused = None;
    for number in 0..200 {
        let name = key(&format!("large-{number}"));
        match store.commit(PARTITION, [large(&name)].into()).await {
            Ok(outcomes) => assert!(applied(&Ok(outcomes))),
            Err(error) => {
                refused = Some((name, error));
                break;
            }
        }
    }
    let (name, error) = refused.expect("the room is finite");
    assert!(matches!(&error, StoreError::Full(why) if why.contains("53100")), "{error:?}");
    assert_eq!(store.documents(PARTITION, vec![name.clone()]).await.unwrap(), [None], "nothing of it was applied");
    assert_eq!(store.blobs(PARTITION, vec![name.clone()]).await.unwrap(), [None]);
    server.limit_file_size(None);
    assert!(applied(&store.commit(PARTITION, [large(&name)].into()).await), "it goes on once there is room");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_on_the_tables_are_enough_and_missing_ones_are_said() {
    let server = Server::shared();
    let url = server.create_database("trouble_rights");
    open(&url).await.close().await;
    let client = connect(&url).await;
    client
        .batch_execute(
            "CREATE ROLE worker_of_tables LOGIN;
             GRANT USAGE ON SCHEMA flowfabric TO worker_of_tables;
             GRANT ALL ON ALL TABLES IN SCHEMA flowfabric TO worker_of_tables;
             GRANT ALL ON ALL SEQUENCES IN SCHEMA flowfabric TO worker_of_tables",
        )
        .await
        .unwrap();
    let store = open(&url.replace("flowfabric@", "worker_of_tables@")).await;
    assert!(applied(&store.commit(PARTITION, [create(&key("a"), "body")].into()).await));
    client.batch_execute("REVOKE INSERT ON flowfabric.documents FROM worker_of_tables").await.unwrap();
    let refused = store.commit(PARTITION, [create(&key("b"), "body")].into()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Config(why) if why.contains("42501")), "{refused:?}");
    client.batch_execute("GRANT INSERT ON flowfabric.documents TO worker_of_tables").await.unwrap();
    assert!(applied(&store.commit(PARTITION, [create(&key("b"), "body")].into()).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_unavailable_and_waited_for() {
    let server = started(|| Server::start_with(&["max_connections=10", "superuser_reserved_connections=0"])).await;
    let store = open(&format!("{}?pool_size=3", server.url())).await;
    assert!(applied(&store.commit(PARTITION, [create(&key("a"), "body")].into()).await));
    let mut others = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await {
        others.push((client, tokio::spawn(connection)));
    }
    let refused = PostgresStore::open(Options::parse(&server.url()).unwrap()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(why) if why.contains("53300")), "{refused:?}");
    assert!(refused.retryable());
    let still = store.commit(PARTITION, [create(&key("b"), "body")].into()).await;
    assert!(applied(&still), "the connections it has go on: {still:?}");
    drop(others);
    let mut opened = PostgresStore::open(Options::parse(&server.url()).unwrap()).await;
    while matches!(opened, Err(StoreError::Unavailable(_))) {
        opened = PostgresStore::open(Options::parse(&server.url()).unwrap()).await;
    }
    assert!(opened.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_server_must_prove_who_it_is_when_asked_to() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, private) = (made.cert.pem(), made.signing_key.serialize_pem());
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority.pem");
    std::fs::write(&authority, &certificate).unwrap();
    let server = started(move || Server::start_encrypted(&certificate, &private)).await;
    let url = server.url();
    let is_encrypted = async |parameters: &str| {
        let store = open(&format!("{url}?{parameters}")).await;
        assert!(applied(&store.commit(PARTITION, [create(&key(parameters), "body")].into()).await));
        let seen =
            "SELECT count(*) FILTER (WHERE s.ssl), count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                    WHERE a.application_name = 'flowfabric'";
        let row = connect(&url).await.query_one(seen, &[]).await.unwrap();
        store.close().await;
        let (encrypted, all): (i64, i64) = (row.get(0), row.get(1));
        assert!(all > 0);
        encrypted == all
    };
    assert!(is_encrypted(&format!("sslmode=verify-full&sslrootcert={}", authority.display())).await);
    let unknown = PostgresStore::open(Options::parse(&format!("{url}?sslmode=verify-full")).unwrap()).await;
    let refused = unknown.unwrap_err();
    assert!(matches!(&refused, StoreError::Config(why) if why.contains("certificate")), "{refused:?}");
}
