//! Many callers in one call of the database: none of them may notice.

use std::sync::Arc;

use ff_core::Key;
use ff_store::{Batch, ConflictReason, Guard, Outcome, Store, StoreError};
use ff_store_postgres::{Options, PostgresStore};
use ff_testkit::postgres::Server;
use futures_util::future::join_all;

use crate::fixture::{PARTITION, append, command, create, index, key, open, put, set};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_fault_fails_alone() {
    let url = Server::shared().create_database("groups_fault");
    // A view that is no JSON is an error only the database finds.
    let view = |key: &Key, _: &[u8]| Some(if key.kind() == b'!' { "not json" } else { "{}" }.to_owned());
    let options = Options::parse(&format!("{url}?view=on")).unwrap();
    let store = PostgresStore::open(options.view(view)).await.unwrap();
    let store: &dyn ff_store::Store = &store;
    let names: Vec<String> = (0..200).map(|n| format!("{}{n}", if n % 50 == 7 { "!" } else { "x" })).collect();
    let answers = join_all(names.iter().map(|name| store.commit(PARTITION, [create(&key(name), "body")].into()))).await;
    for (name, answer) in names.iter().zip(answers) {
        if name.starts_with('!') {
            assert!(matches!(answer, Err(StoreError::Invalid(_))), "{name}: {answer:?}");
        } else {
            assert!(matches!(answer.as_deref(), Ok([Outcome::Applied(_)])), "{name}: {answer:?}");
        }
    }
    let found = store.documents(PARTITION, names.iter().map(|name| key(name)).collect()).await.unwrap();
    assert!(names.iter().zip(found).all(|(name, found)| found.is_some() != name.starts_with('!')));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_document_in_many_hands_changes_once_for_each_version() {
    let url = Server::shared().create_database("groups_contended");
    // Two processes: what one of them has under way, the other finds out in the database.
    let stores = [open(&url).await, open(&url).await];
    let counter = key("counter");
    stores[0].commit(PARTITION, [create(&counter, "0")].into()).await.unwrap();
    let raise = |store: Arc<dyn Store>| {
        let counter = counter.clone();
        async move {
            loop {
                let found = store.documents(PARTITION, vec![counter.clone()]).await.unwrap().remove(0).unwrap();
                let count: u32 = std::str::from_utf8(&found.body).unwrap().parse().unwrap();
                let batch = Batch {
                    guards: vec![Guard::Version(counter.clone(), found.version)],
                    puts: vec![put(&counter, &(count + 1).to_string())],
                    ..Batch::new(command())
                };
                if let Outcome::Applied(_) = store.commit(PARTITION, [batch].into()).await.unwrap().remove(0) {
                    return;
                }
            }
        }
    };
    join_all((0..40).map(|number| raise(stores[number % 2].clone()))).await;
    let found = stores[0].documents(PARTITION, vec![counter]).await.unwrap().remove(0).unwrap();
    assert_eq!(found.body, "40");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_larger_than_any_group_is_applied_in_order() {
    let store = open(&Server::shared().create_database("groups_large")).await;
    let keys: Vec<Key> = (0..500).map(|n| key(&format!("x{n}"))).collect();
    // Independent batches, and one in the middle that is not.
    let mut batches: Vec<Batch> = keys.iter().map(|key| create(key, "first")).collect();
    batches.insert(250, create(&keys[3], "second"));
    let outcomes = store.commit(PARTITION, batches.clone().into()).await.unwrap();
    assert_eq!(outcomes.len(), 501);
    for (place, outcome) in outcomes.iter().enumerate() {
        let refused = matches!(outcome, Outcome::Conflict(conflict)
            if conflict.why == ConflictReason::Exists(batches[3].command));
        assert_eq!(refused, place == 250, "{place}: {outcome:?}");
    }
    // A single batch with more documents than locks.
    let all = Batch {
        guards: keys.iter().map(|key| Guard::Absent(Key::new(b'y', &[key.as_bytes()]))).collect(),
        puts: keys.iter().map(|key| put(&Key::new(b'y', &[key.as_bytes()]), "all")).collect(),
        entries: keys.iter().map(|key| set("all", key, 1)).collect(),
        ..Batch::new(command())
    };
    assert!(matches!(store.commit(PARTITION, [all].into()).await.unwrap()[..], [Outcome::Applied(_)]));
    assert_eq!(store.count(PARTITION, index("all"), 0, 2).await.unwrap(), 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counted_log_stays_without_holes_when_nothing_is_expected() {
    let store = open(&Server::shared().create_database("groups_counted")).await;
    let first = Batch { appends: vec![append("log", "first", Some(1))], ..create(&key("a"), "") };
    store.commit(PARTITION, [first].into()).await.unwrap();
    let more = (0..50).map(|n| {
        let batch = Batch { appends: vec![append("log", &n.to_string(), None)], ..Batch::new(command()) };
        store.commit(PARTITION, [batch].into())
    });
    for answer in join_all(more).await {
        answer.unwrap();
    }
    let page = store.log(PARTITION, key("log"), ff_store::LogStart::After(0), 100).await.unwrap();
    let numbers: Vec<u64> = page.records.iter().map(|record| record.sequence).collect();
    assert_eq!(numbers, (1..=51).collect::<Vec<u64>>());
    assert_eq!((page.first, page.next), (1, 52));
}
