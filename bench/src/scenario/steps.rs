//! The cost of durable steps: functions of a few steps, alone and many at once, and the claim of a long journal.

use std::time::{Duration, Instant};

use ff_core::JsonText;
use ff_core::journal::{StepEntry, StepState};
use ff_core::limits::{JOURNAL_ENTRIES_MAX, STEPS_PER_RECORD_MAX};
use ff_core::op::{Delay, RecordSteps, delay, record_steps};
use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{claim_args, claim_one, complete, milliseconds, per_second};

/// Steps of a function.
const STEPS: [u32; 4] = [1, 3, 9, 10];
/// How many functions run at a time.
const AT_ONCE: [usize; 2] = [1, 100];
/// The kind of the functions.
const KIND: &str = "steps";

async fn function(ctx: TaskContext, steps: u32) -> Result<u32, TaskError> {
    let mut sum = 0;
    for number in 0..steps {
        sum += ctx.step("add", || async move { Ok(number) }).key(number.to_string()).await?;
    }
    Ok(sum)
}

/// From submit to result for functions of a few steps; and how long a claim takes that has ten thousand behind it.
pub(crate) async fn steps(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    let config = WorkerConfig::new("steps").max_concurrent_tasks(AT_ONCE[1]);
    let worker = WorkerRuntime::new(config).register(KIND, function).start(client).await?;
    for steps in STEPS {
        for at_once in AT_ONCE {
            run.progress(&format!("{steps} steps, {at_once} at a time"));
            // Alone takes a tenth of the tasks: each is waited for.
            let rounds =
                if at_once == 1 { run.arguments.tasks.div_ceil(100) } else { run.arguments.tasks.div_ceil(1_000) };
            let began = Instant::now();
            let mut running = JoinSet::new();
            for _ in 0..at_once {
                let client = client.clone();
                running.spawn(async move { functions(&client, steps, rounds).await });
            }
            let mut latencies = Latencies::default();
            while let Some(measured) = running.join_next().await {
                latencies.add(measured??);
            }
            let rate = per_second(latencies.count(), began.elapsed());
            let figures = Figures::new().with("steps", steps).with("at_once", at_once);
            let figures = figures.measured("p90_ms", latencies.percentile_ms(90)).latency(&mut latencies);
            run.report(figures.measured("functions_per_second", rate))?;
        }
    }
    worker.stop().await?;
    run.progress("a long journal");
    run.report(long_journal(client).await?)?;
    subject.close().await
}

/// Runs functions, one after another.
async fn functions(client: &Client, steps: u32, rounds: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..rounds {
        let began = Instant::now();
        let sum: u32 = client.submit(KIND).input(&steps).send().await?.result().await?;
        latencies.record(began.elapsed());
        if sum != (0..steps).sum::<u32>() {
            return Err(format!("{steps} steps came to {sum}").into());
        }
    }
    Ok(latencies)
}

/// Fills a journal as far as it goes, hands the task back, and measures the claim that brings it.
async fn long_journal(client: &Client) -> Result<Figures> {
    client.submit("bench").send().await?;
    let task = claim_one(client, claim_args(0, 5_000)).await?;
    let entry = |number: u64| StepEntry {
        name: "step".into(),
        key: Some(number.to_string()),
        state: StepState::Completed,
        result: Some(JsonText(number.to_string())),
        ..Default::default()
    };
    let each = STEPS_PER_RECORD_MAX as u64;
    let began = Instant::now();
    let mut first_number = 1;
    while first_number <= JOURNAL_ENTRIES_MAX {
        let last = (first_number + each - 1).min(JOURNAL_ENTRIES_MAX);
        let entries = (first_number..=last).map(entry).collect();
        let args = record_steps::Args { execution_id: task.execution_id, fence: task.fence, first_number, entries };
        client.call::<RecordSteps>(args).await?;
        first_number = last + 1;
    }
    let recorded = began.elapsed();
    let back = delay::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        until: None,
        delay_ms: Some(0),
        entries: Vec::new(),
        first_number: None,
    };
    client.call::<Delay>(back).await?;
    let began = Instant::now();
    let again = claim_one(client, claim_args(0, 5_000)).await?;
    let claimed: Duration = began.elapsed();
    let brought = again.journal.as_ref().map_or(0, |journal| journal.entries.len());
    complete(client, &again).await?;
    Ok(Figures::new()
        .with("journal", JOURNAL_ENTRIES_MAX)
        .measured("record_ms", milliseconds(recorded))
        .measured("claim_ms", milliseconds(claimed))
        .measured("entries_with_the_claim", brought as f64))
}
