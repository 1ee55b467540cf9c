//! Search and counts over many executions: how long the first page of every filter takes.

use std::time::{Duration, Instant};

use flowfabric::Client;
use serde_json::{Value, json};

use super::population;
use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;

/// Executions that failed, that a worker holds, that a parent spawned, and that a schedule made.
const FEW: usize = 100;
/// Each filter is asked so often.
const TIMES: usize = 20;
const PAGE: usize = 100;
/// A share of counts lasts for two seconds; a pause of this length makes the next one a count of its own.
const COUNTS_SHARED: Duration = Duration::from_millis(2_100);
const COUNTS: usize = 20;
/// PostgreSQL writes and vacuums for about a minute after it was filled with a million executions, and every question
/// that is asked meanwhile takes longer. The figures are of a store at rest, so it gets this long for each execution.
const REST: Duration = Duration::from_micros(60);
const HOUR_MS: i64 = 3_600_000;

/// Fills a store and asks for the first page of each filter, and for counts.
pub(crate) async fn search(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    let facts = fill(run, client).await?;
    run.progress("letting the store come to rest");
    let executions = u32::try_from(run.arguments.tasks).unwrap_or(u32::MAX);
    tokio::time::sleep(REST * executions).await;
    for (name, filter) in filters(&facts) {
        run.progress(&format!("asking for {name}"));
        let mut args = json!({ "limit": PAGE });
        merge(&mut args, filter);
        let mut latencies = Latencies::default();
        let mut page = Value::Null;
        for _ in 0..TIMES {
            let began = Instant::now();
            page = client.call_json("list_executions", args.clone()).await?;
            latencies.record(began.elapsed());
        }
        let figures = Figures::new()
            .with("executions", run.arguments.tasks)
            .with("filter", name)
            .with("found", page["items"].as_array().map_or(0, Vec::len))
            .with("more", page["next_cursor"].is_string());
        run.report(figures.latency(&mut latencies))?;
    }
    let mut latencies = Latencies::default();
    for _ in 0..COUNTS {
        run.progress("counting");
        tokio::time::sleep(COUNTS_SHARED).await;
        let began = Instant::now();
        client.call_json("get_counts", json!({})).await?;
        latencies.record(began.elapsed());
    }
    let figures = Figures::new().with("executions", run.arguments.tasks).with("filter", "counts");
    run.report(figures.latency(&mut latencies))?;
    subject.close().await
}

/// Things that filters refer to.
struct Facts {
    parent: Value,
    /// The middle of the time in which executions were created.
    middle: i64,
    /// When the last ones ended.
    ended: i64,
}

async fn now(client: &Client) -> Result<i64> {
    client.call_json("get_deployment", json!({})).await?["now"].as_i64().ok_or_else(|| "no time".into())
}

async fn fill(run: &Run<'_>, client: &Client) -> Result<Facts> {
    let began = now(client).await?;
    population::submit(run, client).await?;
    let middle = began + (now(client).await? - began) / 2;
    population::complete_some(run, client).await?;
    run.progress("failing, holding, spawning, scheduling");
    fail(client).await?;
    hold(client).await?;
    let parent = spawn(client).await?;
    schedule(client, began).await?;
    Ok(Facts { parent, middle, ended: now(client).await? - 60_000 })
}

/// Claims so many from a lane, for an hour.
async fn take(client: &Client, lane: &str, count: usize) -> Result<Vec<Value>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let args = json!({ "instance_id": lane, "lanes": [lane], "max_tasks": count - taken.len(), "wait_ms": 5_000,
            "lease_ttl_ms": HOUR_MS });
        let answer = client.call_json("claim", args).await?;
        let tasks = answer["tasks"].as_array().filter(|tasks| !tasks.is_empty()).ok_or("nothing to claim")?;
        taken.extend(tasks.iter().cloned());
    }
    Ok(taken)
}

async fn submit_few(client: &Client, lane: &str, count: usize) -> Result<()> {
    let request = json!({ "kind": lane, "lane": lane, "policy": { "retry": { "max_retries": 0 } } });
    client.call_json("create_executions", json!({ "executions": vec![request; count] })).await?;
    Ok(())
}

async fn fail(client: &Client) -> Result<()> {
    submit_few(client, "failing", FEW).await?;
    for task in take(client, "failing", FEW).await? {
        let args = json!({ "execution_id": task["execution_id"], "fence": task["fence"], "reason": "it does not work",
            "category": "permanent" });
        client.call_json("fail", args).await?;
    }
    Ok(())
}

async fn hold(client: &Client) -> Result<()> {
    submit_few(client, "held", FEW).await?;
    take(client, "held", FEW).await?;
    Ok(())
}

/// An execution with children.
async fn spawn(client: &Client) -> Result<Value> {
    submit_few(client, "parents", 1).await?;
    let parent = take(client, "parents", 1).await?.remove(0);
    let link = json!({ "execution_id": parent["execution_id"], "fence": parent["fence"] });
    for _ in 0..FEW {
        let child = json!({ "kind": "child", "lane": "children", "parent": link });
        client.call_json("create_execution", child).await?;
    }
    Ok(parent["execution_id"].clone())
}

/// A schedule with runs.
async fn schedule(client: &Client, from: i64) -> Result<()> {
    let template = json!({ "execution": { "kind": "scheduled", "lane": "scheduled" } });
    let (count, from) = (i64::try_from(FEW)?, from - from % HOUR_MS);
    let spec = json!({ "every_ms": HOUR_MS });
    let created = json!({ "name": "hourly", "spec": spec, "starts_at": from + HOUR_MS, "template": template });
    client.call_json("create_schedule", created).await?;
    let args = json!({ "name": "hourly", "from": from + HOUR_MS, "to": from + count * HOUR_MS });
    client.call_json("backfill_schedule", args).await?;
    loop {
        let runs = client.call_json("list_executions", json!({ "schedule": "hourly", "limit": FEW })).await?;
        if runs["items"].as_array().is_some_and(|items| items.len() == FEW) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn filters(facts: &Facts) -> Vec<(&'static str, Value)> {
    vec![
        ("everything", json!({})),
        ("everything, oldest first", json!({ "order": "oldest" })),
        ("a state", json!({ "state": ["completed"] })),
        ("two states", json!({ "state": ["waiting", "failed"] })),
        ("terminal", json!({ "terminal": true })),
        ("open", json!({ "open": true })),
        ("a kind", json!({ "kind": ["kind-3"] })),
        ("two kinds", json!({ "kind": ["kind-3", "kind-5"] })),
        ("a lane", json!({ "lane": ["lane-2"] })),
        ("a tag", json!({ "tag": ["customer=7"] })),
        ("a tag with two values", json!({ "tag": ["customer=7", "customer=8"] })),
        ("a tag in a state", json!({ "tag": ["customer=7"], "state": ["waiting"] })),
        ("a kind in a lane with a tag", json!({ "kind": ["kind-7"], "lane": ["lane-3"], "tag": ["customer=7"] })),
        ("created in the first half", json!({ "created_to": facts.middle })),
        ("created in the second half", json!({ "created_from": facts.middle, "order": "oldest" })),
        ("ended in the last minute", json!({ "ended_from": facts.ended })),
        ("ended before that", json!({ "ended_to": facts.ended })),
        ("a failure category", json!({ "failure_category": ["permanent"] })),
        ("a schedule", json!({ "schedule": "hourly" })),
        ("a worker", json!({ "worker": "held" })),
        ("a parent", json!({ "parent": facts.parent })),
        ("a kind that is not there", json!({ "kind": ["nothing"] })),
        ("a tag that is not there", json!({ "tag": ["customer=nobody"] })),
    ]
}

fn merge(base: &mut Value, more: Value) {
    if let (Value::Object(base), Value::Object(more)) = (base, more) {
        base.extend(more);
    }
}
