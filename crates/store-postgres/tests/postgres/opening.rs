//! Opening a store, and what keeps it from opening.

use ff_store::{Store, StoreError};
use ff_store_postgres::{Options, PostgresStore, schema_version};
use ff_testkit::postgres::Server;
use futures_util::future::join_all;

use crate::fixture::{PARTITION, connect, create, key};

async fn refusal(url: &str) -> StoreError {
    PostgresStore::open(Options::parse(url).unwrap()).await.expect_err("it must not open")
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_may_start_at_the_same_moment() {
    let url = Server::shared().create_database("opening_many");
    let opened = join_all((0..8).map(|_| PostgresStore::open(Options::parse(&url).unwrap()))).await;
    for store in opened {
        let store = store.unwrap();
        assert_eq!(store.info().kind, "postgres");
        assert!(store.info().durability.starts_with("power loss"), "{}", store.info().durability);
    }
    let row = connect(&url).await.query_one("SELECT schema_version FROM flowfabric.meta", &[]).await.unwrap();
    assert_eq!(u32::try_from(row.get::<_, i32>(0)).unwrap(), schema_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_of_one_database_are_strangers() {
    let url = Server::shared().create_database("opening_schemas");
    let open = async |schema: &str| {
        PostgresStore::open(Options::parse(&format!("{url}?schema={schema}")).unwrap()).await.unwrap()
    };
    let (one, two) = (open("one").await, open("two").await);
    one.commit(PARTITION, [create(&key("a"), "one")].into()).await.unwrap();
    let two: &dyn Store = &two;
    assert_eq!(two.documents(PARTITION, vec![key("a")]).await.unwrap(), [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused_with_both_versions() {
    let url = Server::shared().create_database("opening_newer");
    PostgresStore::open(Options::parse(&url).unwrap()).await.unwrap().close().await;
    connect(&url).await.execute("UPDATE flowfabric.meta SET schema_version = 99", &[]).await.unwrap();
    assert_eq!(refusal(&url).await, StoreError::Newer { found: 99, known: schema_version() });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_address_or_the_rights_is_said() {
    let server = Server::shared();
    let url = server.create_database("opening_rights");
    let client = connect(&url).await;
    client.batch_execute("CREATE ROLE guest LOGIN; CREATE ROLE single LOGIN CONNECTION LIMIT 0").await.unwrap();
    let as_user = |user: &str| url.replace("flowfabric@", &format!("{user}@"));
    assert!(matches!(refusal(&as_user("guest")).await, StoreError::Config(why) if why.contains("42501")));
    assert!(matches!(refusal(&as_user("stranger")).await, StoreError::Config(why) if why.contains("stranger")));
    assert!(matches!(refusal(&as_user("single")).await, StoreError::Unavailable(why) if why.contains("53300")));
    assert!(matches!(refusal(&server.url_of("nowhere")).await, StoreError::Config(why) if why.contains("nowhere")));
    let closed = "postgres://flowfabric@127.0.0.1:1/postgres";
    assert!(matches!(refusal(closed).await, StoreError::Unavailable(_)));
    let plain = refusal(&format!("{url}?sslmode=require")).await;
    assert!(matches!(plain, StoreError::Config(_) | StoreError::Unavailable(_)), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_only_reads_is_refused_and_noticed() {
    let url = Server::shared().create_database("opening_readonly");
    let store = PostgresStore::open(Options::parse(&url).unwrap()).await.unwrap();
    let client = connect(&url).await;
    client.batch_execute("ALTER DATABASE opening_readonly SET default_transaction_read_only = on").await.unwrap();
    assert!(matches!(refusal(&url).await, StoreError::ReadOnly(_)));
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.execute(terminate, &[]).await.unwrap();
    // The connections of before may be found lost first.
    let mut answer = store.commit(PARTITION, [create(&key("a"), "body")].into()).await;
    while matches!(answer, Err(StoreError::Unknown(_) | StoreError::Unavailable(_))) {
        answer = store.commit(PARTITION, [create(&key("a"), "body")].into()).await;
    }
    assert!(matches!(answer, Err(StoreError::ReadOnly(_))), "{answer:?}");
}
