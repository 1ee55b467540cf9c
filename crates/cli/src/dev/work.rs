//! The work of the demo's worker: five kinds that pretend to write a report.

use std::time::Duration;

use flowfabric::{
    Client, Condition, ConditionMatcher, Frame, Result, RunningWorker, SuspendReason, SuspendRequest, TaskContext,
    TaskError, TimeoutBehavior, WorkerConfig, WorkerRuntime, policy,
};
use serde::{Deserialize, Serialize};

use super::scenery;

/// The demo's own lane, so that it takes no other work.
pub(super) const LANE: &str = "demo";
/// The topics of the report, and what research finds out about each.
pub(super) const TOPICS: [(&str, &str); 3] = [
    ("leases", "Work is handed out under a lease, and a worker that loses the lease loses the right to write."),
    ("signals", "A task can wait for a person for days while it holds no worker, and goes on where it was."),
    ("budgets", "Every token is charged to a budget, once, and what is over its budget does not start."),
];
/// Time to see things happen.
const PACE: Duration = Duration::from_millis(40);
/// The cost of one research.
const RESEARCH_TOKENS: i64 = 120;

/// A finding of research.
#[derive(Debug, Serialize, Deserialize)]
struct Finding {
    topic: String,
    finding: String,
}

/// The decision of a person.
#[derive(Debug, Serialize, Deserialize)]
struct Review {
    approved: bool,
    by: String,
}

/// Starts the worker.
pub(super) async fn start(client: &Client) -> Result<RunningWorker> {
    let config = WorkerConfig::new("demo").lanes([LANE]).max_concurrent_tasks(4);
    WorkerRuntime::new(config)
        .drain(Duration::from_secs(2))
        .register("plan", plan)
        .register("research", research)
        .register("draft", draft)
        .register("review", review)
        .register("publish", publish)
        .register("agent", scenery::agent)
        .register("flaky", scenery::flaky)
        .register("refuse", scenery::refuse)
        .register("note", scenery::note)
        .start(client)
        .await
}

async fn plan(_task: TaskContext, subject: String) -> Result<Vec<String>, TaskError> {
    let topics = TOPICS.map(|(topic, _)| format!("{topic} in {subject}"));
    Ok(topics.to_vec())
}

async fn research(task: TaskContext, topic: String) -> Result<Finding, TaskError> {
    let (_, finding) = TOPICS
        .iter()
        .find(|(known, _)| *known == topic)
        .ok_or_else(|| TaskError::new(format!("nothing is known about {topic}")).category(policy::PERMANENT))?;
    for pct in [25, 50, 75] {
        tokio::time::sleep(PACE * 2).await;
        task.update_progress(pct, format!("reading about {topic}")).await?;
    }
    // The key makes it count once, also if this attempt is repeated.
    task.report_usage([("tokens", RESEARCH_TOKENS)], Some(format!("{}-research", task.execution_id()))).await?;
    Ok(Finding { topic, finding: (*finding).to_owned() })
}

/// Reads what its upstreams found, and writes it word by word.
async fn draft(task: TaskContext, _input: Option<()>) -> Result<String, TaskError> {
    let mut text = String::new();
    for upstream in task.upstreams().await? {
        let Some(result) = upstream.result else { continue };
        let finding: Finding = serde_json::from_slice(&result.bytes)?;
        for word in finding.finding.split_inclusive(' ').chain([" "]) {
            task.emit(Frame::text("token", word)).await?;
            text.push_str(word);
            tokio::time::sleep(PACE).await;
        }
    }
    let tokens = i64::try_from(text.split_whitespace().count()).unwrap_or(i64::MAX);
    task.report_usage([("tokens", tokens)], Some(format!("{}-draft", task.execution_id()))).await?;
    Ok(text.trim_end().to_owned())
}

/// Waits for a person. It is called twice: to ask, and with the answer.
async fn review(task: TaskContext, _input: Option<()>) -> Result<Review, TaskError> {
    let mut signals = task.resume_signals().to_vec();
    if signals.is_empty() {
        let either = Condition::Any(["approve", "reject"].map(ConditionMatcher::named).to_vec());
        let request = SuspendRequest::until(either, SuspendReason::Approval)
            .detail("publish the report?")
            .timeout(Duration::from_secs(24 * 3600), TimeoutBehavior::Fail);
        signals = task.suspend(request).await?;
    }
    let Some(decision) = signals.first() else { return Err(TaskError::new("resumed without a decision")) };
    if decision.name != "approve" {
        return Err(TaskError::new("the report was rejected").category(policy::PERMANENT));
    }
    Ok(Review { approved: true, by: decision.source_identity.clone() })
}

async fn publish(task: TaskContext, _input: Option<()>) -> Result<String, TaskError> {
    task.update_progress(100, "on its way").await?;
    Ok("the report is published".to_owned())
}
