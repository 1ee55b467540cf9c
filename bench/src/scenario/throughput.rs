//! How many empty tasks go through the engine in a second.

use std::time::{Duration, Instant};

use ff_core::op;
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::subject::{Spent, Subject};
use crate::work::{Undone, all, drain_by, input_of, per_second, submission, submit_each, submit_each_in_batches};

/// Workers, unless said otherwise.
pub(crate) const WORKERS: usize = 16;
/// Tasks of one call, where they are submitted in batches.
const BATCH: usize = 100;
/// Calls that are under way at once.
const CALLERS: usize = 8;

/// Submit, claim, complete: empty tasks, end to end, and each half on its own.
pub(crate) async fn throughput(run: &Run<'_>) -> Result<()> {
    let mut servers = vec![run.start().await?];
    for _ in 1..run.arguments.servers {
        servers.push(run.join(&servers[0].opened).await?);
    }
    let subject = &servers[0];
    let client = &subject.client;
    let (tasks, workers, submitters) =
        (run.arguments.tasks, run.arguments.workers_or(WORKERS), run.arguments.submitters);
    run.progress(&format!("submitting and draining {tasks} tasks at once, then one after the other"));
    let before = spent(&servers).await?;
    let end_to_end = end_to_end_on(run, &servers).await?;
    let after = spent(&servers).await?;
    let task = tasks_of(run.arguments.input_bytes);
    let began = Instant::now();
    submit_each(client, tasks, submitters, task.clone()).await?;
    let submitted = began.elapsed();
    let began = Instant::now();
    submit_each_in_batches(client, tasks, BATCH, CALLERS, task).await?;
    let batched = began.elapsed();
    let began = Instant::now();
    drain_by(client, &Undone::of(2 * tasks), workers, run.arguments.calls).await?;
    let drained = began.elapsed();
    let figures = Figures::new()
        .with("tasks", tasks)
        .with("workers", workers)
        .with("batch", BATCH)
        .with("servers", servers.len())
        .with("input_bytes", run.arguments.input_bytes)
        .measured("end_to_end_per_s", per_second(tasks, end_to_end))
        .measured("submit_per_s", per_second(tasks, submitted))
        .measured("batch_submit_per_s", per_second(tasks, batched))
        .measured("drain_per_s", per_second(2 * tasks, drained));
    run.report(after.each(before, tasks, figures))?;
    for server in servers {
        server.close().await?;
    }
    Ok(())
}

/// From the first submit to the last completion.
pub(crate) async fn end_to_end(run: &Run<'_>, subject: &Subject) -> Result<Duration> {
    end_to_end_on(run, std::slice::from_ref(subject)).await
}

/// Each server has its share of the submitters and the workers; a worker takes tasks whichever server they came through.
async fn end_to_end_on(run: &Run<'_>, servers: &[Subject]) -> Result<Duration> {
    let share = |all: usize, number: usize| all * (number + 1) / servers.len() - all * number / servers.len();
    let task = tasks_of(run.arguments.input_bytes);
    let undone = Undone::of(run.arguments.tasks);
    let mut parts = JoinSet::new();
    let began = Instant::now();
    for (number, server) in servers.iter().enumerate() {
        let (tasks, workers) = (share(run.arguments.tasks, number), share(run.arguments.workers_or(WORKERS), number));
        let submitters = share(run.arguments.submitters, number).max(1);
        let (client, task, calls, undone) = (server.client.clone(), task.clone(), run.arguments.calls, undone.clone());
        parts.spawn(async move {
            let submitting = submit_each(&client, tasks, submitters, task);
            tokio::try_join!(submitting, drain_by(&client, &undone, workers.max(1), calls)).map(|_| ())
        });
    }
    all(parts).await?;
    Ok(began.elapsed())
}

/// Tasks with an input of so many bytes, as JSON.
fn tasks_of(input_bytes: usize) -> impl Fn(usize) -> op::create_execution::Args + Clone + Send + 'static {
    let input = input_of(input_bytes);
    move |_| op::create_execution::Args { input: input.clone(), ..submission() }
}

/// What all servers have spent; the process is the same.
async fn spent(servers: &[Subject]) -> Result<Spent> {
    let mut all = servers[0].spent().await?;
    for server in &servers[1..] {
        all.also(server.spent().await?);
    }
    Ok(all)
}
