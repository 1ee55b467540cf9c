//! Steps that scenarios share: submitting, claiming, completing, many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ff_core::Code;
use ff_core::encoding::JsonText;
use ff_core::op::CreateResult;
use ff_core::op::{self, Claim, Complete, CreateExecution, Exchange};
use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::arguments::Calls;
use crate::error::Result;

/// An empty task.
pub(crate) fn submission() -> op::create_execution::Args {
    op::create_execution::Args { kind: "bench".into(), ..Default::default() }
}

/// An input of so many bytes; fewer than two are none.
pub(crate) fn input_of(bytes: usize) -> Option<JsonText> {
    (bytes >= 2).then(|| JsonText(format!("\"{}\"", "i".repeat(bytes - 2))))
}

/// One task for a worker, waited for.
pub(crate) fn claim_args(worker: usize, wait_ms: i64) -> op::claim::Args {
    op::claim::Args {
        instance_id: format!("w-{worker}"),
        namespace: None,
        lanes: ["default".to_owned()].into(),
        capabilities: Default::default(),
        kinds: Default::default(),
        max_tasks: None,
        wait_ms: Some(wait_ms),
        mode: None,
        lease_ids: Vec::new(),
        retry: false,
        lease_ttl_ms: None,
        grant_ttl_ms: None,
    }
}

pub(crate) async fn complete(client: &Client, task: &op::view::Task) -> Result<()> {
    client.call::<Complete>(completion(task)).await?;
    Ok(())
}

fn completion(task: &op::view::Task) -> op::complete::Args {
    op::complete::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        result: None,
        result_base64: None,
        content_type: None,
        entries: Vec::new(),
        first_number: None,
        run: None,
    }
}

/// Completes a task and takes the next in the same call, as the runtimes of the SDKs do; `None` when nothing waits.
async fn exchange(client: &Client, worker: usize, task: &op::view::Task) -> Result<Option<op::view::Task>> {
    let claim = op::ExchangeClaim { lanes: ["default".to_owned()].into(), ..Default::default() };
    let args = op::exchange::Args {
        instance_id: format!("w-{worker}"),
        end: vec![op::ExchangeEnding::Complete(completion(task))],
        claim: Some(claim),
        ..Default::default()
    };
    let mut outcome = client.call::<Exchange>(args).await?;
    if let Some(op::ExchangeEnded::Problem(error)) = outcome.end.pop() {
        return Err(error.into());
    }
    let claimed = outcome.claim.unwrap_or_default();
    match claimed.problem {
        // A claim that waits finds out whether the store only took long.
        Some(problem) if problem.code == Code::Unavailable => Ok(None),
        Some(problem) => Err(problem.into()),
        None => Ok(claimed.tasks.into_iter().next()),
    }
}

/// Submits this many tasks, many at once; each is its own commit.
pub(crate) async fn submit(client: &Client, tasks: usize, submitters: usize) -> Result<()> {
    submit_each(client, tasks, submitters, |_| submission()).await
}

/// Submits tasks by their number, many at once; each is its own commit.
pub(crate) async fn submit_each(
    client: &Client,
    tasks: usize,
    submitters: usize,
    task: impl Fn(usize) -> op::create_execution::Args + Clone + Send + 'static,
) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut submitting = JoinSet::new();
    for _ in 0..submitters {
        let (client, next, task) = (client.clone(), next.clone(), task.clone());
        submitting.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= tasks {
                    return Ok(());
                }
                client.call::<CreateExecution>(task(number)).await?;
            }
        });
    }
    all(submitting).await
}

/// Submits this many tasks in calls of so many each, a few calls at once.
pub(crate) async fn submit_in_batches(client: &Client, tasks: usize, each: usize, callers: usize) -> Result<()> {
    submit_each_in_batches(client, tasks, each, callers, |_| submission()).await
}

/// Submits tasks that depend on their number.
pub(crate) async fn submit_each_in_batches(
    client: &Client,
    tasks: usize,
    each: usize,
    callers: usize,
    task: impl Fn(usize) -> op::create_execution::Args + Clone + Send + 'static,
) -> Result<()> {
    let left = Arc::new(AtomicUsize::new(tasks));
    let mut submitting = JoinSet::new();
    for _ in 0..callers {
        let (client, left, task) = (client.clone(), left.clone(), task.clone());
        submitting.spawn(async move {
            loop {
                let before = left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(each)))
                    .unwrap_or(0);
                if before == 0 {
                    return Ok(());
                }
                let batch = (before.saturating_sub(each)..before).map(&task).collect();
                for result in client.submit_all(batch).await? {
                    if let CreateResult::Refused { error } = result {
                        return Err(error.into());
                    }
                }
            }
        });
    }
    all(submitting).await
}

/// The tasks that all workers of a measurement still have to do together, at however many servers they are: no worker
/// knows how many of them it gets.
#[derive(Clone)]
pub(crate) struct Undone {
    left: Arc<AtomicUsize>,
    /// Has no permits, and is closed with the last task.
    last: Arc<Semaphore>,
}

impl Undone {
    pub(crate) fn of(tasks: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(tasks)), last: Arc::new(Semaphore::new(0)) }
    }

    /// Counts one task that a worker got.
    fn got_one(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.last.close();
        }
    }

    /// Waits until workers have got the last task.
    async fn none_left(&self) {
        // A semaphore without permits answers only when it is closed.
        let _ = self.last.acquire().await;
    }
}

/// Claims and completes this many tasks with so many workers, one task at a time each. As in the runtimes of the SDKs, what
/// ended is exchanged for what comes next.
pub(crate) async fn drain(client: &Client, tasks: usize, workers: usize) -> Result<()> {
    drain_by(client, &Undone::of(tasks), workers, Calls::Exchange).await
}

/// Drains the queue by other calls, perhaps together with workers of other servers.
pub(crate) async fn drain_by(client: &Client, undone: &Undone, workers: usize, calls: Calls) -> Result<()> {
    if calls == Calls::Worker {
        return drain_by_worker(client, undone, workers).await;
    }
    let mut draining = JoinSet::new();
    for worker in 0..workers {
        let (client, left) = (client.clone(), undone.left.clone());
        draining.spawn(async move {
            if !take_one(&left) {
                return Ok(());
            }
            let mut task = claim_one(&client, claim_args(worker, 5_000)).await?;
            while take_one(&left) {
                task = next_task(&client, worker, &task, calls).await?;
            }
            complete(&client, &task).await
        });
    }
    all(draining).await
}

/// Drains the queue with one worker of the SDK, whose function does nothing. The last end is acknowledged when it has
/// stopped.
async fn drain_by_worker(client: &Client, undone: &Undone, concurrency: usize) -> Result<()> {
    let config = WorkerConfig::new("bench").max_concurrent_tasks(concurrency);
    let counted = undone.clone();
    let runtime = WorkerRuntime::new(config).register("bench", move |_: TaskContext, _: serde_json::Value| {
        counted.got_one();
        async { Ok::<(), TaskError>(()) }
    });
    let worker = runtime.start(client).await?;
    undone.none_left().await;
    Ok(worker.stop().await?)
}

/// Whether there was one left to take.
pub(crate) fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// Completes a task and has the next: in the same call if one waits, by a claim that waits for it otherwise.
async fn next_task(client: &Client, worker: usize, task: &op::view::Task, calls: Calls) -> Result<op::view::Task> {
    match complete_and_take(client, worker, task, calls).await? {
        Some(next) => Ok(next),
        None => claim_one(client, claim_args(worker, 5_000)).await,
    }
}

/// Completes a task. An exchange also takes the next; `None` when nothing waits.
pub(crate) async fn complete_and_take(
    client: &Client,
    worker: usize,
    task: &op::view::Task,
    calls: Calls,
) -> Result<Option<op::view::Task>> {
    match calls {
        Calls::Exchange | Calls::Worker => exchange(client, worker, task).await,
        Calls::Separate => complete(client, task).await.map(|()| None),
    }
}

/// Asks until there is a task.
pub(crate) async fn claim_one(client: &Client, args: op::claim::Args) -> Result<op::view::Task> {
    loop {
        if let Some(task) = client.call::<Claim>(args.clone()).await?.tasks.pop() {
            return Ok(task);
        }
    }
}

/// Waits for all of them; the first that fails ends the others.
pub(crate) async fn all(mut running: JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// To a whole number: more digits say nothing of a rate.
pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    (count as f64 / took.as_secs_f64()).round()
}

pub(crate) fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}
