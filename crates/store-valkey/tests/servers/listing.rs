//! The list of a partition's indexes, of which a server remembers some: what it remembers must never outlive the truth.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::{Append, Batch, EntryChange, Guard, Outcome, Store};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Server, Value, wait_until};
use uuid::Uuid;

const PLACE: Partition = Partition::flow(0);

async fn open(server: &Server) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(&server.url()).await.expect("the store opens"))
}

fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

fn set(name: &str) -> EntryChange {
    EntryChange::Set { index: index(name), member: Key::from_bytes(*b"m"), score: 1 }
}

fn remove(name: &str) -> EntryChange {
    EntryChange::Remove { index: index(name), member: Key::from_bytes(*b"m") }
}

async fn change(store: &Arc<dyn Store>, entry: EntryChange) {
    let command = CommandId(Uuid::now_v7());
    // Something has to be guarded; a key that nobody uses will do.
    let guards = vec![Guard::Absent(Key::from_bytes(command.as_bytes()))];
    let batch = Batch { guards, entries: vec![entry], ..Batch::new(command) };
    let outcomes = store.commit(PLACE, [batch].into()).await;
    assert!(matches!(outcomes.as_deref(), Ok([Outcome::Applied(_)])), "{outcomes:?}");
}

async fn listed(store: &Arc<dyn Store>) -> Vec<IndexName> {
    store.indexes(PLACE, Vec::new(), 1_000).await.expect("it lists")
}

#[tokio::test]
async fn an_index_is_listed_again_after_everything_was_deleted() {
    let server = Server::start();
    let store = open(&server).await;
    change(&store, set("a")).await;
    assert_eq!(listed(&store).await, [index("a")]);
    server.command("FLUSHALL");
    assert_eq!(listed(&store).await, []);
    change(&store, set("a")).await;
    assert_eq!(listed(&store).await, [index("a")]);
}

#[tokio::test]
async fn an_index_that_is_empty_for_now_is_not_listed() {
    let server = Server::start();
    let store = open(&server).await;
    for _ in 0..200 {
        change(&store, set("a")).await;
        assert_eq!(listed(&store).await, [index("a")]);
        change(&store, remove("a")).await;
        assert_eq!(listed(&store).await, []);
    }
}

#[tokio::test]
async fn names_of_indexes_that_are_gone_do_not_pile_up() {
    let server = Server::start();
    let store = open(&server).await;
    change(&store, set("stays")).await;
    for number in 0..1_000 {
        change(&store, set(&format!("index-{number}"))).await;
        change(&store, remove(&format!("index-{number}"))).await;
    }
    assert_eq!(listed(&store).await, [index("stays")]);
    let names = server.command(&format!("ZCARD {PLACE}r")).integer();
    assert!(names < 100, "{names} names of one index that is not empty");
}

#[tokio::test]
async fn names_of_indexes_that_are_gone_do_not_outlive_a_restart() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = open(&server).await;
    change(&store, set("stays")).await;
    // Fewer than the server waits for before it looks at them: only its memory knows of them.
    for number in 0..30 {
        change(&store, set(&format!("index-{number}"))).await;
        change(&store, remove(&format!("index-{number}"))).await;
    }
    server.kill();
    server.restart();
    let store = open(&server).await;
    assert_eq!(listed(&store).await, [index("stays")]);
    let names = server.command(&format!("ZCARD {PLACE}r")).integer();
    assert!(names < 5, "{names} names of one index that is not empty");
}

#[tokio::test]
async fn an_append_that_expects_a_number_is_judged_by_the_log_and_not_by_memory() {
    let server = Server::start();
    let store = open(&server).await;
    let log = Key::from_bytes(*b"journal");
    let append = async |expected: u64| {
        let command = CommandId(Uuid::now_v7());
        let append =
            Append { log: log.clone(), records: vec![Bytes::new()], expected: Some(expected), cap: 0, in_turn: false };
        let guards = vec![Guard::Absent(Key::from_bytes(command.as_bytes()))];
        let batch = Batch { guards, appends: vec![append], ..Batch::new(command) };
        store.commit(PLACE, [batch].into()).await.expect("it answers").pop().expect("one outcome")
    };
    assert!(matches!(append(1).await, Outcome::Applied(_)));
    // As a program of another protocol would, whose library has a memory of its own.
    server.command(&format!("XADD {PLACE}ljournal 2-9000000000000 record x"));
    assert!(matches!(append(2).await, Outcome::Conflict(_)), "the number is taken");
    assert!(matches!(append(3).await, Outcome::Applied(applied) if applied.sequences == [3]));
}

#[tokio::test]
async fn a_server_that_was_a_replica_for_a_while_forgets_what_it_knew_before() {
    let (first, second) = (Server::start(), Server::start());
    let store = open(&first).await;
    change(&store, set("moved")).await;
    second.follow(&first);
    second.promote();
    // Without a new copy of the data, which would come with a new library.
    first.follow(&second);
    assert_eq!(second.info("sync_partial_ok").as_deref(), Some("1"));
    let meanwhile = open(&second).await;
    change(&meanwhile, remove("moved")).await;
    for number in 0..100 {
        change(&meanwhile, remove(&format!("other-{number}"))).await;
    }
    let lists = |server: &Server| !matches!(server.command(&format!("ZSCORE {PLACE}r moved")), Value::Null);
    assert!(!lists(&second), "the second server took the name off the list");
    wait_until("the first server has it too", || !lists(&first));
    first.promote();
    let store = open(&first).await;
    change(&store, set("moved")).await;
    assert_eq!(listed(&store).await, [index("moved")]);
}
