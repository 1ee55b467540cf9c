//! Commits per second: one committer pays for every commit alone, many share what can be shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ff_core::deployment::Deployment;
use ff_core::{CommandId, Key, Partition, PublicState, index};
use ff_store::{Append, Batch, EntryChange, Fence, Guard, Outcome, Put, Store};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::open::Choice;
use crate::run::Run;

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

/// The samples so far for a number of committers.
#[derive(Debug, Default)]
struct Sample {
    latencies: Latencies,
    elapsed: Duration,
    /// Commits the database counted, and the microseconds they took there.
    server: Option<(u64, u64)>,
}

/// Measures a store with each of its settings.
pub(crate) async fn store(run: &Run<'_>) -> Result<()> {
    let kind = run.store.kind();
    let syncs: Vec<Option<&str>> = match (&run.store, run.arguments.sync.as_deref()) {
        (Choice::New(kind), None) => kind.syncs().iter().copied().map(Some).collect(),
        // An address says itself what an acknowledgement means.
        (_, given) => vec![given],
    };
    for sync in syncs {
        let opened = run.open(sync).await?;
        check_empty(&*opened.store).await?;
        let turn = Duration::from_secs(run.arguments.seconds_or(6).into()) / TURNS;
        let mut samples = [Sample::default(), Sample::default()];
        for number in 1..=TURNS {
            for (committers, sample) in COMMITTERS.into_iter().zip(&mut samples) {
                let name = sync.unwrap_or_default();
                run.progress(&format!("{} {name}: {committers} committers, turn {number}/{TURNS}", kind.as_str()));
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
        for (committers, mut sample) in COMMITTERS.into_iter().zip(samples) {
            let rate = sample.latencies.count() as f64 / sample.elapsed.as_secs_f64();
            let server = sample.server.filter(|(calls, _)| *calls > 0);
            run.report(
                Figures::new()
                    .with("sync", sync)
                    .with("committers", committers)
                    .measured("commits_per_s", rate)
                    .latency(&mut sample.latencies)
                    .known("server_us", server.map(|(calls, microseconds)| microseconds as f64 / calls as f64)),
            )?;
        }
    }
    Ok(())
}

/// The documents written here are no work of any engine: a store with a deployment on it must not get them.
async fn check_empty(store: &dyn Store) -> Result<()> {
    let found = store.documents(Partition::SYSTEM, vec![Deployment::key_of()]).await?;
    if found.iter().any(Option::is_some) {
        return Err(Error::Usage("a deployment lives on this store; this scenario needs an empty one".into()));
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
        // A store in memory never waits, and would keep all other tasks from running.
        tokio::task::consume_budget().await;
        let batch = creation();
        let started = Instant::now();
        let outcomes = store.commit(partition, [batch].into()).await?;
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

/// The commit of a submission: the document, its place in a queue and under its state, and an event.
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
            entry(index::queue("default", "default", "bench", "", "")),
            entry(index::state("default", PublicState::Waiting)),
        ],
        appends: vec![Append {
            log: Key::from_bytes(*b"events"),
            records: vec![Bytes::from_static(&[b'e'; EVENT_BYTES])],
            expected: None,
            cap: 100_000,
            in_turn: false,
        }],
        ..Batch::new(CommandId(id))
    }
}
