//! `ff hold`, `release`, `resume`, `priority`, `tag` and `rm`: what operators change about executions.

use flowfabric::ExecutionId;
use flowfabric::op::{RemoveExecution, remove_execution};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::input;
use crate::session::Session;

/// The arguments of `ff hold`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff hold ID --reason 'wait for the new prices'
  ff hold ID1 ID2

A running attempt goes on; nothing new starts until `ff release`.")]
pub(crate) struct Hold {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
    /// Why
    #[arg(long, default_value = "")]
    reason: String,
}

/// The arguments of `ff release`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ff release ID\n  ff release ID1 ID2")]
pub(crate) struct Release {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
}

/// The arguments of `ff resume`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff resume ID --reason 'the ticket is closed'

Its function finds the signals that it waits for ended without a payload. `ff signal` and `ff approve` send one.")]
pub(crate) struct Resume {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
    /// Why
    #[arg(long, default_value = "")]
    reason: String,
}

/// The arguments of `ff priority`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  ff priority 100 ID\n  ff priority 0 ID1 ID2")]
pub(crate) struct Priority {
    /// Higher goes first; clamped to 0..9000
    priority: i64,
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
}

/// The arguments of `ff tag`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff tag ID team=data stage=two         set two tags, others stay
  ff tag ID stage=                      take one away")]
pub(crate) struct Tag {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Tags to set; one without a value is taken away
    #[arg(value_name = "KEY=VALUE", value_parser = input::pair, required = true)]
    tags: Vec<(String, String)>,
}

/// The arguments of `ff rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff rm ID
  ff ls --state completed -o json | jq -r '.items[].execution_id' | xargs ff rm

Only what has ended goes. A member of a flow goes with its flow: `ff flow rm`.")]
pub(crate) struct Remove {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
}

/// The answer about one of several executions.
#[derive(Debug, Serialize)]
struct About<T> {
    execution_id: ExecutionId,
    #[serde(flatten)]
    answer: T,
}

/// Does the same to each, and says what became of it.
async fn each<T: Serialize>(
    session: &Session,
    ids: Vec<ExecutionId>,
    act: impl AsyncFn(flowfabric::Execution) -> flowfabric::Result<T>,
    text: impl Fn(&T) -> String,
) -> Result<()> {
    for execution_id in ids {
        let answer = act(session.client.execution(execution_id)).await;
        let answer = answer.map_err(|error| Failure::from(error).about(execution_id))?;
        let about = About { execution_id, answer };
        session.out.line(&about, |_| format!("{execution_id} {}", text(&about.answer)))?;
    }
    Ok(())
}

/// Holds.
pub(crate) async fn hold(session: Session, arguments: Hold) -> Result<()> {
    let act = async |execution: flowfabric::Execution| execution.hold(arguments.reason.clone()).await;
    each(&session, arguments.execution_ids, act, |answer| match answer.changed {
        true => "is held".into(),
        false => "was held before".into(),
    })
    .await
}

/// Lets go.
pub(crate) async fn release(session: Session, arguments: Release) -> Result<()> {
    let act = async |execution: flowfabric::Execution| execution.release().await;
    each(&session, arguments.execution_ids, act, |answer| match answer.changed {
        true => format!("is released: {}", answer.public_state),
        false => format!("was not held by an operator: {}", answer.public_state),
    })
    .await
}

/// Resumes.
pub(crate) async fn resume(session: Session, arguments: Resume) -> Result<()> {
    let act = async |execution: flowfabric::Execution| execution.resume(arguments.reason.clone()).await;
    each(&session, arguments.execution_ids, act, |answer| format!("is resumed: {}", answer.public_state)).await
}

/// Reorders.
pub(crate) async fn priority(session: Session, arguments: Priority) -> Result<()> {
    #[derive(Serialize)]
    struct Changed {
        priority: i64,
    }
    let act = async |execution: flowfabric::Execution| {
        let priority = execution.change_priority(arguments.priority).await?;
        Ok(Changed { priority })
    };
    each(&session, arguments.execution_ids, act, |answer| format!("has priority {}", answer.priority)).await
}

/// Tags.
pub(crate) async fn tag(session: Session, arguments: Tag) -> Result<()> {
    #[derive(Serialize)]
    struct Tagged {
        tags: flowfabric::Tags,
    }
    let act = async |execution: flowfabric::Execution| {
        let mut tags = execution.get().await?.tags;
        for (key, value) in &arguments.tags {
            match value.is_empty() {
                true => drop(tags.remove(key)),
                false => drop(tags.insert(key.clone(), value.clone())),
            }
        }
        Ok(Tagged { tags: execution.set_tags(tags).await? })
    };
    each(&session, vec![arguments.execution_id], act, |answer| {
        let tags: Vec<String> = answer.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if tags.is_empty() { "has no tags".into() } else { format!("is tagged {}", tags.join(" ")) }
    })
    .await
}

/// Removes.
pub(crate) async fn remove(session: Session, arguments: Remove) -> Result<()> {
    let client = session.client.clone();
    let act = async |execution: flowfabric::Execution| {
        client.call::<RemoveExecution>(remove_execution::Args { execution_id: execution.id() }).await
    };
    each(&session, arguments.execution_ids, act, |_| "is removed".into()).await
}
