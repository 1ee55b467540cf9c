//! Turns by key: how long tenants with little wait behind one with much, and what keys cost.

use std::time::Instant;

use ff_core::op;

use super::throughput::WORKERS;
use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::machine::resident_bytes;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{claim_args, claim_one, complete, drain, per_second, submission, submit_each_in_batches};

/// The tenants that come behind the crowd, and how much each of them has.
const LATE: [&str; 3] = ["b", "c", "d"];
const EACH: usize = 10;
/// Tasks of one call, and calls at once.
const BATCH: usize = 100;
const CALLERS: usize = 8;
/// Claims that are timed one by one.
const TIMED: usize = 500;

/// One tenant has `--tasks` waiting and three have ten each; then the rate with and without keys, and as many keys as
/// tasks.
pub(crate) async fn fair(run: &Run<'_>) -> Result<()> {
    turns(run).await?;
    let without = rate(run, "none", |_| None).await?;
    let few = rate(run, "four", |number| Some(format!("tenant-{}", number % 4))).await?;
    let many = rate(run, "each", |number| Some(format!("tenant-{number}"))).await?;
    for (keys, measured) in [("none", &without), ("four", &few), ("each", &many)] {
        run.report(measured.figures(run, keys).measured("of_rate_without", measured.per_s / without.per_s))?;
    }
    Ok(())
}

/// Claims, one at a time, until every late tenant's last task has started.
async fn turns(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (client, tasks) = (&subject.client, run.arguments.tasks);
    run.progress(&format!("queueing {tasks} of one tenant, then {EACH} of three others each"));
    queue(&subject, tasks, |_| Some("a".to_owned())).await?;
    // The server has served the crowd for a while when the others come.
    let first = claim_one(client, claim_args(0, 5_000)).await?;
    complete(client, &first).await?;
    for number in 0..LATE.len() * EACH {
        let tenant = LATE[number % LATE.len()].to_owned();
        let tags = [("late".to_owned(), tenant.clone())].into();
        client.call::<op::CreateExecution>(op::create_execution::Args { tags, ..keyed(Some(tenant)) }).await?;
    }
    let (mut claims, mut left) = (0_u32, LATE.len() * EACH);
    let began = Instant::now();
    while left > 0 {
        let task = claim_one(client, claim_args(0, 5_000)).await?;
        claims += 1;
        left -= usize::from(task.tags.contains_key("late"));
        complete(client, &task).await?;
    }
    let took = began.elapsed();
    run.report(
        Figures::new()
            .with("crowd", tasks)
            .with("late", LATE.len() * EACH)
            .measured("claims_until_last_late", f64::from(claims))
            .measured("claims_for_each_late", f64::from(claims) / (LATE.len() * EACH) as f64)
            .measured("claim_and_complete_per_s", per_second(usize::try_from(claims).unwrap_or(0), took)),
    )?;
    subject.close().await
}

struct Measured {
    per_s: f64,
    claims: Latencies,
    resident: Option<f64>,
}

impl Measured {
    fn figures(&self, run: &Run<'_>, keys: &str) -> Figures {
        let (tasks, workers) = (run.arguments.tasks, run.arguments.workers_or(WORKERS));
        let figures = Figures::new().with("tasks", tasks).with("workers", workers).with("keys", keys);
        figures
            .measured("drain_per_s", self.per_s)
            .latency(&mut self.claims.clone())
            .known("resident_mib_more", self.resident)
    }
}

/// Queues the tasks under keys, times some claims one by one, and drains the rest with many workers.
async fn rate(
    run: &Run<'_>,
    keys: &str,
    key: impl Fn(usize) -> Option<String> + Clone + Send + 'static,
) -> Result<Measured> {
    let subject = run.start().await?;
    let (client, tasks) = (&subject.client, run.arguments.tasks);
    run.progress(&format!("{tasks} tasks, keys: {keys}"));
    let before = resident_bytes();
    queue(&subject, tasks, key).await?;
    let timed = TIMED.min(tasks / 2);
    let mut claims = Latencies::default();
    for _ in 0..timed {
        let began = Instant::now();
        let task = claim_one(client, claim_args(0, 5_000)).await?;
        claims.record(began.elapsed());
        complete(client, &task).await?;
    }
    let resident = resident_bytes().zip(before).map(|(now, before)| (now as f64 - before as f64) / 1_048_576.0);
    let began = Instant::now();
    drain(client, tasks - timed, run.arguments.workers_or(WORKERS)).await?;
    let per_s = per_second(tasks - timed, began.elapsed());
    subject.close().await?;
    Ok(Measured { per_s, claims, resident })
}

async fn queue(
    subject: &Subject,
    tasks: usize,
    key: impl Fn(usize) -> Option<String> + Clone + Send + 'static,
) -> Result<()> {
    submit_each_in_batches(&subject.client, tasks, BATCH, CALLERS, move |number| keyed(key(number))).await
}

fn keyed(fair_key: Option<String>) -> op::create_execution::Args {
    op::create_execution::Args { fair_key, ..submission() }
}
