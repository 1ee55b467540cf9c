//! `ff result`: fetches the result of an execution.

use std::path::PathBuf;

use flowfabric::op::{GetResult, get_result};
use flowfabric::{Content, ExecutionId};

use crate::failure::{Failure, Result};
use crate::progress::Spinner;
use crate::session::Session;

/// The arguments of `ff result`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff result 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff result ID --wait | jq .
  ff result ID --out picture.png        bytes are written as they are
  ff result ID -o json                  with content type, as base64 and, if it is JSON, as it is")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Wait until it has ended
    #[arg(long, short)]
    wait: bool,
    /// Write to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Fetches it.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    if arguments.wait {
        return wait_and_print(session.patient().await?, arguments.execution_id, arguments.out).await;
    }
    let args = get_result::Args { execution_id: arguments.execution_id };
    let content = session.client.call::<GetResult>(args).await?;
    print(&session, &content, arguments.out)
}

/// Waits for the end of an execution and prints its result.
pub(crate) async fn wait_and_print(session: Session, execution_id: ExecutionId, file: Option<PathBuf>) -> Result<()> {
    let spinner = Spinner::start(&session.out, format!("waiting for {execution_id}"));
    let content = session.client.execution(execution_id).result_content().await;
    drop(spinner);
    print(&session, &content?, file)
}

fn print(session: &Session, content: &Content, file: Option<PathBuf>) -> Result<()> {
    if let Some(file) = file {
        return std::fs::write(&file, &content.bytes)
            .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", file.display())));
    }
    if session.out.is_json() {
        return session.out.answer(content, |_| String::new());
    }
    session.out.bytes(&content.bytes)
}
