//! How soon an idle worker has a task in hand.

use std::time::{Duration, Instant};

use ff_core::op::Claim;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{claim_args, complete};

/// Submits, one after another.
const SUBMITS: usize = 200;

/// One idle worker, submits one after another: how long until the task is in hand.
pub(crate) async fn wake(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = subject.client.clone();
    let mut latencies = Latencies::default();
    for _ in 0..SUBMITS {
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move {
                let claimed = client.call::<Claim>(claim_args(0, 10_000)).await;
                (claimed, Instant::now())
            })
        };
        // The worker has to be waiting before the clock starts; a claim reaches its wait within a few polls.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let began = Instant::now();
        client.submit("bench").send().await?;
        let (claimed, at) = waiting.await?;
        latencies.record(at.duration_since(began));
        for task in claimed?.tasks {
            complete(&client, &task).await?;
        }
    }
    run.report(Figures::new().with("submits", SUBMITS).latency(&mut latencies))?;
    subject.close().await
}
