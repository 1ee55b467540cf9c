//! What idle workers cost the store, on one server or several.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ff_core::op::Claim;

use super::throughput::WORKERS;
use crate::error::Result;
use crate::figures::Figures;
use crate::machine::processor_time;
use crate::open::Kind;
use crate::postgres::Database;
use crate::run::Run;
use crate::work::claim_args;

/// Idle workers, no work: what the store is asked all the same.
pub(crate) async fn idle(run: &Run<'_>) -> Result<()> {
    let (workers, seconds) = (run.arguments.workers_or(WORKERS), run.arguments.seconds_or(60));
    let mut servers = vec![run.start().await?];
    for _ in 1..run.arguments.servers {
        servers.push(run.join(&servers[0].opened).await?);
    }
    let mut waiting = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let client = servers[worker % servers.len()].client.clone();
        waiting.spawn(async move {
            loop {
                if client.call::<Claim>(claim_args(worker, 30_000)).await.is_err() {
                    return;
                }
            }
        });
    }
    let counted = match &servers[0].opened.url {
        Some(url) if servers[0].opened.kind == Kind::Postgres => Some(Database::connect(url).await?),
        _ => None,
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let count = || {
        servers.iter().map(|server| server.engine.metrics()).fold((0, 0), |(reads, commits), metrics| {
            let more: u64 = metrics.commits.snapshot().0.iter().sum();
            (reads + metrics.reads.load(Ordering::Relaxed), commits + more)
        })
    };
    let (before, commands_before, processor_before) = (count(), servers[0].opened.commands().await?, processor_time());
    let transactions_before = transactions(counted.as_ref()).await?;
    for second in 0..seconds {
        run.progress(&format!("idle for {second} of {seconds} s"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = count();
    let transactions_after = transactions(counted.as_ref()).await?;
    let rate = |count: u64| count as f64 / f64::from(seconds);
    let difference = |after: Option<u64>, before: Option<u64>| Some(rate(after? - before?));
    let spent = processor_before.zip(processor_time()).map(|(before, after)| after.saturating_sub(before));
    run.report(
        Figures::new()
            .with("servers", servers.len())
            .with("workers", workers)
            .with("seconds", seconds)
            .with("partitions", servers[0].engine.partitions().all().count())
            .measured("reads_per_s", rate(after.0 - before.0))
            .measured("commits", (after.1 - before.1) as f64)
            .known("database_transactions_per_s", difference(transactions_after, transactions_before))
            .known("commands_per_s", difference(servers[0].opened.commands().await?, commands_before))
            .known("own_us_per_s", spent.map(|spent| spent.as_secs_f64() * 1e6 / f64::from(seconds))),
    )?;
    waiting.abort_all();
    for server in servers {
        server.close().await?;
    }
    Ok(())
}

async fn transactions(database: Option<&Database>) -> Result<Option<u64>> {
    match database {
        Some(database) => Ok(Some(database.transactions().await?)),
        None => Ok(None),
    }
}
