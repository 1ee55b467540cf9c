//! Commits per second: one committer pays for every commit alone, many share what can be shared.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ff_core::{CommandId, Key, Partition, PublicState, index};
use ff_store::{Append, Batch, EntryChange, Fence, Guard, Outcome, Put, Store};
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::latency::Latencies;
use crate::open::{Kind, open};

/// How many commit at a time.
const COMMITTERS: [usize; 2] = [1, 64];
/// The numbers of committers take turns this often, so that a disturbance of the machine hits both.
const TURNS: u32 = 3;
/// Left out of the figures at the start of every turn.
const WARM_UP: Duration = Duration::from_millis(300);
/// About the size of an execution without input.
const DOCUMENT_BYTES: usize = 300;
/// About the size of an event.
const EVENT_BYTES: usize = 60;

/// Arguments of the scenario.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The store to measure
    #[arg(long, value_enum)]
    store: Kind,
    /// Its address; without one SQLite makes a temporary file, and Postgres a cluster where temporary files go
    #[arg(long)]
    url: Option<String>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// Seconds for each figure
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    store: &'static str,
    sync: &'static str,
    committers: usize,
    commits_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Microseconds of each commit inside of the database, where it tells.
    server_us: Option<f64>,
}

/// What was measured so far for a number of committers.
#[derive(Debug, Default)]
struct Sample {
    latencies: Latencies,
    elapsed: Duration,
    /// Commits the database counted, and the microseconds they took there.
    server: Option<(u64, u64)>,
}

/// Measures a store with each of its settings and prints the figures.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    if !arguments.json {
        println!(
            "{:<10} {:<10} {:>10} {:>12} {:>9} {:>9} {:>10}",
            "store", "sync", "committers", "commits/s", "p50 ms", "p99 ms", "server us"
        );
    }
    for &sync in arguments.store.syncs() {
        let opened = open(arguments.store, sync, arguments.url.as_deref()).await?;
        let turn = Duration::from_secs(arguments.seconds.into()) / TURNS;
        let mut samples = [Sample::default(), Sample::default()];
        for number in 1..=TURNS {
            for (committers, sample) in COMMITTERS.into_iter().zip(&mut samples) {
                progress(&format!(
                    "{} {sync}: {committers} committers, turn {number}/{TURNS}",
                    arguments.store.as_str()
                ));
                let before = opened.server_cost().await?;
                measure(&opened.store, committers, turn, sample).await?;
                if let Some(after) = opened.server_cost().await? {
                    let before = before.unwrap_or_default();
                    let (calls, microseconds) = sample.server.unwrap_or_default();
                    let calls = calls + after.calls - before.calls;
                    sample.server = Some((calls, microseconds + after.microseconds - before.microseconds));
                }
            }
        }
        opened.store.close().await;
        progress("");
        for (committers, mut sample) in COMMITTERS.into_iter().zip(samples) {
            let per_second =
                |count: usize| u32::try_from(count).map_or(f64::INFINITY, f64::from) / sample.elapsed.as_secs_f64();
            let row = Row {
                store: arguments.store.as_str(),
                sync,
                committers,
                commits_per_s: rounded(per_second(sample.latencies.count())),
                p50_ms: rounded(sample.latencies.percentile_ms(50)),
                p99_ms: rounded(sample.latencies.percentile_ms(99)),
                server_us: sample.server.and_then(|(calls, microseconds)| mean(microseconds, calls)).map(rounded),
            };
            print(&row, arguments.json)?;
        }
    }
    Ok(())
}

/// Lets so many commit for a while.
async fn measure(store: &Arc<dyn Store>, committers: usize, turn: Duration, sample: &mut Sample) -> Result<()> {
    let (counting, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> =
        (0..committers).map(|_| tokio::spawn(commit_until(store.clone(), counting.clone(), stop.clone()))).collect();
    tokio::time::sleep(WARM_UP).await;
    counting.store(true, Ordering::Relaxed);
    let started = Instant::now();
    tokio::time::sleep(turn).await;
    counting.store(false, Ordering::Relaxed);
    sample.elapsed += started.elapsed();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        sample.latencies.add(task.await??);
    }
    Ok(())
}

async fn commit_until(store: Arc<dyn Store>, counting: Arc<AtomicBool>, stop: Arc<AtomicBool>) -> Result<Latencies> {
    let partition = Partition::flow(0);
    let mut latencies = Latencies::default();
    while !stop.load(Ordering::Relaxed) {
        let batch = creation();
        let started = Instant::now();
        let outcomes = store.commit(partition, vec![batch]).await?;
        let took = started.elapsed();
        if !matches!(outcomes.as_slice(), [Outcome::Applied(_)]) {
            return Err(format!("a commit met {outcomes:?}").into());
        }
        if counting.load(Ordering::Relaxed) {
            latencies.record(took);
        }
    }
    Ok(latencies)
}

/// What submitting an execution commits: the document, its place in a queue and under its state, and an event.
fn creation() -> Batch {
    let id = Uuid::now_v7();
    let key = Key::new(index::kind::EXECUTION, &[id.as_bytes()]);
    let (seconds, nanos) = id.get_timestamp().map_or((0, 0), |timestamp| timestamp.to_unix());
    let created_at = i64::try_from(seconds * 1000 + u64::from(nanos / 1_000_000)).unwrap_or(0);
    let entry = |index| EntryChange::Set { index, member: key.clone(), score: created_at };
    Batch {
        guards: vec![Guard::Absent(key.clone())],
        puts: vec![Put {
            key: key.clone(),
            body: Bytes::from_static(&[b'd'; DOCUMENT_BYTES]),
            fence: Fence::default(),
            expires_at: None,
        }],
        entries: vec![
            entry(index::queue("default", "default", "", "")),
            entry(index::state("default", PublicState::Waiting)),
        ],
        appends: vec![Append {
            log: Key::from_bytes(*b"events"),
            records: vec![Bytes::from_static(&[b'e'; EVENT_BYTES])],
            expected: None,
            cap: 100_000,
        }],
        ..Batch::new(CommandId(id))
    }
}

fn mean(sum: u64, count: u64) -> Option<f64> {
    let (sum, count) = (u32::try_from(sum).ok()?, u32::try_from(count).ok()?);
    (count > 0).then(|| f64::from(sum) / f64::from(count))
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row)?);
    } else {
        let Row { store, sync, committers, commits_per_s, p50_ms, p99_ms, server_us } = row;
        let server_us = server_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        println!(
            "{store:<10} {sync:<10} {committers:>10} {commits_per_s:>12.0} {p50_ms:>9.2} {p99_ms:>9.2} {server_us:>10}"
        );
    }
    Ok(())
}

/// One line that is written over; an empty text clears it.
fn progress(text: &str) {
    let mut errors = std::io::stderr();
    // Nobody misses a line of progress that could not be written.
    let _ = write!(errors, "\r\x1b[K{text}").and_then(|()| errors.flush());
}
