//! `ff replay`: runs an execution that has ended once more.

use flowfabric::ExecutionId;

use crate::command::result;
use crate::failure::Result;
use crate::session::Session;

/// What the command takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff replay 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff replay ID --wait                   wait, and print the new result")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Wait for the end and print the result
    #[arg(long, short)]
    wait: bool,
}

/// Replays.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let id = arguments.execution_id;
    let answer = session.client.execution(id).replay().await?;
    if arguments.wait {
        return result::wait_and_print(session.patient().await?, id, None).await;
    }
    session.out.answer(&answer, |_| {
        format!("{id} is {} again: attempt {}, replay {}", answer.public_state, answer.attempt, answer.replay_count)
    })
}
