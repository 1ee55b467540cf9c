//! From a signal to the task back in hand.

use std::time::{Duration, Instant};

use ff_core::op::suspend::Outcome;
use ff_core::op::{self, Claim, CreateExecution, DeliverSignal, Suspend};
use ff_core::suspension::SuspendReason;
use flowfabric::Client;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Result;
use crate::engine::{Arguments, claim_args, complete, submission};
use crate::latency::Latencies;

/// How many suspend and resume at a time.
const AT_ONCE: [usize; 2] = [1, 64];
/// How often each of them does.
const ROUNDS: usize = 50;

/// Suspends and resumes, alone and with many others.
pub(crate) async fn suspend_resume(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let client = subject.client.clone();
    for at_once in AT_ONCE {
        eprintln!("{at_once} at a time");
        let mut running = JoinSet::new();
        for number in 0..at_once {
            let client = client.clone();
            running.spawn(async move { rounds(&client, number).await });
        }
        let mut latencies = Latencies::default();
        while let Some(measured) = running.join_next().await {
            latencies.add(measured??);
        }
        arguments.print(
            "suspend-resume",
            json!({ "at_once": at_once, "p50_ms": latencies.percentile_ms(50), "p95_ms": latencies.percentile_ms(95),
            "p99_ms": latencies.percentile_ms(99) }),
        );
    }
    subject.close().await
}

/// One worker in a lane of its own, so that nobody else takes what it waits for.
async fn rounds(client: &Client, number: usize) -> Result<Latencies> {
    let lane = format!("bench-{number}");
    let take = || op::claim::Args { lanes: [lane.clone()].into(), ..claim_args(number, 10_000) };
    let mut latencies = Latencies::default();
    for _ in 0..ROUNDS {
        let task = op::create_execution::Args { lane: Some(lane.clone()), ..submission() };
        client.call::<CreateExecution>(task).await?;
        let claimed = client.call::<Claim>(take()).await?.tasks;
        let task = claimed.first().ok_or("nothing to claim")?;
        let suspension = op::suspend::Args {
            execution_id: task.execution_id,
            fence: task.fence,
            condition: Default::default(),
            reason: SuspendReason::default(),
            timeout_ms: None,
            timeout_behavior: None,
            continuation: None,
            continuation_base64: None,
            continuation_content_type: None,
            requested_by: None,
            allow_operator_resume: None,
            waitpoint_ids: Vec::new(),
            waitpoint_key: None,
            detail: None,
            idempotency_key: None,
        };
        let Outcome::Suspended { waitpoint_id, token, .. } = client.call::<Suspend>(suspension).await? else {
            return Err("the suspension was over before it began".into());
        };
        let waiting = {
            let (client, take) = (client.clone(), take());
            tokio::spawn(async move {
                let claimed = client.call::<Claim>(take).await;
                (claimed, Instant::now())
            })
        };
        // The worker has to be waiting before the clock starts; a claim reaches its wait within a few polls.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let signal = op::deliver_signal::Args {
            execution_id: task.execution_id,
            waitpoint_id: Some(waitpoint_id),
            token: Some(token),
            name: "go".into(),
            category: None,
            source_type: None,
            source_identity: None,
            payload: None,
            payload_base64: None,
            content_type: None,
            idempotency_key: None,
            signal_id: None,
            correlation_id: None,
            created_at: None,
            resume_delay_ms: None,
        };
        let began = Instant::now();
        client.call::<DeliverSignal>(signal).await?;
        let (claimed, at) = waiting.await?;
        latencies.record(at.duration_since(began));
        for task in claimed?.tasks {
            complete(client, &task).await?;
        }
    }
    Ok(latencies)
}
