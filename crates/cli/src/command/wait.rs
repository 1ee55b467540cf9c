//! `ff wait`: waits until executions have ended.

use std::time::Duration;

use flowfabric::{ExecutionId, ExecutionView, PublicState};
use serde::Serialize;

use crate::failure::{self, Failure, Result};
use crate::output::{Cell, Style, Table, public_state};
use crate::progress::Bar;
use crate::session::Session;
use crate::span;

/// The arguments of `ff wait`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff wait 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff wait ID --timeout 30s              exit code 11 when it has not ended by then
  ff wait $(ff ls --kind import -o json | jq -r '.items[].execution_id')

The exit code is 0 only if all of them completed, and 10 if one ended otherwise.")]
pub(crate) struct Arguments {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    execution_ids: Vec<ExecutionId>,
    /// How long to wait for all of them [default: as long as it takes]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Answer {
    items: Vec<ExecutionView>,
    /// The executions that had not ended in time.
    pending: Vec<ExecutionId>,
}

/// Waits.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let session = session.patient().await?;
    let millis = arguments.timeout.map(|timeout| u64::try_from(timeout).unwrap_or(0));
    let deadline = millis.map(|millis| tokio::time::Instant::now() + Duration::from_millis(millis));
    let bar = Bar::start(&session.out, arguments.execution_ids.len(), "ended");
    let mut answer = Answer { items: Vec::new(), pending: Vec::new() };
    // One after another takes as long as all at once: the later ones end meanwhile.
    for id in &arguments.execution_ids {
        match ended(&session, *id, deadline).await.map_err(|failure| failure.about(id))? {
            Some(view) => answer.items.push(view),
            None => answer.pending.push(*id),
        }
        bar.advance(1);
    }
    drop(bar);
    session.out.answer(&answer, |style| text(&answer, style))?;
    if let Some(first) = answer.pending.first() {
        return Err(Failure::new(failure::TIME_RAN_OUT, "time_ran_out", format!("{first} has not ended in time"))
            .advice(format!("`ff explain {first}` says why.")));
    }
    let all = answer.items.iter().all(|view| view.public_state == PublicState::Completed);
    if all { Ok(()) } else { Err(Failure::silent(failure::ENDED_WITHOUT_SUCCESS)) }
}

async fn ended(
    session: &Session,
    id: ExecutionId,
    deadline: Option<tokio::time::Instant>,
) -> Result<Option<ExecutionView>> {
    let execution = session.client.execution(id);
    Ok(match deadline {
        None => Some(execution.wait().await?),
        Some(deadline) => execution.wait_for(deadline.saturating_duration_since(tokio::time::Instant::now())).await?,
    })
}

fn text(answer: &Answer, style: Style) -> String {
    let mut table = Table::new(["EXECUTION", "STATE", "ENDED", "FAILURE"]);
    for view in &answer.items {
        table.row([
            Cell::of(view.execution_id),
            Cell::coloured(view.public_state, public_state(view.public_state)),
            Cell::maybe_at(view.completed_at),
            Cell::maybe(view.last_failure.as_ref().map(|failure| &failure.reason)),
        ]);
    }
    table.text(style, "")
}
