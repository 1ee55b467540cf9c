//! `ff cancel`: cancels executions.

use flowfabric::ExecutionId;
use flowfabric::op::cancel_execution::Outcome;
use flowfabric::op::{CancelExecution, cancel_execution};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::session::Session;
use crate::span;

/// The arguments of `ff cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff cancel 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e --reason 'no longer needed'
  ff cancel ID1 ID2 ID3

One that has ended keeps its outcome; that is no error.")]
pub(crate) struct Arguments {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
    /// Why
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Cancelled {
    execution_id: ExecutionId,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Cancels.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    for execution_id in arguments.execution_ids {
        let args = cancel_execution::Args::from_outside(execution_id, arguments.reason.clone());
        let outcome = session.client.call::<CancelExecution>(args).await;
        let outcome = outcome.map_err(|error| Failure::from(error).about(execution_id))?;
        let answer = Cancelled { execution_id, outcome };
        session.out.line(&answer, |_| text(&answer))?;
    }
    Ok(())
}

fn text(answer: &Cancelled) -> String {
    let id = answer.execution_id;
    match &answer.outcome {
        Outcome::Cancelled { cancelled_at } => format!("{id} cancelled at {}", span::instant(*cancelled_at)),
        Outcome::AlreadyTerminal { public_state } => format!("{id} had ended before: {public_state}"),
        Outcome::Unknown(variant) => format!("{id}: {}", variant.json()),
    }
}
