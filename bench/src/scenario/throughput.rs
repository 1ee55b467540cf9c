//! How many empty tasks go through the engine in a second.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{drain_by, per_second, submit, submit_in_batches};

/// Workers, unless said otherwise.
pub(crate) const WORKERS: usize = 16;
/// Tasks of one call, where they are submitted in batches.
const BATCH: usize = 100;
/// Calls that are under way at once.
const CALLERS: usize = 8;

/// Submit, claim, complete: empty tasks, end to end, and each half on its own.
pub(crate) async fn throughput(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    let (tasks, workers, submitters) =
        (run.arguments.tasks, run.arguments.workers_or(WORKERS), run.arguments.submitters);
    run.progress(&format!("submitting and draining {tasks} tasks at once, then one after the other"));
    let before = subject.spent().await?;
    let end_to_end = end_to_end(run, &subject).await?;
    let after = subject.spent().await?;
    let began = Instant::now();
    submit(client, tasks, submitters).await?;
    let submitted = began.elapsed();
    let began = Instant::now();
    submit_in_batches(client, tasks, BATCH, CALLERS).await?;
    let batched = began.elapsed();
    let began = Instant::now();
    drain_by(client, 2 * tasks, workers, run.arguments.calls).await?;
    let drained = began.elapsed();
    let figures = Figures::new()
        .with("tasks", tasks)
        .with("workers", workers)
        .with("batch", BATCH)
        .measured("end_to_end_per_s", per_second(tasks, end_to_end))
        .measured("submit_per_s", per_second(tasks, submitted))
        .measured("batch_submit_per_s", per_second(tasks, batched))
        .measured("drain_per_s", per_second(2 * tasks, drained));
    run.report(after.each(before, tasks, figures))?;
    subject.close().await
}

/// From the first submit to the last completion.
pub(crate) async fn end_to_end(run: &Run<'_>, subject: &Subject) -> Result<Duration> {
    let (tasks, workers, submitters) =
        (run.arguments.tasks, run.arguments.workers_or(WORKERS), run.arguments.submitters);
    let began = Instant::now();
    let calls = run.arguments.calls;
    tokio::try_join!(submit(&subject.client, tasks, submitters), drain_by(&subject.client, tasks, workers, calls))?;
    Ok(began.elapsed())
}
