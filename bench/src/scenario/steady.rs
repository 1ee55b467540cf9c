//! How long tasks wait while they come steadily. An open loop: tasks are sent when they are due, whatever became of the
//! earlier ones, and a wait counts from the moment a task was due, so that a system that falls behind cannot hide it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::encoding::JsonText;
use ff_core::op::{self, Claim, CreateExecution};
use flowfabric::Client;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::throughput::{WORKERS, end_to_end};
use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{claim_args, complete, submission};

/// In hundredths of the rate that was just measured.
const LEVELS: [u64; 3] = [20, 50, 80];
/// How long the last tasks may take after they were due.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// When tasks are due.
#[derive(Debug, Clone, Copy)]
struct Plan {
    began: Instant,
    per_second: u64,
    tasks: u64,
}

impl Plan {
    fn due(&self, number: u64) -> Instant {
        let nanoseconds = u128::from(number) * 1_000_000_000 / u128::from(self.per_second.max(1));
        self.began + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// Waits at several levels of load.
pub(crate) async fn steady(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (workers, seconds) = (run.arguments.workers_or(WORKERS), run.arguments.seconds_or(60));
    run.progress("measuring the rate to go by");
    let took = end_to_end(run, &subject).await?;
    let tasks = u64::try_from(run.arguments.tasks)?;
    let full = tasks * 1_000_000 / u64::try_from(took.as_micros())?.max(1);
    for level in LEVELS {
        let per_second = (full * level / 100).max(1);
        run.progress(&format!("{level} %: {per_second} a second for {seconds} s"));
        let plan = Plan { began: Instant::now(), per_second, tasks: per_second * u64::from(seconds) };
        let mut waits = send_and_take(&subject.client, plan, workers).await?;
        let took = plan.began.elapsed();
        run.report(
            Figures::new()
                .with("level_percent", level)
                .with("workers", workers)
                .with("seconds", seconds)
                .measured("full_per_s", full as f64)
                .measured("sent_per_s", per_second as f64)
                .measured("done_per_s", (plan.tasks as f64 / took.as_secs_f64()).round())
                .measured("p50_ms", waits.percentile_ms(50))
                .measured("p99_ms", waits.percentile_ms(99))
                .measured("p999_ms", waits.permille_ms(999)),
        )?;
    }
    subject.close().await
}

/// Sends as planned, and gives how long each waited from its moment until it was in hand.
async fn send_and_take(client: &Client, plan: Plan, workers: usize) -> Result<Latencies> {
    let (taken, mut waits) = mpsc::unbounded_channel();
    // Workers that are left when this ends are ended with it.
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let (client, taken) = (client.clone(), taken.clone());
        working.spawn(async move { take(&client, worker, plan, taken).await });
    }
    drop(taken);
    let mut sending = {
        let client = client.clone();
        tokio::spawn(async move { send(&client, plan).await })
    };
    let mut latencies = Latencies::default();
    let all_taken = async {
        while u64::try_from(latencies.count())? < plan.tasks {
            latencies.record(waits.recv().await.ok_or("the workers ended early")?);
        }
        Ok::<(), crate::error::Error>(())
    };
    let late = tokio::time::sleep_until((plan.due(plan.tasks) + WAIT_MAX).into());
    let sent_and_taken = async { tokio::try_join!(async { (&mut sending).await? }, all_taken) };
    tokio::select! {
        ended = sent_and_taken => { ended?; }
        Some(ended) = working.join_next() => ended??,
        () = late => return Err("the tasks were not done a minute after they were due".into()),
    }
    Ok(latencies)
}

/// Submits every task when it is due, without waiting for the answers to earlier ones.
async fn send(client: &Client, plan: Plan) -> Result<()> {
    let (due, mut numbers) = mpsc::unbounded_channel();
    // The timers of the runtime are exact to a millisecond, which would be most of a wait: a thread keeps the time.
    let timing = tokio::task::spawn_blocking(move || {
        for number in 0..plan.tasks {
            if let Some(early) = plan.due(number).checked_duration_since(Instant::now()) {
                std::thread::sleep(early);
            }
            if due.send(number).is_err() {
                return;
            }
        }
    });
    let client = Arc::new(client.clone());
    let mut answers: JoinSet<Result<()>> = JoinSet::new();
    while let Some(number) = numbers.recv().await {
        let client = client.clone();
        answers.spawn(async move {
            let task = op::create_execution::Args { input: Some(JsonText(number.to_string())), ..submission() };
            client.call::<CreateExecution>(task).await?;
            Ok(())
        });
        while let Some(answer) = answers.try_join_next() {
            answer??;
        }
    }
    crate::work::all(answers).await?;
    Ok(timing.await?)
}

/// Takes tasks and tells how long each had waited.
async fn take(client: &Client, worker: usize, plan: Plan, taken: mpsc::UnboundedSender<Duration>) -> Result<()> {
    loop {
        for task in client.call::<Claim>(claim_args(worker, 10_000)).await?.tasks {
            let at = Instant::now();
            let number = task.input.as_ref().and_then(|input| serde_json::from_slice::<u64>(&input.bytes).ok());
            let due = plan.due(number.ok_or("a task without its number")?);
            if taken.send(at.saturating_duration_since(due)).is_err() {
                return Ok(());
            }
            complete(client, &task).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_due_evenly_and_the_last_within_the_time() {
        let plan = Plan { began: Instant::now(), per_second: 3, tasks: 30 };
        assert_eq!(plan.due(0), plan.began);
        assert_eq!(plan.due(3), plan.began + Duration::from_secs(1));
        assert_eq!(plan.due(30), plan.began + Duration::from_secs(10));
    }
}
