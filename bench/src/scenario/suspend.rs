//! From a signal to the task back in hand.

use std::time::{Duration, Instant};

use flowfabric::{ClaimedTask, Client, FlowFabricWorker, SuspendOutcome, SuspendReason, SuspendRequest, WorkerConfig};
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;

/// How many suspend and resume at a time.
const AT_ONCE: [usize; 2] = [1, 64];
/// How often each of them does.
const ROUNDS: usize = 50;
/// The signal that is waited for.
const SIGNAL: &str = "go";

/// Suspends and resumes, alone and with many others.
pub(crate) async fn suspend_resume(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    for at_once in AT_ONCE {
        run.progress(&format!("{at_once} at a time"));
        let mut running = JoinSet::new();
        for number in 0..at_once {
            let client = subject.client.clone();
            running.spawn(async move { rounds(&client, number).await });
        }
        let mut latencies = Latencies::default();
        while let Some(measured) = running.join_next().await {
            latencies.add(measured??);
        }
        run.report(Figures::new().with("at_once", at_once).latency(&mut latencies))?;
    }
    subject.close().await
}

/// One worker in a lane of its own, so that no other takes what it waits for.
async fn rounds(client: &Client, number: usize) -> Result<Latencies> {
    let lane = format!("bench-{number}");
    let worker = FlowFabricWorker::connect(client, WorkerConfig::new("bench").lanes([&lane])).await?;
    let mut latencies = Latencies::default();
    for _ in 0..ROUNDS {
        let execution = client.submit("bench").lane(&lane).send().await?;
        let task = worker.claim_next().await?.ok_or("nothing to claim")?;
        let wish = SuspendRequest::for_signal(SIGNAL, SuspendReason::default());
        let SuspendOutcome::Suspended { waitpoint_id, token, .. } = task.suspend(wish).await? else {
            return Err("the suspension was over before it began".into());
        };
        let waiting = {
            let worker = worker.clone();
            tokio::spawn(async move {
                let claimed: flowfabric::Result<Option<ClaimedTask>> = worker.claim_next().await;
                (claimed, Instant::now())
            })
        };
        // The worker has to be waiting before the clock starts; a claim reaches its wait within a few polls.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let began = Instant::now();
        execution.signal(SIGNAL).waitpoint(waitpoint_id, token).send().await?;
        let (claimed, at) = waiting.await?;
        latencies.record(at.duration_since(began));
        claimed?.ok_or("it did not resume")?.complete(&()).await?;
    }
    worker.stop(Duration::from_secs(1)).await?;
    Ok(latencies)
}
