//! A deployment that has something to show on every screen.

use std::time::Duration;

use ff_core::op;
use flowfabric::{Client, FlowFabricWorker, SuspendOutcome, SuspendRequest, WorkerConfig};
use serde_json::{Value, json};

use super::super::population::{self, LANES};
use crate::error::Result;
use crate::run::Run;

/// Executions that failed, and questions that people are asked.
const FAILED: usize = 100;
const ASKED: usize = 100;
/// Worker processes that are alive.
const ALIVE: usize = 10;
/// Rows of a list that a window shows.
const ROWS: usize = 20;
/// Budgets, and as many quotas, providers, schedules, subscriptions and hooks.
const BUDGETS: usize = 20;
/// Between two runs of a schedule: none starts anything while it is measured.
const YEAR_MS: i64 = 31_536_000_000;
/// A graph of so many nodes: the most that one call makes.
const LAYERS: usize = 20;
const LAYER: usize = 50;

/// The deployment that screens are opened for.
pub(super) struct Deployment {
    /// An execution with an attempt, a failure and an input.
    pub(super) execution: Value,
    pub(super) flow: Value,
    /// Executions that wait, as many as a window shows: each row asks why.
    pub(super) rows: Vec<Value>,
    /// An instant after most executions were created.
    pub(super) minute_ago: i64,
    workers: Vec<FlowFabricWorker>,
}

impl Deployment {
    pub(super) async fn fill(run: &Run<'_>, client: &Client) -> Result<Self> {
        population::submit(run, client).await?;
        population::complete_some(run, client).await?;
        run.progress("failing, asking, budgets, a flow");
        let failed = fail(client).await?;
        ask(client).await?;
        govern(client).await?;
        let flow = flow(client).await?;
        let mut workers = Vec::new();
        for number in 0..ALIVE {
            let lane = format!("lane-{}", number % LANES);
            workers.push(FlowFabricWorker::connect(client, WorkerConfig::new("bench").lanes([&lane])).await?);
        }
        let waiting = json!({ "state": ["waiting"], "order": "oldest", "limit": ROWS });
        let listed = client.call_json("list_executions", waiting).await?;
        let rows = listed["items"].as_array().ok_or("a list without items")?;
        let rows = rows.iter().map(|row| row["execution_id"].clone()).collect();
        let now = client.call_json("get_deployment", json!({})).await?["now"].as_i64().ok_or("no time")?;
        Ok(Self { execution: failed, flow, rows, minute_ago: now - 60_000, workers })
    }

    /// Ends its workers: their heartbeats are no cost of a dashboard.
    pub(super) async fn stop(self) -> Result<()> {
        for worker in self.workers {
            worker.stop(Duration::from_secs(1)).await?;
        }
        Ok(())
    }
}

/// Executions that failed for good; gives the id of one.
async fn fail(client: &Client) -> Result<Value> {
    let worker = FlowFabricWorker::connect(client, WorkerConfig::new("bench").lanes(["failing"])).await?;
    let mut last = Value::Null;
    for _ in 0..FAILED {
        let policy = json!({ "retry": { "max_retries": 0 } });
        let args = json!({ "kind": "failing", "lane": "failing", "input": { "a": 1 }, "policy": policy });
        last = client.call_json("create_execution", args).await?["execution_id"].clone();
        let task = worker.claim_next().await?.ok_or("nothing to claim")?;
        task.fail("it does not work", "permanent").await?;
    }
    worker.stop(Duration::from_secs(1)).await?;
    Ok(last)
}

/// Questions that wait for people.
async fn ask(client: &Client) -> Result<()> {
    let worker = FlowFabricWorker::connect(client, WorkerConfig::new("bench").lanes(["asking"])).await?;
    for _ in 0..ASKED {
        client.submit("asking").lane("asking").send().await?;
        let task = worker.claim_next().await?.ok_or("nothing to claim")?;
        let SuspendOutcome::Suspended { .. } = task.suspend(SuspendRequest::question("go on?")).await? else {
            return Err("the suspension was over before it began".into());
        };
    }
    worker.stop(Duration::from_secs(1)).await?;
    Ok(())
}

async fn govern(client: &Client) -> Result<()> {
    for number in 0..BUDGETS {
        let budget =
            json!({ "name": format!("team-{number}"), "dimensions": { "tokens": { "hard": 1_000, "soft": 500 } } });
        client.call_json("create_budget", budget).await?;
        let quota = op::create_quota::Args {
            name: format!("api-{number}"),
            max_requests: Some(60),
            max_concurrent: Some(4),
            ..Default::default()
        };
        client.create_quota(quota).await?;
        let provider = json!({ "name": format!("model-{number}"), "max_requests": 60, "max_concurrent": 4 });
        client.call_json("create_provider", provider).await?;
        let create = json!({ "execution": { "kind": "told", "lane": "idle" } });
        let spec = json!({ "every_ms": YEAR_MS });
        let schedule = json!({ "name": format!("yearly-{number}"), "spec": spec, "template": create });
        client.call_json("create_schedule", schedule).await?;
        let filter = json!({ "kinds": ["none"] });
        let subscription = json!({ "name": format!("alarm-{number}"), "filter": filter, "target": create });
        client.call_json("create_subscription", subscription).await?;
        client.call_json("create_hook", json!({ "name": format!("hook-{number}"), "target": create })).await?;
    }
    let look = json!({ "filter": { "kind": ["failing"] }, "action": "replay", "dry_run": true });
    client.call_json("create_bulk", look).await?;
    Ok(())
}

/// Layers in which each node waits for two of the layer before; gives the id of the flow.
async fn flow(client: &Client) -> Result<Value> {
    let name = |layer: usize, place: usize| format!("n{layer}-{}", place % LAYER);
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    for layer in 0..LAYERS {
        for place in 0..LAYER {
            nodes.push(json!({ "name": name(layer, place), "request": { "kind": "node", "lane": "lane-0" } }));
            if layer > 0 {
                for from in [place, place + 1] {
                    edges.push(json!({ "from": name(layer - 1, from), "to": name(layer, place) }));
                }
            }
        }
    }
    let created = client.call_json("create_flow", json!({ "kind": "graph", "nodes": nodes, "edges": edges })).await?;
    Ok(created["flow_id"].clone())
}
