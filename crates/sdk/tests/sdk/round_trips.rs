//! The cost of a task: calls from create to complete, and what they cost the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flowfabric::{Client, FlowFabricWorker, PublicState, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

use tokio::sync::Semaphore;

use crate::support::{both_ways, within};

const TASKS: usize = 100;

fn config(at_once: usize) -> WorkerConfig {
    WorkerConfig::new("w").max_concurrent_tasks(at_once).claim_wait(Duration::from_secs(20))
}

fn calls_each(client: &Client, before: u64) -> f64 {
    f64::from(u32::try_from(client.calls_made() - before).unwrap()) / f64::from(u32::try_from(TASKS).unwrap())
}

async fn submit_all(client: &Client) {
    for _ in 0..TASKS {
        client.submit("k").input(&1).send().await.unwrap();
    }
}

/// A loop that claims and completes in calls of their own.
async fn run_by_hand(client: &Client, at_once: usize) -> f64 {
    let worker = FlowFabricWorker::connect(client, config(at_once)).await.unwrap();
    let before = client.calls_made();
    submit_all(client).await;
    let mut done = 0;
    while done < TASKS {
        for task in within(worker.claim_all_it_can()).await.unwrap() {
            task.complete(&2).await.unwrap();
            done += 1;
        }
    }
    let calls = calls_each(client, before);
    worker.stop(Duration::ZERO).await.unwrap();
    calls
}

/// A runtime, which exchanges what ended for what comes next.
async fn run_by_runtime(client: &Client, at_once: usize) -> f64 {
    async fn double(context: TaskContext<Arc<Semaphore>>, number: i64) -> Result<i64, TaskError> {
        context.state().add_permits(1);
        Ok(2 * number)
    }
    let before = client.calls_made();
    submit_all(client).await;
    let ran = Arc::new(Semaphore::new(0));
    let runtime = WorkerRuntime::with_state(config(at_once), ran.clone()).register("k", double);
    let worker = runtime.start(client).await.unwrap();
    within(ran.acquire_many(u32::try_from(TASKS).unwrap())).await.unwrap().forget();
    within(worker.stop()).await.unwrap();
    let ended = client.list_all(Default::default()).await.unwrap();
    assert!(ended.iter().all(|one| one.public_state == PublicState::Completed));
    calls_each(client, before)
}

#[tokio::test]
async fn a_task_costs_three_calls_and_less_when_claimed_together() {
    for (way, client, _server) in both_ways().await {
        let alone = run_by_hand(&client, 1).await;
        let together = run_by_hand(&client, 20).await;
        println!("{way}: {alone:.2} calls a task one by one, {together:.2} with 20 at once");
        assert!(alone <= 3.0 + 1e-9, "{way}: {alone}");
        assert!(together <= 2.1, "{way}: {together}");
        if let Some(engine) = client.engine() {
            let metrics = engine.metrics();
            let reads = metrics.reads.load(Ordering::Relaxed);
            let commits: u64 = metrics.commits.snapshot().0.iter().sum();
            println!("{way}: {reads} reads and {commits} commits of the store for {} tasks", 2 * TASKS);
        }
    }
}

#[tokio::test]
async fn a_busy_runtime_costs_two_calls_a_task_and_less_when_tasks_end_together() {
    for (way, client, _server) in both_ways().await {
        let alone = run_by_runtime(&client, 1).await;
        let together = run_by_runtime(&client, 20).await;
        println!("{way}: {alone:.2} calls a task one by one, {together:.2} with 20 at once");
        // Beside the tasks: the registration, the first claim and the one without work, the farewell and the list.
        assert!(alone <= 2.1, "{way}: {alone}");
        assert!(together <= 1.5, "{way}: {together}");
    }
}
