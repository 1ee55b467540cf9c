//! Budgets and quotas: how fast usage is reported, and what admission costs.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use ff_core::budget::Limits;
use ff_core::op;
use flowfabric::{ClaimedTask, FlowFabricWorker, WorkerConfig, limits};
use tokio::task::JoinSet;

use super::throughput::{WORKERS, end_to_end};
use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{all, drain, per_second, submission, submit_each, take_one};

/// Workers that report, unless said otherwise.
const REPORTERS: usize = 64;
/// The budget and the quota that everything is under. Their limits are out of reach: what is measured is the looking.
const SHARED: &str = "shared";
const DIMENSION: &str = "tokens";

/// Reports and reservations on one budget, then tasks without and with a budget and a quota.
pub(crate) async fn budget(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    let hard = Limits { hard: limits::USAGE_MAX, ..Default::default() };
    let dimensions = [(DIMENSION.to_owned(), hard)].into();
    client.create_budget(op::create_budget::Args { name: SHARED.into(), dimensions, ..Default::default() }).await?;
    client
        .create_quota(op::create_quota::Args {
            name: SHARED.into(),
            max_requests: Some(limits::QUOTA_REQUESTS_MAX),
            max_concurrent: Some(limits::QUOTA_CONCURRENT_MAX),
            ..Default::default()
        })
        .await?;
    reports(run, &subject).await?;
    spends(run, &subject).await?;
    admission(run, &subject).await?;
    subject.close().await
}

/// Workers with a task each, all of them charged to one budget.
async fn holders(run: &Run<'_>, subject: &Subject) -> Result<Vec<ClaimedTask>> {
    let mut tasks = Vec::new();
    for _ in 0..run.arguments.workers_or(REPORTERS) {
        let worker = FlowFabricWorker::connect(&subject.client, WorkerConfig::new("bench")).await?;
        subject.client.submit("bench").budget(SHARED).send().await?;
        tasks.push(worker.claim_next().await?.ok_or("nothing to claim")?);
    }
    Ok(tasks)
}

/// Workers report usage, each as often as it can.
async fn reports(run: &Run<'_>, subject: &Subject) -> Result<()> {
    let (reports, workers) = (run.arguments.tasks, run.arguments.workers_or(REPORTERS));
    run.progress(&format!("{reports} usage reports by {workers} workers"));
    let tasks = holders(run, subject).await?;
    let left = Arc::new(AtomicUsize::new(reports));
    let before = subject.spent().await?;
    let began = Instant::now();
    let mut reporting = JoinSet::new();
    for task in tasks {
        let left = left.clone();
        reporting.spawn(async move {
            while take_one(&left) {
                task.report_usage([(DIMENSION, 1)], None).await?;
            }
            task.complete(&()).await?;
            Ok(())
        });
    }
    all(reporting).await?;
    let took = began.elapsed();
    let after = subject.spent().await?;
    let figures = Figures::new()
        .with("reports", reports)
        .with("workers", workers)
        .measured("reports_per_s", per_second(reports, took));
    run.report(after.each(before, reports, figures))
}

/// Workers spend in two steps: each spend is a reservation and its settlement.
async fn spends(run: &Run<'_>, subject: &Subject) -> Result<()> {
    let (spends, workers) = (run.arguments.tasks, run.arguments.workers_or(REPORTERS));
    run.progress(&format!("{spends} reservations and settlements by {workers} workers"));
    let tasks = holders(run, subject).await?;
    let left = Arc::new(AtomicUsize::new(spends));
    let before = subject.spent().await?;
    let began = Instant::now();
    let mut spending = JoinSet::new();
    for task in tasks {
        let left = left.clone();
        spending.spawn(async move {
            let mut number = 0_u64;
            while take_one(&left) {
                let key = number.to_string();
                task.reserve(key.as_str(), [(DIMENSION, 2)], None).await?;
                task.settle(key, [(DIMENSION, 1)]).await?;
                number += 1;
            }
            task.complete(&()).await?;
            Ok(())
        });
    }
    all(spending).await?;
    let took = began.elapsed();
    let after = subject.spent().await?;
    let figures = Figures::new()
        .with("spends", spends)
        .with("workers", workers)
        .measured("reserve_and_settle_per_s", per_second(spends, took));
    run.report(after.each(before, spends, figures))
}

/// Runs the tasks without and with a budget and a quota.
async fn admission(run: &Run<'_>, subject: &Subject) -> Result<()> {
    let (tasks, workers) = (run.arguments.tasks, run.arguments.workers_or(WORKERS));
    run.progress(&format!("{tasks} tasks without budget and quota"));
    let before = subject.spent().await?;
    let free = end_to_end(run, subject).await?;
    let after = subject.spent().await?;
    let line = |governed: bool, took: Duration| {
        let figures = Figures::new().with("tasks", tasks).with("workers", workers).with("budget_and_quota", governed);
        figures.measured("end_to_end_per_s", per_second(tasks, took))
    };
    run.report(after.each(before, tasks, line(false, free)))?;
    run.progress(&format!("{tasks} tasks with budget and quota"));
    let before = subject.spent().await?;
    let began = Instant::now();
    let governed = |_| op::create_execution::Args {
        budget_ids: vec![SHARED.into()],
        quota_policy_id: Some(SHARED.into()),
        ..submission()
    };
    tokio::try_join!(
        submit_each(&subject.client, tasks, run.arguments.submitters, governed),
        drain(&subject.client, tasks, workers)
    )?;
    let took = began.elapsed();
    let after = subject.spent().await?;
    let figures = line(true, took).measured("of_rate_without", free.as_secs_f64() / took.as_secs_f64());
    run.report(after.each(before, tasks, figures))
}
