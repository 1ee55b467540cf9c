//! A process is killed in mid load, again and again, on the same file. Whatever it acknowledged must be there
//! afterwards, whole; what it did not acknowledge may be there, but then whole as well.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::{
    Append, Batch, EntryChange, Fence, Guard, LogPage, LogStart, Outcome, Put, Query, Scan, ScanPage, Store,
};
use ff_store_sqlite::{Options, SqliteStore, Sync, open};
use uuid::Uuid;

const HERE: Partition = Partition::flow(0);
const VICTIM_ADDRESS: &str = "FF_KILL_VICTIM_ADDRESS";
const VICTIM_FIRST: &str = "FF_KILL_VICTIM_FIRST";
const KILLS: u64 = 20;
const COMMITTERS: usize = 16;

fn document(n: u64, part: u8) -> Key {
    Key::new(b'x', &[&n.to_be_bytes(), &[part]])
}

fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

fn log() -> Key {
    Key::from_bytes(*b"log")
}

/// Two documents, two entries and a record that all carry the same number.
fn batch(n: u64) -> Batch {
    let mut batch = Batch::new(CommandId(Uuid::from_u128(u128::from(n))));
    let score = i64::try_from(n).unwrap();
    for part in [0, 1] {
        let key = document(n, part);
        let body = Bytes::from(n.to_be_bytes().repeat(20));
        batch.guards.push(Guard::Absent(key.clone()));
        batch.puts.push(Put { key: key.clone(), body, fence: Fence::default(), expires_at: None });
        let index = index(["first", "second"][usize::from(part)]);
        batch.entries.push(EntryChange::Set { index, member: key, score });
    }
    let records = vec![Bytes::copy_from_slice(&n.to_be_bytes())];
    batch.appends.push(Append { log: log(), records, expected: None, cap: 0, in_turn: false });
    batch
}

/// Commits until it is killed.
fn be_the_victim(address: &str) {
    let first: u64 = std::env::var(VICTIM_FIRST).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = open(&address.parse().unwrap()).unwrap();
        let next = Arc::new(AtomicU64::new(first));
        let committers: Vec<_> =
            (0..COMMITTERS).map(|_| tokio::spawn(commit_without_end(store.clone(), next.clone()))).collect();
        for committer in committers {
            committer.await.unwrap();
        }
    });
}

/// Says on the output what was acknowledged, and when.
async fn commit_without_end(store: Arc<SqliteStore>, next: Arc<AtomicU64>) {
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let outcomes = store.commit(HERE, [batch(n)].into()).await.unwrap();
        let Outcome::Applied(applied) = &outcomes[0] else {
            panic!("{n} met {outcomes:?}");
        };
        let mut output = std::io::stdout().lock();
        writeln!(output, "acknowledged {n} {}", applied.at).unwrap();
        output.flush().unwrap();
    }
}

/// Starts a victim, kills it after so many acknowledgements, and returns all of them with their instants.
fn kill_a_victim(test: &str, address: &str, first: u64, after: u64) -> Vec<(u64, i64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM_ADDRESS, address)
        .env(VICTIM_FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = Vec::new();
    let mut line = String::new();
    // A line without its end was cut off by the kill: that acknowledgement was never read.
    while output.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        if let Some((_, words)) = line.split_once("acknowledged ") {
            let (n, at) = words.trim().split_once(' ').unwrap();
            acknowledged.push((n.parse().unwrap(), at.parse().unwrap()));
            if acknowledged.len() as u64 == after {
                child.kill().unwrap();
            }
        }
        line.clear();
    }
    let status = child.wait().unwrap();
    assert!(!status.success(), "the victim ended by itself");
    assert!(acknowledged.len() as u64 >= after, "the victim died after {} commits", acknowledged.len());
    acknowledged
}

#[derive(Debug)]
struct Found {
    at: i64,
    numbers: BTreeSet<u64>,
}

/// Everything in the file; panics when documents, indexes and log disagree.
async fn inspect(path: &Path) -> Found {
    let store = open(&Options::new(path)).unwrap();
    let reading: &dyn Store = &*store;
    let LogPage { records, next, .. } = reading.log(HERE, log(), LogStart::After(0), usize::MAX).await.unwrap();
    let numbers: BTreeSet<u64> =
        records.iter().map(|record| u64::from_be_bytes(record.record[..].try_into().unwrap())).collect();
    assert_eq!(numbers.len(), records.len(), "a record stands twice");
    assert_eq!(next, records.len() as u64 + 1, "the log has holes");
    assert!(records.is_sorted_by_key(|record| record.at), "time went back in the log");
    for (part, name) in [(0, "first"), (1, "second")] {
        let scan = Scan { limit: usize::MAX, documents: true, ..Scan::first(index(name), 1) };
        let ScanPage { entries } = reading.scan(HERE, scan).await.unwrap();
        let expected: Vec<Key> = numbers.iter().map(|&n| document(n, part)).collect();
        let members: Vec<Key> = entries.iter().map(|entry| entry.member.clone()).collect();
        assert_eq!(members, expected, "index {name} and the log disagree");
        for (entry, n) in entries.iter().zip(&numbers) {
            let document = entry.document.as_ref().expect("an entry without its document");
            assert_eq!(&document.body[..8], n.to_be_bytes());
        }
    }
    let at = store.read(HERE, vec![Query::Documents(vec![])]).await.unwrap().at;
    store.close().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    let documents: i64 = connection.query_row("SELECT count(*) FROM documents", [], |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(documents).unwrap(), 2 * numbers.len(), "a document without its entry");
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    Found { at, numbers }
}

/// This process starts itself again, as the victim, with the name of the test that wants one.
fn kill_again_and_again(test: &str, sync: Sync) {
    if let Ok(address) = std::env::var(VICTIM_ADDRESS) {
        return be_the_victim(&address);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let address = format!("sqlite://{}?sync={}", path.to_str().unwrap(), sync.as_str());
    let (mut first, mut latest) = (1, 0);
    let mut acknowledged = BTreeSet::new();
    for round in 0..KILLS {
        // A different moment each time, in numbers of commits rather than in time.
        let after = 1 + round * 73 % 400;
        for (n, at) in kill_a_victim(test, &address, first, after) {
            assert!(at >= latest, "round {round}: time went back from {latest} to {at}");
            acknowledged.insert(n);
        }
        let found = runtime.block_on(inspect(&path));
        let lost: Vec<_> = acknowledged.difference(&found.numbers).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} were acknowledged and are gone");
        first = found.numbers.last().map_or(1, |n| n + 1);
        latest = found.at;
    }
    assert!(acknowledged.len() as u64 > KILLS);
}

#[test]
fn every_commit_acknowledged_after_its_sync_survives_a_kill() {
    kill_again_and_again("every_commit_acknowledged_after_its_sync_survives_a_kill", Sync::Full);
}

#[test]
fn every_commit_acknowledged_before_its_sync_survives_a_kill() {
    kill_again_and_again("every_commit_acknowledged_before_its_sync_survives_a_kill", Sync::Normal);
}
