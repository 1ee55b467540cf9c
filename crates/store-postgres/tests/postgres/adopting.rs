//! A schema of the version before is adopted with all that is in it, and its servers go on beside ours for as long as an
//! upgrade takes.

use ff_core::{CommandId, Key};
use ff_store::{Batch, Guard, LogStart, Outcome, Scan, Store};
use ff_testkit::postgres::Server;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::fixture::{PARTITION, connect, index, key, open, put, set};

/// The schema of the version before, as its servers made it.
const BEFORE: [&str; 3] = [
    include_str!("../../migrations/0001_tables.sql"),
    include_str!("../../migrations/0002_functions.sql"),
    include_str!("../../migrations/0003_time.sql"),
];

async fn schema_of_before(url: &str) -> Client {
    let client = connect(url).await;
    client
        .batch_execute(
            "CREATE SCHEMA flowfabric;
             SET search_path = flowfabric;
             CREATE TABLE meta (only_row boolean PRIMARY KEY CHECK (only_row), schema_version integer NOT NULL);
             INSERT INTO meta VALUES (true, 3)",
        )
        .await
        .unwrap();
    for migration in BEFORE {
        client.batch_execute(migration).await.unwrap();
    }
    client
}

/// A commit of a server of the version before: some arguments by name, all others empty.
async fn commit_as_before(client: &Client, named: &[(&str, &str)]) -> tokio_postgres::Row {
    const ARGUMENTS: &str = "SELECT a.name, format_type(a.type, NULL)
         FROM pg_proc p, unnest(p.proargnames, p.proallargtypes, p.proargmodes) AS a(name, type, mode)
         WHERE p.proname = 'ff_commit' AND a.mode = 'i'";
    let rows = client.query(ARGUMENTS, &[]).await.unwrap();
    let arguments = rows.iter().map(|row| {
        let (name, kind): (&str, &str) = (row.get(0), row.get(1));
        let value = named.iter().find(|(argument, _)| *argument == name).map(|(_, value)| *value);
        let empty = if kind.ends_with("[]") { "{}" } else { "0" };
        format!("{name} => '{}'::{kind}", value.unwrap_or(empty))
    });
    let call = format!("SELECT * FROM ff_commit({})", arguments.collect::<Vec<_>>().join(", "));
    client.query_one(&call, &[]).await.unwrap()
}

/// How bytes stand in an array.
fn bytes(text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!(r#"{{"\\x{hex}"}}"#)
}

fn uuids(number: u128) -> String {
    format!("{{{}}}", Uuid::from_u128(number))
}

/// Creates a document with an entry in a queue, a lease and an event.
async fn create_as_before(client: &Client, name: &str, version: u128, score: i64) -> tokio_postgres::Row {
    let (key, version, score) = (bytes(name), uuids(version), format!("{{{score}}}"));
    commit_as_before(
        client,
        &[
            ("guard_batch", "{0}"),
            ("guard_kind", "{1}"),
            ("guard_key", &key),
            ("guard_version", "{NULL}"),
            ("guard_epoch", "{NULL}"),
            ("guard_lease", "{NULL}"),
            ("guard_instant", "{NULL}"),
            ("put_batch", "{0}"),
            ("put_key", &key),
            ("put_body", &bytes("body")),
            ("put_version", &version),
            ("put_epoch", "{4}"),
            ("put_lease", &version),
            ("put_ttl", "{60000}"),
            ("put_expires", "{NULL}"),
            ("set_batch", "{0}"),
            ("set_name", &bytes("queue")),
            ("set_member", &key),
            ("set_score", &score),
            ("set_relative", "{f}"),
            ("event_log", &bytes("events")),
            ("event_records", "1"),
            ("record_batch", "{0}"),
            ("record_log", &bytes("events")),
            ("record_bytes", &bytes(name)),
            ("record_counted", "{0}"),
            ("record_offset", "{0}"),
        ],
    )
    .await
}

async fn queue(store: &dyn Store) -> Vec<(Key, i64)> {
    let page = store.scan(PARTITION, Scan::first(index("queue"), 10)).await.unwrap();
    page.entries.into_iter().map(|entry| (entry.member, entry.score)).collect()
}

async fn events(store: &dyn Store) -> Vec<String> {
    let page = store.log(PARTITION, key("events"), LogStart::After(0), 10).await.unwrap();
    page.records.into_iter().map(|record| String::from_utf8(record.record.to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_version_before_wrote_is_there_and_goes_on() {
    let url = Server::shared().create_database("adopting_data");
    let before = schema_of_before(&url).await;
    create_as_before(&before, "a", 1, 10).await;
    let store = open(&url).await;
    let found = store.documents(PARTITION, vec![key("a")]).await.unwrap().remove(0).expect("it was adopted");
    assert_eq!((&found.body[..], found.version), (&b"body"[..], CommandId(Uuid::from_u128(1))));
    assert_eq!((found.fence.epoch.0, found.fence.lease.0), (4, Uuid::from_u128(1)));
    assert!(found.lease_until > 60_000);
    assert_eq!(queue(&*store).await, [(key("a"), 10)]);
    assert_eq!(events(&*store).await, ["a"]);
    let change = Batch {
        guards: vec![
            Guard::Version(key("a"), found.version),
            Guard::Fence(key("a"), found.fence),
            Guard::Live(key("a")),
        ],
        puts: vec![put(&key("a"), "changed")],
        entries: vec![set("queue", &key("a"), 20)],
        ..Batch::new(CommandId(Uuid::from_u128(2)))
    };
    assert!(matches!(store.commit(PARTITION, [change].into()).await.unwrap()[..], [Outcome::Applied(_)]));
    assert_eq!(queue(&*store).await, [(key("a"), 20)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_the_version_before_goes_on_beside_ours() {
    let url = Server::shared().create_database("adopting_beside");
    let before = schema_of_before(&url).await;
    create_as_before(&before, "a", 1, 10).await;
    let store = open(&url).await;
    // Ours notes that the queue is drained up to 10; theirs knows nothing of that and puts an entry in front.
    before.execute("INSERT INTO drained VALUES (0, 'queue', 10)", &[]).await.unwrap();
    create_as_before(&before, "b", 2, 5).await;
    assert_eq!(queue(&*store).await, [(key("b"), 5), (key("a"), 10)]);
    assert_eq!(events(&*store).await, ["a", "b"]);

    let refused = create_as_before(&before, "b", 3, 7).await;
    let columns = ["conflict_batch", "conflict_guard"].map(|name| refused.get::<_, Vec<i32>>(name));
    assert_eq!(columns, [[0], [1]]);
    assert_eq!(refused.get::<_, Vec<bool>>("conflict_missing"), [false]);
    assert_eq!(refused.get::<_, Vec<Uuid>>("conflict_version"), [Uuid::from_u128(2)]);
    assert_eq!(queue(&*store).await, [(key("b"), 5), (key("a"), 10)]);

    let (key_b, version) = (bytes("b"), uuids(2));
    let renewed = commit_as_before(
        &before,
        &[
            ("guard_batch", "{0,0}"),
            ("guard_kind", "{3,4}"),
            ("guard_key", &key_b.replace('}', &format!(",{}", &key_b[1..]))),
            ("guard_version", "{NULL,NULL}"),
            ("guard_epoch", "{4,NULL}"),
            ("guard_lease", &version.replace('}', ",NULL}")),
            ("guard_instant", "{NULL,NULL}"),
            ("lease_batch", "{0}"),
            ("lease_key", &key_b),
            ("lease_ttl", "{600000}"),
            ("counted_batch", "{0}"),
            ("counted_log", &bytes("journal")),
            ("counted_expected", "{1}"),
            ("counted_records", "{1}"),
            ("record_batch", "{0}"),
            ("record_log", &bytes("journal")),
            ("record_bytes", &bytes("step")),
            ("record_counted", "{1}"),
            ("record_offset", "{0}"),
        ],
    )
    .await;
    assert_eq!(renewed.get::<_, Option<Vec<i32>>>("conflict_batch"), None);
    assert_eq!(renewed.get::<_, Vec<i64>>("counted_next"), [1]);
    let found = store.documents(PARTITION, vec![key("b")]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.lease_until, renewed.get::<_, i64>("now") + 600_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_of_a_server_of_the_version_before_takes_no_longer_than_it_did() {
    const DOCUMENTS: usize = 10_000;
    let url = Server::shared().create_database("adopting_large");
    let before = schema_of_before(&url).await;
    let store = open(&url).await;
    // The settings of its connections, and a limit far above what the batch takes.
    before
        .batch_execute(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;
             SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan; SET statement_timeout = '10s'",
        )
        .await
        .unwrap();
    let all = |value: &str| format!("{{{}}}", vec![value; DOCUMENTS].join(","));
    let keys: Vec<String> = (0..DOCUMENTS).map(|number| format!("k{number}")).collect();
    let keys: Vec<String> = keys.iter().map(|key| bytes(key).trim_matches(['{', '}']).to_owned()).collect();
    let keys = format!("{{{}}}", keys.join(","));
    let (zeros, nothing, version) = (all("0"), all("NULL"), all(&Uuid::from_u128(1).to_string()));
    let mut named = vec![("guard_kind", all("1")), ("alone", "t".to_owned())];
    named.extend(["guard_key", "put_key", "put_body"].map(|name| (name, keys.clone())));
    named.extend(["guard_batch", "put_batch", "put_epoch", "put_ttl"].map(|name| (name, zeros.clone())));
    named.extend(["put_version", "put_lease"].map(|name| (name, version.clone())));
    let absent = ["guard_version", "guard_epoch", "guard_lease", "guard_instant", "put_expires"];
    named.extend(absent.map(|name| (name, nothing.clone())));
    let named: Vec<(&str, &str)> = named.iter().map(|(name, value)| (*name, value.as_str())).collect();
    commit_as_before(&before, &named).await;
    let last = store.documents(PARTITION, vec![key(&format!("k{}", DOCUMENTS - 1))]).await.unwrap().remove(0);
    assert_eq!(last.expect("it was written").version, CommandId(Uuid::from_u128(1)));
}
