//! Room: a full file refuses cleanly and heals, and expired documents and trimmed records make place.

use std::path::Path;

use bytes::Bytes;
use ff_core::{CommandId, Key, Partition};
use ff_store::{Append, Batch, BlobChange, Fence, Guard, LogStart, Outcome, Put, Store, StoreError, Trim};
use ff_store_sqlite::{Options, open};
use uuid::Uuid;

const HERE: Partition = Partition::flow(0);

fn key(n: u128) -> Key {
    Key::new(b'x', &[&n.to_be_bytes()])
}

fn create(n: u128, expires_at: Option<i64>) -> Batch {
    let put = Put { key: key(n), body: "body".into(), fence: Fence::default(), expires_at };
    let mut batch = Batch::new(CommandId(Uuid::from_u128(n)));
    batch.guards.push(Guard::Absent(key(n)));
    batch.puts.push(put);
    batch
}

fn with_blob(n: u128, bytes: usize) -> Batch {
    let mut batch = create(n, None);
    batch.blobs.push(BlobChange { key: key(n), bytes: Some(vec![7; bytes].into()) });
    batch
}

fn rows(path: &Path, table: &str) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

fn applied(outcomes: Vec<Outcome>) -> bool {
    outcomes.into_iter().all(|outcome| outcome.applied().is_some())
}

#[tokio::test]
async fn a_full_file_refuses_whole_batches_and_heals() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options { max_pages: Some(200), ..Options::new(&path) }).unwrap();
    let mut stored = 0;
    let error = loop {
        match store.commit(HERE, [with_blob(stored + 1, 50_000)].into()).await {
            Ok(outcomes) => assert!(applied(outcomes)),
            Err(error) => break error,
        }
        stored += 1;
    };
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert!(stored > 3, "only {stored} fitted");

    let reading: &dyn Store = &*store;
    assert_eq!(reading.documents(HERE, vec![key(stored + 1)]).await.unwrap(), [None]);
    assert_eq!(reading.blobs(HERE, vec![key(stored + 1)]).await.unwrap(), [None]);

    let mut relief = Batch::new(CommandId(Uuid::from_u128(900)));
    relief.relief = true;
    relief.guards.push(Guard::Version(key(1), CommandId(Uuid::from_u128(1))));
    relief.deletes.push(key(1));
    relief.blobs.push(BlobChange { key: key(1), bytes: None });
    assert!(applied(store.commit(HERE, [relief].into()).await.unwrap()));
    assert!(applied(store.commit(HERE, [with_blob(stored + 1, 50_000)].into()).await.unwrap()));
    store.close().await;
}

#[tokio::test]
async fn a_call_that_does_not_fit_harms_no_neighbour() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options { max_pages: Some(200), ..Options::new(&path) }).unwrap();
    let calls: Vec<_> = (1..=60u128)
        .map(|n| {
            let store = store.clone();
            let batch = if n % 10 == 0 { with_blob(n, 1_000_000) } else { create(n, None) };
            (n, tokio::spawn(async move { store.commit(HERE, [batch].into()).await }))
        })
        .collect();
    for (n, call) in calls {
        let answer = call.await.unwrap();
        if n % 10 == 0 {
            assert!(matches!(answer, Err(StoreError::Full(_))), "{n}: {answer:?}");
        } else {
            assert!(applied(answer.unwrap()), "{n}");
        }
    }
    store.close().await;
    assert_eq!(rows(&path, "documents"), 54);
    assert_eq!(rows(&path, "blobs"), 0);
}

#[tokio::test]
async fn expired_documents_leave_the_file_in_the_wake_of_commits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let batches: Vec<Batch> = (1..=500).map(|n| create(n, Some(1))).collect();
    assert!(applied(store.commit(HERE, batches.into()).await.unwrap()));
    for n in 1_001..=1_004 {
        assert!(applied(store.commit(HERE, [create(n, None)].into()).await.unwrap()));
    }
    store.close().await;
    assert_eq!(rows(&path, "documents"), 4);
}

#[tokio::test]
async fn a_long_log_goes_at_once_and_its_name_starts_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let log = key(1);
    let append = |records: usize| {
        let mut batch = Batch::new(CommandId(Uuid::from_u128(1)));
        let records = vec![Bytes::from_static(b"record"); records];
        batch.appends.push(Append { log: log.clone(), records, expected: None, cap: 0, in_turn: false });
        batch
    };
    assert!(applied(store.commit(HERE, [append(1_500)].into()).await.unwrap()));
    let mut trim = Batch::new(CommandId(Uuid::from_u128(2)));
    trim.trims.push(Trim { log: log.clone(), before: u64::MAX });
    assert!(applied(store.commit(HERE, [trim, append(1)].into()).await.unwrap()));
    let reading: &dyn Store = &*store;
    let page = reading.log(HERE, log.clone(), LogStart::After(0), 10).await.unwrap();
    assert_eq!((page.records.len(), page.first, page.next), (1, 1, 2));
    for _ in 0..8 {
        assert!(applied(store.commit(HERE, [append(1)].into()).await.unwrap()));
    }
    store.close().await;
    assert_eq!((rows(&path, "records"), rows(&path, "garbage")), (9, 0));
}

#[tokio::test]
async fn a_capped_log_keeps_its_newest_and_stays_small() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let log = key(1);
    for n in 0..300u64 {
        let mut batch = Batch::new(CommandId(Uuid::from_u128(1)));
        let records = vec![Bytes::copy_from_slice(&n.to_be_bytes())];
        batch.appends.push(Append { log: log.clone(), records, expected: None, cap: 50, in_turn: false });
        assert!(applied(store.commit(HERE, [batch].into()).await.unwrap()));
    }
    let reading: &dyn Store = &*store;
    let page = reading.log(HERE, log, LogStart::Before(u64::MAX), 1_000).await.unwrap();
    assert_eq!(page.next, 301);
    assert!((50..=70).contains(&page.records.len()), "{} records are left", page.records.len());
    assert_eq!(page.first, 301 - page.records.len() as u64);
    assert_eq!(page.records[0].sequence, 300);
    let kept = i64::try_from(page.records.len()).unwrap();
    store.close().await;
    assert_eq!(rows(&path, "records"), kept);
}

#[test]
fn paging_in_both_directions_uses_the_index() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    for (comparison, order) in [(">=", "ASC"), ("<", "DESC")] {
        let plan: String = connection
            .query_row(
                &format!(
                    "EXPLAIN QUERY PLAN SELECT score, k FROM documents_and_entries WHERE score IS NOT NULL \
                     AND p = 1 AND name = x'00' AND (score, k) {comparison} (5, x'01') \
                     ORDER BY score {order}, k {order} LIMIT 10"
                ),
                [],
                |row| row.get(3),
            )
            .unwrap();
        let bound = format!("(score,k){}(?,?)", &comparison[..1]);
        assert!(plan.contains("COVERING INDEX entries_by_score (p=? AND name=? AND "), "{plan}");
        assert!(plan.contains(&bound), "{plan}");
    }
    drop(store);
}

fn wal_bytes(path: &Path) -> u64 {
    std::fs::metadata(path.with_extension("db-wal")).map_or(0, |found| found.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_never_pause_do_not_let_the_log_grow_without_end() {
    const LIMIT: u64 = 4 * 1024 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options { wal_max_bytes: LIMIT, readers: 4, ..Options::new(&path) }).unwrap();
    let first: Vec<Batch> = (1..=100).map(|n| with_blob(n, 20_000)).collect();
    assert!(applied(store.commit(HERE, first.into()).await.unwrap()));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let store: &dyn Store = &*store;
                    store.blobs(HERE, (1..=100).map(key).collect()).await.unwrap();
                }
            })
        })
        .collect();
    let mut longest = 0;
    for n in 1_001..=1_200 {
        assert!(applied(store.commit(HERE, [with_blob(n, 100_000)].into()).await.unwrap()));
        longest = longest.max(wal_bytes(&path));
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    store.close().await;
    assert!(longest < 3 * LIMIT, "the log of 20 MB of commits grew to {longest} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_program_costs_all_who_wait_its_time_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    assert!(applied(store.commit(HERE, [create(1, None)].into()).await.unwrap()));
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let started = std::time::Instant::now();
    let calls: Vec<_> = (2..=21)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(HERE, [create(n, None)].into()).await })
        })
        .collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    let took = started.elapsed();
    assert!(took < std::time::Duration::from_secs(15), "twenty callers were kept waiting for {took:?}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(applied(store.commit(HERE, [create(2, None)].into()).await.unwrap()));
    store.close().await;
}
