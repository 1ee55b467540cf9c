//! What idle workers cost the store, on one server or several.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ff_core::op::Claim;
use serde_json::json;

use crate::Result;
use crate::engine::{Arguments, claim_args, processor_time};
use crate::open::Kind;
use crate::postgres::Database;

/// Idle workers, no work: what the store is asked all the same.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let mut servers = vec![arguments.start().await?];
    for _ in 1..arguments.servers {
        servers.push(arguments.join(&servers[0].opened).await?);
    }
    let mut waiting = tokio::task::JoinSet::new();
    for worker in 0..arguments.workers {
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
        Some(url) if arguments.store == Kind::Postgres => Some(Database::connect(url).await?),
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
    for second in 0..arguments.seconds {
        eprint!("\ridle for {second} of {} s ", arguments.seconds);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    eprintln!();
    let after = count();
    let transactions_after = transactions(counted.as_ref()).await?;
    let rate = |count: u64| (count as f64 / arguments.seconds as f64 * 100.0).round() / 100.0;
    let mut figures = json!({ "servers": servers.len(), "workers": arguments.workers, "seconds": arguments.seconds,
        "partitions": servers[0].engine.partitions().all().count(), "reads_per_s": rate(after.0 - before.0), "commits": after.1 - before.1 });
    if let (Some(before), Some(after)) = (transactions_before, transactions_after) {
        figures["database_transactions_per_s"] = json!(rate(after - before));
    }
    if let (Some(before), Some(after)) = (commands_before, servers[0].opened.commands().await?) {
        figures["commands_per_s"] = json!(rate(after - before));
    }
    if let (Some(before), Some(after)) = (processor_before, processor_time()) {
        let spent = u64::try_from(after.saturating_sub(before).as_micros()).unwrap_or(u64::MAX);
        figures["own_us_per_s"] = json!(rate(spent));
    }
    arguments.print("idle", figures);
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
