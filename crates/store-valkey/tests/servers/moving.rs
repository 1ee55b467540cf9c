//! A slot moves to another server while documents, indexes and logs on it change: nothing is half done, and what can be
//! answered is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition};
use ff_store::{
    Append, Batch, BlobChange, ConflictReason, EntryChange, Fence, Guard, LeaseChange, LogStart, Outcome, Put, Scan,
    Store, StoreError, Trim,
};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Cluster;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::new_key;

const HERE: Partition = Partition::flow(0);
const WORKERS: usize = 6;

fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

fn due() -> IndexName {
    index("!due")
}

fn set(name: &str, member: &Key) -> EntryChange {
    EntryChange::Set { index: index(name), member: member.clone(), score: 1 }
}

fn remove(name: &str, member: &Key) -> EntryChange {
    EntryChange::Remove { index: index(name), member: member.clone() }
}

fn append(log: &Key, text: &'static [u8]) -> Append {
    Append { log: log.clone(), records: vec![Bytes::from_static(text)], expected: None, cap: 0, in_turn: false }
}

fn put(key: &Key, fence: Fence) -> Put {
    Put { key: key.clone(), body: Bytes::copy_from_slice(key.as_bytes()), fence, expires_at: None }
}

fn lease(key: &Key, ttl_ms: Option<i64>) -> LeaseChange {
    LeaseChange {
        key: key.clone(),
        ttl_ms,
        index: due(),
        member: Key::from_bytes([key.as_bytes(), b" lease"].concat()),
    }
}

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Created,
    Claimed,
    Completed,
    Removed,
}

/// The commit that brings a task to its next stage. Most indexes hold one task at a time and are empty between two.
fn step(stage: Stage, worker: usize, key: &Key, version: CommandId, command: CommandId) -> Batch {
    let queue = format!("queue-{worker}");
    let fence = Fence { epoch: LeaseEpoch(1), lease: LeaseId(Uuid::from_u128(7)) };
    let batch = Batch { guards: vec![Guard::Version(key.clone(), version)], ..Batch::new(command) };
    match stage {
        Stage::Created => Batch {
            guards: vec![Guard::Absent(key.clone())],
            puts: vec![put(key, Fence::default())],
            entries: vec![set(&queue, key), set("waiting", key)],
            appends: vec![append(key, b"created")],
            blobs: vec![BlobChange { key: key.clone(), bytes: Some(Bytes::from_static(b"input")) }],
            ..batch
        },
        Stage::Claimed => Batch {
            puts: vec![put(key, fence)],
            entries: vec![remove(&queue, key), remove("waiting", key), set("active", key)],
            leases: vec![lease(key, Some(600_000))],
            appends: vec![append(key, b"claimed")],
            ..batch
        },
        Stage::Completed => Batch {
            puts: vec![put(key, fence)],
            entries: vec![remove("active", key), set("completed", key)],
            leases: vec![lease(key, None)],
            appends: vec![append(key, b"completed")],
            ..batch
        },
        Stage::Removed => Batch {
            deletes: vec![key.clone()],
            entries: vec![remove("completed", key)],
            trims: vec![Trim { log: key.clone(), before: u64::MAX }],
            blobs: vec![BlobChange { key: key.clone(), bytes: None }],
            ..batch
        },
    }
}

/// Commits until it is known that it was applied; says so, or what else happened.
async fn settle(store: &Arc<dyn Store>, batch: Batch) -> Result<(), String> {
    let command = batch.command;
    let mut sent_before = false;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        match store.commit(HERE, [batch.clone()].into()).await {
            Ok(outcomes) => match &outcomes[..] {
                [Outcome::Applied(_)] => return Ok(()),
                [Outcome::Conflict(conflict)] if sent_before => match conflict.why {
                    ConflictReason::Exists(found) | ConflictReason::Version(found) if found == command => return Ok(()),
                    ConflictReason::Missing if !batch.deletes.is_empty() => return Ok(()),
                    _ => return Err(format!("{conflict:?}")),
                },
                other => return Err(format!("{other:?}")),
            },
            Err(StoreError::Unknown(_)) => sent_before = true,
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("it was not settled in time".into())
}

type Ledger = BTreeMap<Key, (Stage, CommandId)>;

/// Brings one task after the other through all stages; leaves one in three at each stage behind.
async fn work(store: Arc<dyn Store>, worker: usize, stop: watch::Receiver<bool>, done: watch::Sender<usize>) -> Ledger {
    let mut ledger = Ledger::new();
    for number in 0.. {
        if *stop.borrow() {
            break;
        }
        let key = new_key();
        let mut version = CommandId::default();
        let last = [Stage::Removed, Stage::Completed, Stage::Removed, Stage::Claimed][number % 4];
        for stage in [Stage::Created, Stage::Claimed, Stage::Completed, Stage::Removed] {
            if stage > last {
                break;
            }
            let command = CommandId(Uuid::now_v7());
            if let Err(why) = settle(&store, step(stage, worker, &key, version, command)).await {
                panic!("{stage:?} of {key:?}: {why}");
            }
            version = command;
            ledger.insert(key.clone(), (stage, version));
            done.send_modify(|count| *count += 1);
        }
    }
    ledger
}

/// Everything that is stored is exactly what was acknowledged.
async fn compare(store: &Arc<dyn Store>, ledger: &Ledger) {
    for (key, (stage, version)) in ledger {
        let documents = store.documents(HERE, vec![key.clone()]).await.expect("it reads");
        let found = documents[0].as_ref().map(|document| document.version);
        assert_eq!(found, (*stage != Stage::Removed).then_some(*version), "{stage:?} {key:?}");
        let log = store.log(HERE, key.clone(), LogStart::After(0), 10).await.expect("it reads");
        let records: Vec<&[u8]> = log.records.iter().map(|record| &record.record[..]).collect();
        let all: [&[u8]; 3] = [b"created", b"claimed", b"completed"];
        let expected = match stage {
            Stage::Created => &all[..1],
            Stage::Claimed => &all[..2],
            Stage::Completed => &all[..],
            Stage::Removed => &[],
        };
        assert_eq!(records, expected, "{stage:?} {key:?}");
        let blobs = store.blobs(HERE, vec![key.clone()]).await.expect("it reads");
        assert_eq!(blobs[0].is_some(), *stage != Stage::Removed, "{stage:?} {key:?}");
    }
    let members = |wanted: Stage| -> BTreeSet<Key> {
        let there = ledger.iter().filter(|(_, (stage, _))| *stage == wanted);
        there.map(|(key, _)| key.clone()).collect()
    };
    for (name, stage) in [("waiting", Stage::Created), ("active", Stage::Claimed), ("completed", Stage::Completed)] {
        let page = store.scan(HERE, Scan::first(index(name), usize::MAX).with_documents()).await.expect("it scans");
        assert!(page.entries.iter().all(|entry| entry.document.is_some()), "an entry of {name} has no document");
        let found: BTreeSet<Key> = page.entries.into_iter().map(|entry| entry.member).collect();
        assert_eq!(found, members(stage), "{name}");
    }
    let leases = store.count(HERE, due(), i64::MIN, i64::MAX).await.expect("it counts");
    assert_eq!(usize::try_from(leases).ok(), Some(members(Stage::Claimed).len()), "leases");
    for worker in 0..WORKERS {
        let queued = store.count(HERE, index(&format!("queue-{worker}")), i64::MIN, i64::MAX).await.expect("it counts");
        assert_eq!(queued, 0, "everything that was queued was claimed");
    }
}

async fn more(done: &watch::Sender<usize>, count: usize) {
    let target = *done.borrow() + count;
    let mut counted = done.subscribe();
    let reached = tokio::time::timeout(Duration::from_secs(30), counted.wait_for(|now| *now >= target)).await;
    assert!(reached.is_ok(), "no {count} more commits in time");
}

async fn start() -> (Cluster, Arc<dyn Store>, u16) {
    let cluster = tokio::task::spawn_blocking(Cluster::start_patient).await.expect("the cluster starts");
    let store: Arc<dyn Store> = Arc::new(ValkeyStore::open(&cluster.url()).await.expect("the store opens"));
    let slot = cluster.nodes[0].client().command(&format!("CLUSTER KEYSLOT {HERE}")).integer();
    (cluster, store, u16::try_from(slot).expect("a slot"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_half_done_while_a_slot_moves_to_and_fro() {
    let (mut cluster, store, slot) = start().await;
    let (stop, stopped) = watch::channel(false);
    let (done, _) = watch::channel(0);
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        workers.spawn(work(store.clone(), worker, stopped.clone(), done.clone()));
    }
    for _ in 0..3 {
        more(&done, 150).await;
        cluster = tokio::task::spawn_blocking(move || {
            let to = (cluster.owner(slot) + 1) % 3;
            cluster.migrate_slot(slot, to, || {});
            cluster
        })
        .await
        .expect("the slot moves");
    }
    more(&done, 150).await;
    stop.send_replace(true);
    let mut ledger = Ledger::new();
    for part in workers.join_all().await {
        ledger.extend(part);
    }
    println!("{} tasks", ledger.len());
    compare(&store, &ledger).await;
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_stays_half_moved_answers_reads_and_refuses_commits_at_once() {
    let (cluster, store, slot) = start().await;
    let (stop, stopped) = watch::channel(false);
    let (done, _) = watch::channel(0);
    let worker = tokio::spawn(work(store.clone(), 0, stopped, done.clone()));
    more(&done, 60).await;
    stop.send_replace(true);
    let ledger = worker.await.expect("it ends");
    let cluster = Arc::new(cluster);
    let moving = cluster.clone();
    let migration = tokio::task::spawn_blocking(move || {
        let migration = moving.begin_migration(slot, (moving.owner(slot) + 1) % 3);
        // The list of names goes before the indexes that it names.
        moving.migrate_key(&migration, format!("{HERE}r").as_bytes());
        assert_eq!(moving.migrate_keys(&migration, 30), 30);
        migration
    })
    .await
    .expect("half of it moves");
    let reading = Instant::now();
    compare(&store, &ledger).await;
    let names = store.indexes(HERE, Vec::new(), 100).await.expect("it lists");
    assert_eq!(names, [index("active"), index("completed")]);
    let keys: Vec<Key> = ledger.keys().cloned().collect();
    assert_eq!(store.documents(HERE, keys.clone()).await.map(|found| found.len()), Ok(keys.len()));
    assert!(reading.elapsed() < Duration::from_secs(5), "{:?}", reading.elapsed());
    let create = async || {
        let (started, key) = (Instant::now(), new_key());
        let committed =
            store.commit(HERE, [step(Stage::Created, 9, &key, CommandId::default(), CommandId::default())].into());
        let committed = committed.await;
        assert!(matches!(committed, Err(StoreError::Unavailable(_))), "{committed:?}");
        started.elapsed()
    };
    // A slot that moves is waited for, but not by everybody for ever.
    let first = create().await;
    assert!(first < Duration::from_secs(5), "{first:?}");
    for _ in 0..20 {
        let next = create().await;
        assert!(next < Duration::from_millis(500), "{next:?}");
    }
    let cluster = tokio::task::spawn_blocking(move || {
        while cluster.migrate_keys(&migration, 100) > 0 {}
        cluster.end_migration(&migration);
        cluster
    })
    .await
    .expect("the rest follows");
    let key = new_key();
    assert_eq!(
        settle(&store, step(Stage::Created, 9, &key, CommandId::default(), CommandId(Uuid::now_v7()))).await,
        Ok(())
    );
    drop(cluster);
}
