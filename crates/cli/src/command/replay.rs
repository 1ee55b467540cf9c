//! `ff replay`: runs an execution that has ended once more.

use ff_core::journal::StepIdentity;
use flowfabric::ExecutionId;
use flowfabric::op::{ReplayExecution, replay_execution};

use crate::command::result;
use crate::failure::Result;
use crate::session::Session;

/// The arguments of `ff replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff replay 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff replay ID --wait                   wait, and print the new result
  ff replay ID --from-step write        keep what it did before the step")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Keep what its journal has before the first entry of this step, and run the rest again
    #[arg(long, value_name = "NAME")]
    from_step: Option<String>,
    /// The key of the step
    #[arg(long, requires = "from_step")]
    key: Option<String>,
    /// Wait for the end and print the result
    #[arg(long, short)]
    wait: bool,
}

/// Replays.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let id = arguments.execution_id;
    let from_step = arguments.from_step.map(|name| StepIdentity { name, key: arguments.key, occurrence: None });
    let args = replay_execution::Args { execution_id: id, from_step, command_id: None };
    let answer = session.client.call::<ReplayExecution>(args).await?;
    if arguments.wait {
        return result::wait_and_print(session.patient().await?, id, None).await;
    }
    session.out.answer(&answer, |_| {
        format!("{id} is {} again: attempt {}, replay {}", answer.public_state, answer.attempt, answer.replay_count)
    })
}
