//! The cost of idle workers for the store, on one server or several.

use std::time::Duration;

use ff_core::op::Claim;

use super::throughput::WORKERS;
use crate::error::Result;
use crate::figures::Figures;
use crate::load::Meter;
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
    let meter = Meter::new(&servers).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = meter.read().await?;
    run.pass("idle", seconds).await;
    let after = meter.read().await?;
    let figures = Figures::new()
        .with("servers", servers.len())
        .with("workers", workers)
        .with("seconds", seconds)
        .with("partitions", servers[0].engine.partitions().all().count());
    run.report(after.rates(before, seconds, figures))?;
    waiting.abort_all();
    for server in servers {
        server.close().await?;
    }
    Ok(())
}
