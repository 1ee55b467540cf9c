//! What a task costs: calls from create to complete, and what they cost the store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flowfabric::{Client, FlowFabricWorker, WorkerConfig};

use crate::support::{both_ways, within};

const TASKS: usize = 100;

async fn run_all(client: &Client, at_once: usize) -> f64 {
    let config = WorkerConfig::new("w").max_concurrent_tasks(at_once).claim_wait(Duration::from_secs(20));
    let worker = FlowFabricWorker::connect(client, config).await.unwrap();
    let before = client.calls_made();
    for _ in 0..TASKS {
        client.submit("k").input(&1).send().await.unwrap();
    }
    let mut done = 0;
    while done < TASKS {
        for task in within(worker.claim_all_it_can()).await.unwrap() {
            task.complete(&2).await.unwrap();
            done += 1;
        }
    }
    let calls = client.calls_made() - before;
    worker.stop(Duration::ZERO).await.unwrap();
    f64::from(u32::try_from(calls).unwrap()) / f64::from(u32::try_from(TASKS).unwrap())
}

#[tokio::test]
async fn a_task_costs_three_calls_and_less_when_claimed_together() {
    for (way, client, _server) in both_ways().await {
        let alone = run_all(&client, 1).await;
        let together = run_all(&client, 20).await;
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
