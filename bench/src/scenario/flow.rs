//! Scenarios with flows: a fan, a chain, and a quorum that cancels the rest.

use std::time::{Duration, Instant};

use ff_core::join::{JoinPolicy, OnSatisfied, Quorum};
use ff_core::op::create_flow::Outcome;
use ff_core::op::{self, Claim, CreateFlow, GetFlow};
use ff_core::op::{GraphEdge, NodeRequest};
use ff_core::{ExecutionId, FlowId, PublicState, index, limits};
use flowfabric::{Client, SdkError};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::throughput::WORKERS;
use crate::arguments::Calls;
use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{claim_args, claim_one, complete, complete_and_take, drain, milliseconds, per_second, submission};

/// Links of a chain.
const LINKS: usize = 10;
/// Chains one after another, and at once.
const CHAINS: usize = 100;
/// Siblings of the first that succeeds.
const SIBLINGS: [usize; 3] = [10, 100, 1_000];
/// How often each number of siblings is measured.
const ROUNDS: usize = 10;
/// Completions a slow listener may lag behind.
const BACKLOG: usize = 65_536;

fn node(name: String) -> NodeRequest {
    NodeRequest { name, request: submission(), join: None }
}

fn edge(from: String, to: String) -> GraphEdge {
    GraphEdge { from, to, ..Default::default() }
}

async fn create(client: &Client, nodes: Vec<NodeRequest>, edges: Vec<GraphEdge>) -> Result<(FlowId, Vec<ExecutionId>)> {
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let graph = op::create_flow::Args { kind: Some("bench".into()), nodes, edges, ..Default::default() };
    let outcome = client.call::<CreateFlow>(graph).await?;
    let (Outcome::Created { flow_id, executions, .. } | Outcome::AlreadyExists { flow_id, executions, .. }) = outcome
    else {
        return Err(SdkError::Unreadable(format!("{outcome:?}")).into());
    };
    let ids = names.iter().filter_map(|name| executions.get(name).copied()).collect();
    Ok((flow_id, ids))
}

/// Workers that take whatever there is, and tell of what they completed.
fn work(client: &Client, workers: usize, calls: Calls) -> (JoinSet<()>, broadcast::Sender<ExecutionId>) {
    let (done, _) = broadcast::channel(BACKLOG);
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let (client, done) = (client.clone(), done.clone());
        working.spawn(async move {
            let mut next = None;
            loop {
                let task = match next {
                    Some(task) => task,
                    None => match claim_one(&client, claim_args(worker, 5_000)).await {
                        Ok(task) => task,
                        Err(_) => return,
                    },
                };
                next = match complete_and_take(&client, worker, &task, calls).await {
                    Ok(next) => next,
                    Err(_) => return,
                };
                // No receiver waits for most of them.
                let _ = done.send(task.execution_id);
            }
        });
    }
    (working, done)
}

/// One chain, from its creation until its last link has completed.
async fn run_chain(client: &Client, mut done: broadcast::Receiver<ExecutionId>) -> Result<Duration> {
    let names = || (0..LINKS).map(|number| format!("link-{number}"));
    let began = Instant::now();
    let (_, ids) =
        create(client, names().map(node).collect(), names().zip(names().skip(1)).map(|(a, b)| edge(a, b)).collect())
            .await?;
    let last = ids.last().copied();
    while Some(done.recv().await?) != last {}
    Ok(began.elapsed())
}

/// A chain of ten: one at a time, then a hundred at once.
pub(crate) async fn chain(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = subject.client.clone();
    let workers = run.arguments.workers_or(WORKERS);
    let (working, done) = work(&client, workers, run.arguments.calls);
    run.progress(&format!("{CHAINS} chains one after another, then at once"));
    let mut alone = Latencies::default();
    for _ in 0..CHAINS {
        alone.record(run_chain(&client, done.subscribe()).await?);
    }
    let mut running = JoinSet::new();
    let began = Instant::now();
    for _ in 0..CHAINS {
        let (client, done) = (client.clone(), done.subscribe());
        running.spawn(async move { run_chain(&client, done).await });
    }
    let mut together = Latencies::default();
    while let Some(took) = running.join_next().await {
        together.record(took??);
    }
    let took = began.elapsed();
    run.report(
        Figures::new()
            .with("links", LINKS)
            .with("workers", workers)
            .with("at_once", CHAINS)
            .latency(&mut alone)
            .measured("flows_per_s", per_second(CHAINS, took))
            .measured("at_once_p99_ms", together.percentile_ms(99)),
    )?;
    drop(working);
    subject.close().await
}

/// One of many is enough: from its success until the last of the others is cancelled.
pub(crate) async fn quorum_cancel(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    for siblings in SIBLINGS {
        let mut latencies = Latencies::default();
        for round in 0..ROUNDS {
            run.progress(&format!("{siblings} siblings, round {round} of {ROUNDS}"));
            latencies.record(cancel_siblings(&subject, siblings).await?);
        }
        run.report(Figures::new().with("siblings", siblings).latency(&mut latencies))?;
    }
    subject.close().await
}

async fn cancel_siblings(subject: &Subject, siblings: usize) -> Result<Duration> {
    let client = &subject.client;
    // The largest graph that one call may carry has room for one child beside its upstreams.
    let siblings = siblings.min(limits::GRAPH_NODES_MAX - 1);
    let names = || (0..siblings).map(|number| format!("sibling-{number}"));
    let quorum = Quorum { k: 1, on_satisfied: OnSatisfied::CancelRemaining, ..Default::default() };
    let child = NodeRequest { join: Some(JoinPolicy::Quorum(quorum)), ..node("child".into()) };
    let nodes = names().map(node).chain([child]).collect();
    let (flow, _) = create(client, nodes, names().map(|name| edge(name, "child".into())).collect()).await?;
    let first = client.call::<Claim>(claim_args(0, 5_000)).await?.tasks;
    let began = Instant::now();
    for task in &first {
        complete(client, task).await?;
    }
    let cancelled = index::member(flow.uuid, PublicState::Cancelled);
    let others = u64::try_from(siblings).unwrap_or(u64::MAX) - 1;
    while subject.engine.store().count(flow.partition(), cancelled.clone(), i64::MIN, i64::MAX).await? < others {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    // The child is left; the next round must not find it.
    drain(client, 1, 1).await?;
    Ok(took)
}

/// A flow of one, then many, then one: from its creation to its end.
pub(crate) async fn fan(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = subject.client.clone();
    // The largest graph that one call may carry has room for this many between the first and the last.
    let width = run.arguments.tasks.min(limits::GRAPH_NODES_MAX - 2);
    let middle = || (0..width).map(|number| format!("middle-{number}"));
    let nodes = ["first".to_owned(), "last".to_owned()].into_iter().chain(middle()).map(node).collect();
    let edges = middle().flat_map(|name| [edge("first".into(), name.clone()), edge(name, "last".into())]).collect();
    let commits = || subject.engine.metrics().commits.snapshot().0.iter().sum::<u64>();
    let before = commits();
    let began = Instant::now();
    let (flow_id, _) = create(&client, nodes, edges).await?;
    let (created, create_commits) = (began.elapsed(), commits() - before);
    let workers = run.arguments.workers_or(WORKERS);
    drain(&client, width + 2, workers).await?;
    let total = began.elapsed();
    let ended = client.call::<GetFlow>(op::get_flow::Args { flow_id }).await?.state;
    run.report(
        Figures::new()
            .with("width", width)
            .with("workers", workers)
            .with("flow", ended.as_str())
            .measured("create_ms", milliseconds(created))
            .measured("create_commits", create_commits as f64)
            .measured("total_ms", milliseconds(total))
            .measured("commits", (commits() - before) as f64)
            .measured("members_per_s", per_second(width + 2, total)),
    )?;
    subject.close().await
}
