//! A file of an earlier version is adopted with all that is in it.

use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition};
use ff_store::{Batch, EntryChange, Fence, Guard, Outcome, Query, Scan, Store, StoredDocument};
use ff_store_sqlite::{Options, open};
use uuid::Uuid;

const HERE: Partition = Partition::flow(3);
/// Enough for trees of several pages.
const MEMBERS: i64 = 5_000;

fn queue() -> IndexName {
    IndexName::from_bytes(*b"queue")
}

fn member(number: i64) -> Key {
    Key::from_bytes(format!("m{number:05}"))
}

/// A file as the first version made it, with entries in two indexes of a partition and in one of another.
fn file_of_before(path: &std::path::Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute_batch(include_str!("../migrations/0001.sql")).unwrap();
    connection.pragma_update(None, "application_id", 0x464c_4f57).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection.execute_batch("BEGIN").unwrap();
    let mut insert =
        connection.prepare("INSERT INTO entries (p, name, member, score) VALUES (?1, ?2, ?3, ?4)").unwrap();
    for number in 0..MEMBERS {
        let member = member(number);
        // Its last members come first.
        insert.execute((HERE.ordinal(), b"queue", member.as_bytes(), MEMBERS - number)).unwrap();
        insert.execute((HERE.ordinal(), b"state", member.as_bytes(), number)).unwrap();
        insert.execute((HERE.ordinal() + 1, b"queue", member.as_bytes(), 7)).unwrap();
    }
    connection
        .execute(
            "INSERT INTO documents (p, k, version, epoch, lease, lease_until, expires_at, body) VALUES \
             (?1, ?2, ?3, 4, ?4, 5, NULL, x'aa'), (?1, x'78', ?3, 4, ?4, 0, 1, x'bb')",
            (HERE.ordinal(), member(0).as_bytes(), Uuid::from_u128(1).as_bytes(), Uuid::from_u128(2).as_bytes()),
        )
        .unwrap();
    connection.execute_batch("COMMIT").unwrap();
}

#[tokio::test]
async fn documents_and_entries_of_an_earlier_version_are_found_changed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    file_of_before(&path);
    let store = open(&Options::new(&path)).unwrap();
    let documents = async || {
        let store: &dyn Store = &*store;
        store.documents(HERE, vec![member(0), Key::from_bytes(*b"x")]).await.unwrap()
    };
    let stored = StoredDocument {
        key: member(0),
        body: vec![0xaa].into(),
        version: CommandId(Uuid::from_u128(1)),
        fence: Fence { epoch: LeaseEpoch(4), lease: LeaseId(Uuid::from_u128(2)) },
        lease_until: 5,
    };
    assert_eq!(documents().await, [Some(stored), None], "the second one has expired");

    let counted = async || {
        let query = |name: &[u8]| Query::count_all(IndexName::from_bytes(name));
        let answers = store.read(HERE, vec![query(b"queue"), query(b"state")]).await.unwrap().answers;
        answers.into_iter().map(|answer| answer.into_count().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(counted().await, [5_000, 5_000]);
    let names = Query::Indexes { prefix: Vec::new(), after: None, limit: 10 };
    let names = store.read(HERE, vec![names]).await.unwrap().into_only(ff_store::Answer::into_indexes).unwrap();
    assert_eq!(names, [queue(), IndexName::from_bytes(*b"state")]);

    let change = Batch {
        guards: vec![Guard::Version(member(0), CommandId(Uuid::from_u128(1)))],
        deletes: vec![member(0)],
        entries: vec![
            EntryChange::Set { index: queue(), member: member(0), score: 0 },
            EntryChange::Remove { index: queue(), member: member(MEMBERS - 1) },
        ],
        ..Batch::new(CommandId(Uuid::from_u128(1)))
    };
    let outcomes = store.commit(HERE, [change].into()).await.unwrap();
    assert!(matches!(outcomes[..], [Outcome::Applied(_)]));
    let first = store.read(HERE, vec![Query::Scan(Scan::first(queue(), 2))]).await.unwrap();
    let first = first.into_only(ff_store::Answer::into_scan).unwrap();
    let found: Vec<_> = first.entries.into_iter().map(|entry| (entry.member, entry.score)).collect();
    assert_eq!(found, [(member(0), 0), (member(MEMBERS - 2), 2)]);
    assert_eq!(counted().await, [4_999, 5_000]);
    assert_eq!(documents().await, [None, None]);
    store.close().await;

    // The second opening finds nothing left to do.
    open(&Options::new(&path)).unwrap().close().await;
}
