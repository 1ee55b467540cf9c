//! Scenarios on the engine in process: how fast, how soon, how idle, and how that changes with what is queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ff_core::op::{self, Claim, Complete, CreateExecution};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use serde_json::json;

use crate::Result;
use crate::latency::Latencies;
use crate::open::{Kind, Opened, open};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which store
    #[arg(long, value_enum, default_value = "sqlite")]
    store: Kind,
    /// What an acknowledgement means; the store's first setting when absent
    #[arg(long)]
    sync: Option<String>,
    /// An address instead of a new and empty place
    #[arg(long)]
    url: Option<String>,
    /// How many tasks
    #[arg(long, default_value_t = 10_000)]
    tasks: usize,
    /// How many workers
    #[arg(long, default_value_t = 16)]
    workers: usize,
    /// How many submitters at once
    #[arg(long, default_value_t = 64)]
    submitters: usize,
    /// For how long, where the scenario has a duration
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    async fn start(&self) -> Result<(Engine, Opened)> {
        let sync = self.sync.as_deref().unwrap_or(self.store.syncs()[0]);
        let opened = open(self.store, sync, self.url.as_deref()).await?;
        let engine = Engine::start(opened.store.clone(), Arc::new(TokioEnv::current()), Options::default()).await?;
        Ok((engine, opened))
    }

    fn print(&self, scenario: &str, mut figures: serde_json::Value) {
        let map = figures.as_object_mut().expect("figures are an object");
        if self.json {
            map.insert("scenario".into(), json!(scenario));
            map.insert("store".into(), json!(self.store.as_str()));
            map.insert("sync".into(), json!(self.sync.as_deref().unwrap_or(self.store.syncs()[0])));
            println!("{figures}");
            return;
        }
        println!("{scenario} on {}", self.store.as_str());
        for (name, value) in map {
            println!("  {name:<28} {value}");
        }
    }
}

fn submission() -> op::create_execution::Args {
    op::create_execution::Args { kind: "bench".into(), ..Default::default() }
}

fn claim_args(worker: usize, wait_ms: i64) -> op::claim::Args {
    op::claim::Args {
        instance_id: format!("w-{worker}"),
        namespace: None,
        lanes: ["default".to_owned()].into(),
        capabilities: Default::default(),
        max_tasks: None,
        wait_ms: Some(wait_ms),
        mode: None,
        lease_ids: Vec::new(),
        retry: false,
        lease_ttl_ms: None,
        grant_ttl_ms: None,
    }
}

async fn complete(engine: &Engine, task: &op::view::Task) -> Result<()> {
    let args = op::complete::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        result: None,
        result_base64: None,
        content_type: None,
    };
    engine.call::<Complete>(&Caller::system(), args).await?;
    Ok(())
}

/// Submits this many tasks, many at once; each is its own commit.
async fn submit(engine: &Engine, tasks: usize, submitters: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut submitting = tokio::task::JoinSet::new();
    for _ in 0..submitters {
        let (engine, next) = (engine.clone(), next.clone());
        submitting.spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < tasks {
                engine.call::<CreateExecution>(&Caller::system(), submission()).await?;
            }
            Ok::<(), ff_core::Error>(())
        });
    }
    while let Some(ended) = submitting.join_next().await {
        ended??;
    }
    Ok(())
}

/// Claims and completes this many tasks with so many workers, one task at a time each.
async fn drain(engine: &Engine, tasks: usize, workers: usize) -> Result<()> {
    let left = Arc::new(AtomicUsize::new(tasks));
    let mut draining = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let (engine, left) = (engine.clone(), left.clone());
        draining.spawn(async move {
            loop {
                let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                if taken.is_err() {
                    return Ok::<(), Box<dyn std::error::Error + Send + Sync>>(());
                }
                loop {
                    let claimed = engine.call::<Claim>(&Caller::system(), claim_args(worker, 5_000)).await?;
                    if let Some(task) = claimed.tasks.first() {
                        complete(&engine, task).await?;
                        break;
                    }
                }
            }
        });
    }
    while let Some(ended) = draining.join_next().await {
        ended??;
    }
    Ok(())
}

fn per_second(count: usize, took: Duration) -> f64 {
    (count as f64 / took.as_secs_f64()).round()
}

/// Submit, claim, complete: empty tasks, end to end, and each half on its own.
pub(crate) async fn throughput(arguments: &Arguments) -> Result<()> {
    let (engine, opened) = arguments.start().await?;
    let (tasks, workers, submitters) = (arguments.tasks, arguments.workers, arguments.submitters);
    eprintln!("submitting and draining {tasks} tasks at once, then one after the other");
    let before = opened.server_cost().await?;
    let began = Instant::now();
    tokio::try_join!(submit(&engine, tasks, submitters), drain(&engine, tasks, workers))?;
    let end_to_end = began.elapsed();
    let after = opened.server_cost().await?;
    let began = Instant::now();
    submit(&engine, tasks, submitters).await?;
    let submitted = began.elapsed();
    let began = Instant::now();
    drain(&engine, tasks, workers).await?;
    let drained = began.elapsed();
    let mut figures = json!({
        "tasks": tasks, "workers": workers,
        "end_to_end_per_s": per_second(tasks, end_to_end),
        "submit_per_s": per_second(tasks, submitted),
        "drain_per_s": per_second(tasks, drained),
    });
    if let (Some(before), Some(after)) = (before, after) {
        let calls = after.calls - before.calls;
        figures["function_calls_per_task"] = json!((calls as f64 / tasks as f64 * 100.0).round() / 100.0);
        figures["server_us_per_task"] =
            json!(((after.microseconds - before.microseconds) as f64 / tasks as f64).round());
    }
    arguments.print("throughput", figures);
    engine.close().await;
    Ok(())
}

/// One idle worker, submits one after another: how long until the task is in hand.
pub(crate) async fn wake(arguments: &Arguments) -> Result<()> {
    let (engine, _opened) = arguments.start().await?;
    let mut latencies = Latencies::default();
    for _ in 0..200 {
        let waiting = {
            let engine = engine.clone();
            tokio::spawn(async move {
                let claimed = engine.call::<Claim>(&Caller::system(), claim_args(0, 10_000)).await;
                (claimed, Instant::now())
            })
        };
        // The worker has to be waiting before the clock starts; a claim reaches its wait within a few polls.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let began = Instant::now();
        engine.call::<CreateExecution>(&Caller::system(), submission()).await?;
        let (claimed, at) = waiting.await?;
        latencies.record(at.duration_since(began));
        for task in claimed?.tasks {
            complete(&engine, &task).await?;
        }
    }
    arguments.print(
        "wake",
        json!({ "submits": 200, "p50_ms": latencies.percentile_ms(50), "p99_ms": latencies.percentile_ms(99) }),
    );
    engine.close().await;
    Ok(())
}

/// Idle workers, no work: what the store is asked all the same.
pub(crate) async fn idle(arguments: &Arguments) -> Result<()> {
    let (engine, _opened) = arguments.start().await?;
    let mut waiting = tokio::task::JoinSet::new();
    for worker in 0..arguments.workers {
        let engine = engine.clone();
        waiting.spawn(async move {
            loop {
                if engine.call::<Claim>(&Caller::system(), claim_args(worker, 30_000)).await.is_err() {
                    return;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let count = || {
        let (commits, _) = engine.metrics().commits.snapshot();
        (engine.metrics().reads.load(Ordering::Relaxed), commits.iter().sum::<u64>())
    };
    let before = count();
    for second in 0..arguments.seconds {
        eprint!("\ridle for {second} of {} s ", arguments.seconds);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    eprintln!();
    let after = count();
    let rate = |count: u64| (count as f64 / arguments.seconds as f64 * 100.0).round() / 100.0;
    arguments.print(
        "idle",
        json!({ "workers": arguments.workers, "seconds": arguments.seconds,
            "reads_per_s": rate(after.0 - before.0), "commits": after.1 - before.1 }),
    );
    waiting.abort_all();
    engine.close().await;
    Ok(())
}

/// Claims per second with a thousand and with many more queued executions, in one run.
pub(crate) async fn growth(arguments: &Arguments) -> Result<()> {
    let mut rates = Vec::new();
    for queued in [1_000.max(arguments.workers), arguments.tasks] {
        let (engine, _opened) = arguments.start().await?;
        let measured = 1_000.min(queued);
        eprintln!("queueing {queued}");
        submit(&engine, queued, arguments.submitters).await?;
        let began = Instant::now();
        drain(&engine, measured, arguments.workers).await?;
        let rate = per_second(measured, began.elapsed());
        rates.push(rate);
        arguments.print("growth", json!({ "queued": queued, "claims_and_completions_per_s": rate }));
        engine.close().await;
    }
    arguments.print("growth", json!({ "ratio": (rates[1] / rates[0] * 100.0).round() / 100.0 }));
    Ok(())
}
