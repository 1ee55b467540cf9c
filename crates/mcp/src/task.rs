//! Tasks of the protocol. A task is an execution: its id, its state, its questions and its result are the execution's.

use std::str::FromStr;

use ff_core::op::view::ExecutionView;
use ff_core::op::{CancelExecution, GetDeployment, GetExecution, cancel_execution, get_deployment, get_execution};
use ff_core::{Code, Error, ExecutionId, PublicState, Result, limits};
use rmcp::model::{DetailedTask, InputResponses, JsonObject, Task, TaskPayload, TaskStatus};
use serde_json::Value;

use crate::deployment::Deployment;
use crate::question::{self, Question};
use crate::result;

/// How often a client is asked to look.
const POLL_INTERVAL_MS: u64 = 1_000;

/// A task as it is now, with what its state brings along.
pub(crate) async fn get(deployment: &impl Deployment, id: &str) -> Result<DetailedTask> {
    let view = find(deployment, id).await?;
    let payload = match status(&view) {
        TaskStatus::Cancelled => TaskPayload::Cancelled,
        TaskStatus::Failed => TaskPayload::Failed { error: object(&result::error(&view))? },
        TaskStatus::Completed => TaskPayload::Completed { result: object(&result::of(deployment, &view).await?)? },
        TaskStatus::InputRequired => {
            TaskPayload::InputRequired { input_requests: question::requests(&question::open(&view))? }
        }
        _ => TaskPayload::Working,
    };
    let mut task = seed(&view);
    if let Some(completed_at) = view.completed_at {
        task.ttl_ms = Some(kept_for(deployment, &view, completed_at).await?);
    }
    Ok(DetailedTask::new(task, payload))
}

/// Hands over answers. Answers to questions that are no longer asked are passed over.
pub(crate) async fn update(deployment: &impl Deployment, id: &str, answers: &InputResponses) -> Result<()> {
    let view = find(deployment, id).await?;
    question::take_answers(deployment, &view, answers).await
}

/// Cancels it; one that has ended stays as it is.
pub(crate) async fn cancel(deployment: &impl Deployment, id: &str) -> Result<()> {
    let reason = Some("its task was cancelled".to_owned());
    let args = cancel_execution::Args::from_outside(parse(id)?, reason);
    deployment.call::<CancelExecution>(args).await.map(drop)
}

/// A task without its payload.
pub(crate) fn seed(view: &ExecutionView) -> Task {
    let (created, updated) = (instant(view.created_at), instant(view.updated_at));
    let task = Task::new(view.execution_id.to_string(), status(view), created, updated);
    let task = task.with_poll_interval_ms(POLL_INTERVAL_MS);
    match message(view) {
        Some(message) => task.with_status_message(message),
        None => task,
    }
}

/// A failure that a worker reported is a result for the model to read; one that no worker reported is an error of the
/// protocol.
fn status(view: &ExecutionView) -> TaskStatus {
    match view.public_state {
        PublicState::Cancelled => TaskStatus::Cancelled,
        state if state.is_terminal() && result::is_ended_by_engine(view) => TaskStatus::Failed,
        state if state.is_terminal() => TaskStatus::Completed,
        _ if !question::open(view).is_empty() => TaskStatus::InputRequired,
        _ => TaskStatus::Working,
    }
}

fn message(view: &ExecutionView) -> Option<String> {
    let questions: Vec<String> = question::open(view).iter().map(Question::text).collect();
    if !questions.is_empty() {
        return Some(questions.join("\n"));
    }
    let progress = view.progress.as_ref().and_then(|progress| progress.message.clone());
    progress.or_else(|| view.blocking_detail.clone()).filter(|message| !message.is_empty())
}

async fn find(deployment: &impl Deployment, id: &str) -> Result<ExecutionView> {
    deployment.call::<GetExecution>(get_execution::Args { execution_id: parse(id)? }).await
}

fn parse(id: &str) -> Result<ExecutionId> {
    ExecutionId::from_str(id).map_err(|_| Error::of(Code::ExecutionNotFound).with("taskId", id))
}

/// How long after its creation a task that has ended is kept: until the retention of its execution is over.
async fn kept_for(deployment: &impl Deployment, view: &ExecutionView, completed_at: i64) -> Result<u64> {
    let retention_ms = match view.policy.retention_ms {
        Some(retention_ms) => retention_ms,
        None => {
            let deployment = deployment.call::<GetDeployment>(get_deployment::Args {}).await?;
            deployment.retention_ms.unwrap_or(limits::RETENTION_DEFAULT_MS)
        }
    };
    Ok((completed_at - view.created_at).saturating_add(retention_ms).max(0).unsigned_abs())
}

fn object(value: &impl serde::Serialize) -> Result<JsonObject> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Error::new(Code::Internal, "a result cannot be written")),
    }
}

/// An instant as the protocol writes it.
fn instant(at_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(at_ms).unwrap_or_default().to_string()
}
