//! Commits that share a function call have nothing else in common.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::{
    Append, Batch, BlobChange, ConflictReason, EntryChange, Guard, LeaseChange, LogStart, Outcome, Query, Scan, Store,
    StoreError,
};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::{Cluster, Replicated, Server};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::support::{creation, new_key};

type Committed = Result<Vec<Outcome>, StoreError>;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(url).await.expect("the store opens"))
}

fn command() -> CommandId {
    CommandId(Uuid::now_v7())
}

/// Commits that all wait at the same time: this test has one thread, and none of them is sent before the last has asked.
async fn all_at_once(store: &Arc<dyn Store>, commits: Vec<(Partition, Batch)>) -> Vec<Committed> {
    join_all(commits.into_iter().map(|(partition, batch)| store.commit(partition, [batch].into()))).await
}

/// Function calls that the server has carried out.
fn calls(server: &Server) -> usize {
    let text = server.command("INFO commandstats").into_text();
    let line = text.lines().find(|line| line.starts_with("cmdstat_fcall:"));
    let count = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()).unwrap_or("0");
    count.parse().expect("a number")
}

fn applied(committed: &Committed) -> bool {
    matches!(committed.as_deref(), Ok([Outcome::Applied(_)]))
}

fn flow(number: usize) -> Partition {
    Partition::flow(u16::try_from(number % 16).expect("a small number"))
}

async fn is_there(store: &Arc<dyn Store>, partition: Partition, key: &Key) -> bool {
    store.documents(partition, vec![key.clone()]).await.expect("it reads")[0].is_some()
}

fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

#[tokio::test]
async fn a_conflict_is_no_matter_of_its_neighbours() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let keys: Vec<Key> = (0..100).map(|_| new_key()).collect();
    let creations = |count: usize| (0..count).map(|number| (flow(number), creation(&keys[number], command())));
    assert!(all_at_once(&store, creations(50).collect()).await.iter().all(applied));
    let before = calls(&server);
    // The first half is there already.
    let outcomes = all_at_once(&store, creations(100).collect()).await;
    let shared = calls(&server) - before;
    assert!(shared <= 10, "{shared} calls for 100 commits");
    for (number, outcome) in outcomes.iter().enumerate() {
        match outcome.as_deref() {
            Ok([Outcome::Conflict(conflict)]) => {
                assert!(number < 50, "{conflict:?}");
                assert_eq!(conflict.key.as_ref(), Some(&keys[number]), "the conflict names its own document");
                assert!(matches!(conflict.why, ConflictReason::Exists(_)), "{conflict:?}");
            }
            other => assert!(number >= 50 && applied(outcome), "{other:?}"),
        }
        assert!(is_there(&store, flow(number), &keys[number]).await);
    }
}

#[tokio::test]
async fn commits_of_one_call_see_the_ones_before() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let (key, log) = (new_key(), Key::from_bytes(*b"log"));
    let commits = (0..40).map(|number| {
        let mut batch = creation(&key, command());
        if number % 2 == 0 {
            batch.guards = vec![Guard::Absent(new_key())];
            batch.puts.clear();
        }
        batch.appends = vec![Append {
            log: log.clone(),
            records: vec![Bytes::from_static(b"r")],
            expected: None,
            cap: 0,
            in_turn: false,
        }];
        (flow(3), batch)
    });
    let before = calls(&server);
    let outcomes = all_at_once(&store, commits.collect()).await;
    assert!(calls(&server) - before <= 4);
    // One creates the document; the numbers of the log have no gap.
    assert_eq!(outcomes.iter().skip(1).step_by(2).filter(|outcome| applied(outcome)).count(), 1);
    assert!(outcomes.iter().step_by(2).all(applied));
    let page = store.log(flow(3), log, LogStart::After(0), 100).await.expect("it reads");
    let numbers: Vec<u64> = page.records.iter().map(|record| record.sequence).collect();
    assert_eq!(numbers, (1..=21).collect::<Vec<u64>>());
}

/// The members of an index, in its order, with their scores.
async fn entries(store: &Arc<dyn Store>, partition: Partition, index: IndexName) -> Vec<(Key, i64)> {
    let mut answers =
        store.read(partition, vec![Query::Scan(Scan::first(index, 1_000))]).await.expect("it reads").answers;
    let page = answers.remove(0).into_scan().expect("a page");
    page.entries.into_iter().map(|entry| (entry.member, entry.score)).collect()
}

#[tokio::test]
async fn a_refused_commit_leaves_no_entry_in_an_index_that_its_neighbours_write() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let (taken, partition) = (new_key(), flow(3));
    assert!(all_at_once(&store, vec![(partition, creation(&taken, command()))]).await.iter().all(applied));
    let members: Vec<Key> = (0..40).map(|_| new_key()).collect();
    let commits = members.iter().zip(2..).map(|(member, score)| {
        // Every other one finds that its document is there already. Half of the rest have leases.
        let mut batch = creation(if score % 2 == 0 { member } else { &taken }, command());
        batch.entries = vec![EntryChange::Set { index: crate::support::all(), member: member.clone(), score }];
        if score % 4 < 2 {
            let (index, member) = (index("!leases"), member.clone());
            batch.leases = vec![LeaseChange { key: batch.puts[0].key.clone(), ttl_ms: Some(60_000), index, member }];
        }
        (partition, batch)
    });
    let before = calls(&server);
    let outcomes = all_at_once(&store, commits.collect()).await;
    assert!(calls(&server) - before <= 4);
    assert_eq!(outcomes.iter().filter(|outcome| applied(outcome)).count(), 20);
    let expected: Vec<(Key, i64)> = members.iter().cloned().zip(2..).filter(|(_, score)| score % 2 == 0).collect();
    assert_eq!(entries(&store, partition, crate::support::all()).await[1..], expected[..]);
    let leased: Vec<Key> = expected.into_iter().filter(|(_, score)| score % 4 == 0).map(|(member, _)| member).collect();
    let mut found: Vec<Key> =
        entries(&store, partition, index("!leases")).await.into_iter().map(|(member, _)| member).collect();
    found.sort();
    assert_eq!(found, leased);
}

#[tokio::test]
async fn of_several_commits_about_one_member_the_last_has_its_way() {
    let server = Server::start();
    let store = open(&server.url()).await;
    // So few that all ask in their order.
    let (members, last) = ([new_key(), new_key()], 12);
    let commits = (0..=last).flat_map(|number| {
        let one = |member: &Key, leaves: bool| {
            let (index, member) = (crate::support::all(), member.clone());
            let entry = match leaves {
                true => EntryChange::Remove { index, member },
                false => EntryChange::Set { index, member, score: number },
            };
            let guards = vec![Guard::Absent(new_key())];
            (flow(3), Batch { guards, entries: vec![entry], ..Batch::new(command()) })
        };
        // The first member is there in the end, the second is not.
        [one(&members[0], number % 2 == 1), one(&members[1], number % 2 == 0)]
    });
    let before = calls(&server);
    let outcomes = all_at_once(&store, commits.collect()).await;
    assert!(outcomes.iter().all(applied));
    assert!(calls(&server) - before <= 3);
    assert_eq!(entries(&store, flow(3), crate::support::all()).await, [(members[0].clone(), last)]);
}

#[tokio::test]
async fn an_error_in_the_middle_is_that_of_one_commit() {
    let server = Server::start();
    let store = open(&server.url()).await;
    // An index and a document that are no such things.
    server.command(&format!("SET {}i!broken text", flow(5)));
    server.command(&format!("LPUSH {}dlist item", flow(6)));
    let keys: Vec<Key> = (0..48).map(|_| new_key()).collect();
    let commits = keys.iter().enumerate().map(|(number, key)| {
        let mut batch = creation(key, command());
        match number {
            21 => {
                let entry = EntryChange::Set { index: index("!broken"), member: key.clone(), score: 1 };
                batch.entries.push(entry);
            }
            22 => batch.guards.push(Guard::Absent(Key::from_bytes(*b"list"))),
            _ => {}
        }
        (flow(number), batch)
    });
    let before = calls(&server);
    let outcomes = all_at_once(&store, commits.collect()).await;
    assert!(calls(&server) - before <= 6);
    for (number, outcome) in outcomes.iter().enumerate() {
        match number {
            // It had begun to write: nobody knows what became of it.
            21 => assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}"),
            // It was refused before its first write.
            22 => {
                assert!(matches!(outcome, Err(StoreError::Corrupt(_))), "{outcome:?}");
                assert!(!is_there(&store, flow(number), &keys[number]).await);
            }
            _ => {
                assert!(applied(outcome), "{number}: {outcome:?}");
                assert!(is_there(&store, flow(number), &keys[number]).await);
            }
        }
    }
    // The partition of the failed one goes on, and lists what it has.
    assert!(all_at_once(&store, vec![(flow(5), creation(&new_key(), command()))]).await.iter().all(applied));
    assert_eq!(store.indexes(flow(5), Vec::new(), 10).await.expect("it lists"), [crate::support::all()]);
}

#[tokio::test]
async fn a_full_server_takes_relief_that_came_with_growth() {
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = open(&server.url()).await;
    let old: Vec<(Key, CommandId)> = (0..20).map(|_| (new_key(), command())).collect();
    let filled = old.iter().enumerate().map(|(number, (key, version))| {
        let blob = BlobChange { key: key.clone(), bytes: Some(Bytes::from(vec![7; 100_000])) };
        (flow(number), Batch { blobs: vec![blob], ..creation(key, *version) })
    });
    assert!(all_at_once(&store, filled.collect()).await.iter().all(applied));
    server.command("CONFIG SET maxmemory 1000000");
    let new: Vec<Key> = (0..20).map(|_| new_key()).collect();
    let mut commits = Vec::new();
    for (number, (key, version)) in old.iter().enumerate() {
        commits.push((flow(number), creation(&new[number], command())));
        let ending = Batch {
            guards: vec![Guard::Version(key.clone(), *version)],
            // A little that stays, so that a few endings do not make room for all.
            deletes: vec![key.clone()],
            relief: true,
            ..Batch::new(command())
        };
        commits.push((flow(number), ending));
    }
    let outcomes = all_at_once(&store, commits).await;
    for (number, pair) in outcomes.chunks(2).enumerate() {
        assert!(matches!(pair[0], Err(StoreError::Full(_))), "{:?}", pair[0]);
        assert!(applied(&pair[1]), "{:?}", pair[1]);
        assert!(!is_there(&store, flow(number), &new[number]).await, "nothing was half done");
        assert!(!is_there(&store, flow(number), &old[number].0).await);
    }
}

#[tokio::test]
async fn what_is_too_much_for_one_call_goes_in_several() {
    let server = Server::start();
    let store = open(&server.url()).await;
    let entries = |key: &Key, count: usize| {
        let entry = |number: usize| {
            let member = Key::from_bytes([key.as_bytes(), &number.to_be_bytes()].concat());
            EntryChange::Set { index: index("many"), member, score: 1 }
        };
        (0..count).map(entry).collect::<Vec<_>>()
    };
    let keys: Vec<Key> = (0..1_500).map(|_| new_key()).collect();
    let commits = keys.iter().enumerate().map(|(number, key)| {
        let mut batch = creation(key, command());
        // One is past every limit of a shared call, some are large, the rest are many.
        let count = match number {
            700 => 5_000,
            large if large % 100 == 0 => 400,
            _ => 1,
        };
        batch.entries.extend(entries(key, count));
        if number % 300 == 1 {
            batch.blobs.push(BlobChange { key: key.clone(), bytes: Some(Bytes::from(vec![1; 200_000])) });
        }
        (flow(number), batch)
    });
    let before = calls(&server);
    let outcomes = all_at_once(&store, commits.collect()).await;
    let shared = calls(&server) - before;
    assert!(outcomes.iter().all(applied));
    assert!((1_500 / 64..300).contains(&shared), "{shared} calls");
    let mut entries = 0;
    for number in 0..16 {
        entries += store.count(flow(number), index("many"), i64::MIN, i64::MAX).await.expect("it counts");
    }
    assert_eq!(entries, 5_000 + 14 * 400 + 1_485);
}

#[tokio::test]
async fn commits_of_a_cluster_share_calls_slot_by_slot() {
    let cluster = Cluster::start_patient();
    let store = open(&cluster.url()).await;
    let keys: Vec<Key> = (0..160).map(|_| new_key()).collect();
    let commits = || keys.iter().enumerate().map(|(number, key)| (flow(number), creation(key, command()))).collect();
    let before: usize = cluster.nodes.iter().map(calls).sum();
    assert!(all_at_once(&store, commits()).await.iter().all(applied));
    let shared = cluster.nodes.iter().map(calls).sum::<usize>() - before;
    assert!((16..=60).contains(&shared), "{shared} calls for 160 commits of 16 slots");
    assert!(!all_at_once(&store, commits()).await.iter().any(applied), "all of them are there");
}

#[tokio::test]
async fn a_shared_call_is_confirmed_as_a_whole() {
    let pair = Replicated::start();
    let store = open(&format!("{}?tier=replicated&request_timeout_ms=3000", pair.primary.url())).await;
    let keys: Vec<Key> = (0..32).map(|_| new_key()).collect();
    let commits = || keys.iter().enumerate().map(|(number, key)| (flow(number), creation(key, command()))).collect();
    assert!(all_at_once(&store, commits()).await.iter().all(applied));
    // Conflicts speak of what others wrote, so they are confirmed, too.
    let conflicts = all_at_once(&store, commits()).await;
    assert!(conflicts.iter().all(|one| matches!(one.as_deref(), Ok([Outcome::Conflict(_)]))), "{conflicts:?}");
    pair.replica.freeze();
    let unconfirmed = all_at_once(&store, commits()).await;
    assert!(unconfirmed.iter().all(|one| matches!(one, Err(StoreError::Unknown(_)))), "{unconfirmed:?}");
    pair.replica.thaw();
}
