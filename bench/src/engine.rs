//! Scenarios on the engine in process: how fast, how soon, and how that changes with what is queued. Their arguments and
//! steps serve the other scenarios too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ff_core::budget::Limits;
use ff_core::op::{self, Claim, Complete, CreateBudget, CreateExecution, ReportBudgetUsage, ResetBudget};
use ff_core::{Family, PartitionConfig, index};
use ff_engine::Engine;
use flowfabric::Client;
use serde_json::json;

use crate::Result;
use crate::latency::Latencies;
use crate::open::{Kind, Opened, open};
use crate::subject::{Subject, Via};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which store
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) store: Kind,
    /// What an acknowledgement means; the store's first setting when absent
    #[arg(long)]
    sync: Option<String>,
    /// An address instead of a new and empty place
    #[arg(long)]
    url: Option<String>,
    /// How many tasks
    #[arg(long, default_value_t = 10_000)]
    pub(crate) tasks: usize,
    /// How many workers
    #[arg(long, default_value_t = 16)]
    pub(crate) workers: usize,
    /// How many submitters at once
    #[arg(long, default_value_t = 64)]
    pub(crate) submitters: usize,
    /// How many servers on one store, where the scenario is about idling
    #[arg(long, default_value_t = 1)]
    pub(crate) servers: usize,
    /// For how long, where the scenario has a duration
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Flow partitions, with an eighth as many for budgets and for quotas; the store's default when absent
    #[arg(long)]
    partitions: Option<u32>,
    /// How large the input of each task is
    #[arg(long, default_value_t = 0)]
    pub(crate) input_bytes: usize,
    /// The way to the engine
    #[arg(long, value_enum, default_value = "process")]
    pub(crate) via: Via,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) async fn start(&self) -> Result<Subject> {
        let sync = self.sync.as_deref().unwrap_or(self.store.syncs()[0]);
        let opened = open(self.store, sync, self.url.as_deref()).await?;
        let partitions = self.partitions.map(|flow| {
            let others = (flow / 8).max(1);
            PartitionConfig { flow, budget: others, quota: others }
        });
        Subject::start(opened, partitions, self.via).await
    }

    /// One more server on a store that serves several.
    pub(crate) async fn join(&self, opened: &Opened) -> Result<Subject> {
        let Some(url) = opened.url.clone() else {
            return Err(format!("{} serves one process", self.store.as_str()).into());
        };
        let another = Self { url: Some(url), sync: self.sync.clone(), ..*self };
        another.start().await
    }

    pub(crate) fn print(&self, scenario: &str, mut figures: serde_json::Value) {
        let map = figures.as_object_mut().expect("figures are an object");
        if self.json {
            map.insert("scenario".into(), json!(scenario));
            map.insert("via".into(), json!(self.via.as_str()));
            map.insert("store".into(), json!(self.store.as_str()));
            map.insert("sync".into(), json!(self.sync.as_deref().unwrap_or(self.store.syncs()[0])));
            println!("{figures}");
            return;
        }
        println!("{scenario} on {}, via {}", self.store.as_str(), self.via.as_str());
        for (name, value) in map {
            println!("  {name:<28} {value}");
        }
    }
}

pub(crate) fn submission() -> op::create_execution::Args {
    op::create_execution::Args { kind: "bench".into(), ..Default::default() }
}

pub(crate) fn claim_args(worker: usize, wait_ms: i64) -> op::claim::Args {
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

pub(crate) async fn complete(client: &Client, task: &op::view::Task) -> Result<()> {
    let args = op::complete::Args {
        execution_id: task.execution_id,
        fence: task.fence,
        result: None,
        result_base64: None,
        content_type: None,
    };
    client.call::<Complete>(args).await?;
    Ok(())
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
    task: impl Fn(usize) -> op::create_execution::Args + Copy + Send + 'static,
) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut submitting = tokio::task::JoinSet::new();
    for _ in 0..submitters {
        let (client, next) = (client.clone(), next.clone());
        submitting.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= tasks {
                    break;
                }
                client.call::<CreateExecution>(task(number)).await?;
            }
            Ok::<(), flowfabric::SdkError>(())
        });
    }
    while let Some(ended) = submitting.join_next().await {
        ended??;
    }
    Ok(())
}

/// Claims and completes this many tasks with so many workers, one task at a time each.
pub(crate) async fn drain(client: &Client, tasks: usize, workers: usize) -> Result<()> {
    let left = Arc::new(AtomicUsize::new(tasks));
    let mut draining = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let (client, left) = (client.clone(), left.clone());
        draining.spawn(async move {
            loop {
                let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                if taken.is_err() {
                    return Ok::<(), Box<dyn std::error::Error + Send + Sync>>(());
                }
                loop {
                    let claimed = client.call::<Claim>(claim_args(worker, 5_000)).await?;
                    if let Some(task) = claimed.tasks.first() {
                        complete(&client, task).await?;
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

pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    (count as f64 / took.as_secs_f64()).round()
}

/// Submit, claim, complete: empty tasks, end to end, and each half on its own.
pub(crate) async fn throughput(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let (client, opened) = (subject.client.clone(), &subject.opened);
    let (tasks, workers, submitters) = (arguments.tasks, arguments.workers, arguments.submitters);
    eprintln!("submitting and draining {tasks} tasks at once, then one after the other");
    let before = opened.server_cost().await?;
    let processor = processor_time();
    let began = Instant::now();
    tokio::try_join!(submit(&client, tasks, submitters), drain(&client, tasks, workers))?;
    let end_to_end = began.elapsed();
    let processor = processor_time().zip(processor).map(|(after, before)| after.saturating_sub(before));
    let after = opened.server_cost().await?;
    let began = Instant::now();
    submit(&client, tasks, submitters).await?;
    let submitted = began.elapsed();
    let began = Instant::now();
    drain(&client, tasks, workers).await?;
    let drained = began.elapsed();
    let mut figures = json!({
        "tasks": tasks, "workers": workers,
        "end_to_end_per_s": per_second(tasks, end_to_end),
        "submit_per_s": per_second(tasks, submitted),
        "drain_per_s": per_second(tasks, drained),
    });
    if let Some(processor) = processor {
        figures["own_us_per_task"] = json!((processor.as_secs_f64() * 1e6 / tasks as f64).round());
    }
    if let (Some(before), Some(after)) = (before, after) {
        let calls = after.calls - before.calls;
        figures["function_calls_per_task"] = json!((calls as f64 / tasks as f64 * 100.0).round() / 100.0);
        figures["server_us_per_task"] =
            json!(((after.microseconds - before.microseconds) as f64 / tasks as f64).round());
    }
    arguments.print("throughput", figures);
    subject.close().await
}

/// One idle worker, submits one after another: how long until the task is in hand.
pub(crate) async fn wake(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let client = subject.client.clone();
    let mut latencies = Latencies::default();
    for _ in 0..200 {
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move {
                let claimed = client.call::<Claim>(claim_args(0, 10_000)).await;
                (claimed, Instant::now())
            })
        };
        // The worker has to be waiting before the clock starts; a claim reaches its wait within a few polls.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let began = Instant::now();
        client.call::<CreateExecution>(submission()).await?;
        let (claimed, at) = waiting.await?;
        latencies.record(at.duration_since(began));
        for task in claimed?.tasks {
            complete(&client, &task).await?;
        }
    }
    arguments.print(
        "wake",
        json!({ "submits": 200, "p50_ms": latencies.percentile_ms(50), "p95_ms": latencies.percentile_ms(95),
            "p99_ms": latencies.percentile_ms(99) }),
    );
    subject.close().await
}

/// Claims per second with a thousand and with many more queued executions, in one run.
pub(crate) async fn growth(arguments: &Arguments) -> Result<()> {
    let mut rates = Vec::new();
    for queued in [1_000.max(arguments.workers), arguments.tasks] {
        let subject = arguments.start().await?;
        let client = subject.client.clone();
        let measured = 1_000.min(queued);
        eprintln!("queueing {queued}");
        submit(&client, queued, arguments.submitters).await?;
        let began = Instant::now();
        drain(&client, measured, arguments.workers).await?;
        let rate = per_second(measured, began.elapsed());
        rates.push(rate);
        arguments.print("growth", json!({ "queued": queued, "claims_and_completions_per_s": rate }));
        subject.close().await?;
    }
    arguments.print("growth", json!({ "ratio": (rates[1] / rates[0] * 100.0).round() / 100.0 }));
    Ok(())
}

/// Combinations of budgets in the way. One refusal closes the gate for a whole combination, so this many are examined.
const COMBINATIONS: usize = 64;
/// What the reset makes room for.
const ROOM: u32 = 10;

/// Many behind a budget that is used up, in front of one that may run: when that one is claimed, and how many the
/// reset lets in.
pub(crate) async fn blocked(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let client = subject.client.clone();
    let room = i64::from(ROOM);
    let budget = |name: String, hard: i64| op::create_budget::Args {
        name,
        dimensions: [("tokens".to_owned(), Limits { hard, ..Default::default() })].into(),
        ..Default::default()
    };
    client.call::<CreateBudget>(budget("spent".into(), room)).await?;
    for number in 0..COMBINATIONS {
        client.call::<CreateBudget>(budget(format!("wide-{number}"), 0)).await?;
    }
    let usage = op::report_budget_usage::Args {
        name: "spent".into(),
        namespace: None,
        usage: [("tokens".to_owned(), room)].into(),
        dedup_key: None,
        execution_id: None,
        fence: None,
    };
    client.call::<ReportBudgetUsage>(usage).await?;
    eprintln!("queueing {} behind a budget that is used up", arguments.tasks);
    submit_each(&client, arguments.tasks, arguments.submitters, |number| op::create_execution::Args {
        priority: Some(10),
        budget_ids: vec!["spent".into(), format!("wide-{}", number % COMBINATIONS)],
        ..submission()
    })
    .await?;
    let free = client.call::<CreateExecution>(submission()).await?.execution_id;
    let began = Instant::now();
    let claimed = client.call::<Claim>(claim_args(0, 30_000)).await?;
    let until_claimed = began.elapsed();
    let first = claimed.tasks.first().map(|task| task.execution_id);
    if first != Some(free) {
        return Err(format!("claimed {first:?} instead of the one that may run").into());
    }
    let parked = count_parked(&subject.engine, "b:spent").await?;
    let reset = op::reset_budget::Args { name: "spent".into(), namespace: None, command_id: None };
    let began = Instant::now();
    client.call::<ResetBudget>(reset).await?;
    let reset = began.elapsed();
    let left = count_parked(&subject.engine, "b:spent").await?;
    arguments.print(
        "blocked",
        json!({ "blocked": arguments.tasks, "budget_combinations": COMBINATIONS,
            "claimed_after_ms": milliseconds(until_claimed), "parked": parked,
            "reset_with_room_for": ROOM, "reset_ms": milliseconds(reset), "unparked": parked - left }),
    );
    subject.close().await
}

/// How many executions a gate keeps out of their queues.
async fn count_parked(engine: &Engine, gate: &str) -> Result<u64> {
    let mut parked = 0;
    for partition in engine.partitions().all().filter(|partition| partition.family == Family::Flow) {
        parked += engine.store().count(partition, index::blocked("default", gate), i64::MIN, i64::MAX).await?;
    }
    Ok(parked)
}

pub(crate) fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 10_000.0).round() / 10.0
}

/// What the processors have spent on this process and the system on its behalf, where the system tells.
pub(crate) fn processor_time() -> Option<Duration> {
    /// As every Linux counts, whatever its timer does.
    const TICKS_PER_SECOND: u64 = 100;
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in the second field may hold anything; fields are counted from behind its closing bracket.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_PER_SECOND))
}
