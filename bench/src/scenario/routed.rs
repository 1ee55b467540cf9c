//! Work that only some workers can do, behind a task that none can.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use ff_core::encoding::JsonText;
use ff_core::op;
use flowfabric::{CapabilitySet, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{all, claim_args, claim_one, complete, per_second, submission, submit_each, take_one};

/// Sets of capabilities; every worker has one, every task asks for one.
const SETS: usize = 10;
/// Workers, unless said otherwise.
const WORKERS: usize = 100;

/// Rate and waits with routes, behind a lane head that no worker can run.
pub(crate) async fn routed(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    // Every set has a worker, or its tasks would wait forever.
    let (tasks, workers) = (run.arguments.tasks, run.arguments.workers_or(WORKERS).max(SETS));
    let sets = (0..SETS).map(|set| CapabilitySet::new([format!("set-{set}")])).collect::<Result<Vec<_>, _>>()?;
    let nobody = CapabilitySet::new(["nobody-has-this"])?;
    let head = client.submit("bench").require(nobody).priority(10).send().await?;
    run.progress(&format!("{tasks} tasks for {workers} workers with {SETS} sets of capabilities"));
    let before = subject.spent().await?;
    let began = Instant::now();
    let (taken, mut waits) = mpsc::unbounded_channel();
    let requests = sets.clone();
    let submission = move |number: usize| op::create_execution::Args {
        required_capabilities: requests[number % SETS].clone(),
        // When it was sent, as the time since the beginning.
        input: Some(JsonText(began.elapsed().as_nanos().to_string())),
        ..submission()
    };
    tokio::try_join!(
        submit_each(client, tasks, run.arguments.submitters, submission),
        work(client, &sets, tasks, workers, began, taken)
    )?;
    let took = began.elapsed();
    let after = subject.spent().await?;
    let mut latencies = Latencies::default();
    while let Some(wait) = waits.recv().await {
        latencies.record(wait);
    }
    let figures = Figures::new()
        .with("tasks", tasks)
        .with("workers", workers)
        .with("capability_sets", SETS)
        .measured("end_to_end_per_s", per_second(tasks, took))
        .latency(&mut latencies);
    run.report(after.each(before, tasks, figures))?;
    head.cancel("the benchmark is over").await?;
    subject.close().await
}

/// Workers of all sets, until each set's share is done.
async fn work(
    client: &Client,
    sets: &[CapabilitySet],
    tasks: usize,
    workers: usize,
    began: Instant,
    taken: mpsc::UnboundedSender<Duration>,
) -> Result<()> {
    let shares: Vec<_> =
        (0..SETS).map(|set| Arc::new(AtomicUsize::new(tasks / SETS + usize::from(set < tasks % SETS)))).collect();
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let (client, taken) = (client.clone(), taken.clone());
        let (left, capabilities) = (shares[worker % SETS].clone(), sets[worker % SETS].clone());
        working.spawn(async move {
            while take_one(&left) {
                let args = op::claim::Args { capabilities: capabilities.clone(), ..claim_args(worker, 5_000) };
                let task = claim_one(&client, args).await?;
                let sent = task.input.as_ref().and_then(|input| serde_json::from_slice::<u64>(&input.bytes).ok());
                let sent = began + Duration::from_nanos(sent.ok_or("a task without its moment")?);
                // The receiver outlives the workers.
                let _ = taken.send(sent.elapsed());
                complete(&client, &task).await?;
            }
            Ok(())
        });
    }
    all(working).await
}
