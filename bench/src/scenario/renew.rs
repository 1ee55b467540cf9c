//! The cost of keeping leases: workers hold them and renew them as they always do, in batches with their heartbeats.

use std::time::Duration;

use flowfabric::{ClaimedTask, FlowFabricWorker, WorkerConfig, limits};
use tokio::task::JoinSet;

use super::throughput::WORKERS;
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::machine::processor_time;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{all, submit_in_batches};

/// The queue is filled in calls of so many, a few at once.
const BATCH: usize = 500;
const CALLERS: usize = 4;

/// Holds many leases for a while.
pub(crate) async fn renew(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (leases, seconds) = (run.arguments.tasks, run.arguments.seconds_or(60));
    let workers = run.arguments.workers_or(WORKERS).min(leases);
    run.progress(&format!("claiming {leases} with {workers} workers"));
    submit_in_batches(&subject.client, leases, BATCH, CALLERS).await?;
    let (workers, tasks) = hold(&subject, leases, workers).await?;
    let before = subject.spent().await?;
    let (calls, commands, processor) =
        (subject.client.calls_made(), subject.opened.commands().await?, processor_time());
    for second in 0..seconds {
        run.progress(&format!("{leases} leases held for {second} of {seconds} s"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = subject.spent().await?;
    let rate = |count: u64| count as f64 / f64::from(seconds);
    let commands = commands.zip(subject.opened.commands().await?).map(|(before, after)| after - before);
    let processor = processor.zip(processor_time()).map(|(before, after)| after.saturating_sub(before));
    let (reads, commits) = after.since(before);
    let lost = tasks.iter().filter(|task| !task.is_lease_healthy()).count();
    run.report(
        Figures::new()
            .with("leases", leases)
            .with("workers", workers.len())
            .with("lease_ttl_ms", limits::LEASE_TTL_DEFAULT_MS)
            .with("seconds", seconds)
            .measured("calls_per_s", rate(subject.client.calls_made() - calls))
            .measured("reads_per_s", rate(reads))
            .measured("commits_per_s", rate(commits))
            .known("commands_per_s", commands.map(rate))
            .known("own_us_per_s", processor.map(|spent| spent.as_secs_f64() * 1e6 / f64::from(seconds)))
            .measured("leases_lost", lost as f64),
    )?;
    run.progress("completing them");
    finish(tasks, workers.len()).await?;
    for worker in workers {
        worker.stop(Duration::from_secs(1)).await?;
    }
    subject.close().await
}

/// Claims all, shared out among workers.
async fn hold(subject: &Subject, leases: usize, workers: usize) -> Result<(Vec<FlowFabricWorker>, Vec<ClaimedTask>)> {
    let mut claiming = JoinSet::new();
    for number in 0..workers {
        let (client, share) = (subject.client.clone(), leases / workers + usize::from(number < leases % workers));
        claiming.spawn(async move {
            let config = WorkerConfig::new("bench").max_concurrent_tasks(share);
            let worker = FlowFabricWorker::connect(&client, config).await?;
            let mut tasks = Vec::with_capacity(share);
            while tasks.len() < share {
                tasks.extend(worker.claim_all_it_can().await?);
            }
            Ok::<_, Error>((worker, tasks))
        });
    }
    let (mut holders, mut all) = (Vec::new(), Vec::new());
    while let Some(claimed) = claiming.join_next().await {
        let (worker, tasks) = claimed??;
        holders.push(worker);
        all.extend(tasks);
    }
    Ok((holders, all))
}

/// Completes all, so many at once.
async fn finish(tasks: Vec<ClaimedTask>, at_once: usize) -> Result<()> {
    let mut piles: Vec<Vec<ClaimedTask>> = std::iter::repeat_with(Vec::new).take(at_once).collect();
    for (number, task) in tasks.into_iter().enumerate() {
        piles[number % at_once].push(task);
    }
    let mut completing = JoinSet::new();
    for pile in piles {
        completing.spawn(async move {
            for task in pile {
                task.complete(&()).await?;
            }
            Ok(())
        });
    }
    all(completing).await
}
