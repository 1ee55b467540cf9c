//! `ff fork`: makes a new execution that begins with the journal of another one.

use ff_core::journal::StepIdentity;
use flowfabric::ExecutionId;
use flowfabric::op::{ForkExecution, fork_execution};

use crate::command::result;
use crate::failure::Result;
use crate::input::{Payload, SOURCE, Source};
use crate::session::Session;

/// The arguments of `ff fork`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff fork ID --before write             do the step anew, and what follows it
  ff fork ID '{\"model\": \"small\"}' --before draft --wait
  ff diff ID FORK                       what came out differently")]
pub(crate) struct Arguments {
    /// The execution to fork; it stays as it is
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// The input of the new one: JSON, @FILE, or - for standard input [default: the same]
    #[arg(value_name = SOURCE)]
    input: Option<Source>,
    /// The input is bytes of this type, not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Keep what was recorded before this step [default: everything]
    #[arg(long, value_name = "NAME")]
    before: Option<String>,
    /// The key of the step
    #[arg(long, requires = "before")]
    key: Option<String>,
    /// Which call of the name it is, from 0, when it has no key
    #[arg(long, value_name = "NUMBER", requires = "before", conflicts_with = "key")]
    occurrence: Option<u32>,
    /// Wait for the end and print the result
    #[arg(long, short)]
    wait: bool,
}

/// Forks.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let Arguments { execution_id, input, content_type, before, key, occurrence, wait } = arguments;
    let payload = Payload::read(input.as_ref(), content_type)?;
    let args = fork_execution::Args {
        execution_id,
        before_step: before.map(|name| StepIdentity { name, key, occurrence }),
        input: payload.json,
        input_base64: payload.bytes,
        content_type: payload.content_type,
        tags: None,
        budget_ids: None,
        command_id: None,
    };
    let forked = session.client.call::<ForkExecution>(args).await?;
    if wait {
        return result::wait_and_print(session.patient().await?, forked.execution_id, None).await;
    }
    session.out.answer(&forked, |_| forked.execution_id.to_string())
}
