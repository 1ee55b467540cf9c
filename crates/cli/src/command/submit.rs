//! `ff submit`: hands in work.

use flowfabric::op::CreateResult;
use flowfabric::op::create_execution::Args;
use flowfabric::op::{CreateExecution, create_execution};
use flowfabric::{Client, JsonText, SdkError, limits};

use crate::command::result;
use crate::failure::{Failure, Result};
use crate::input::{self, Source};
use crate::progress::Bar;
use crate::session::Session;
use crate::span;
use crate::submission::Work;

/// What the command takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff submit greet '{\"name\": \"Ada\"}'              JSON as an argument
  ff submit transcode @job.json --lane media       from a file
  cat job.json | ff submit transcode -             from standard input
  ff submit ocr @scan.png --content-type image/png any bytes
  ff submit greet '\"Ada\"' --wait                   wait, and print the result
  ff submit greet --each @names.jsonl              one for each line

Prints the id, or with --wait the result.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    work: Work,
    /// Submit one for each line of the input, each a JSON value
    #[arg(long, requires = "input", conflicts_with_all = ["content_type", "wait", "idempotency_key"])]
    each: bool,
    /// Wait for the end and print the result
    #[arg(long, short)]
    wait: bool,
    /// The same key means the same execution, for a day
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Not before: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    delay: Option<i64>,
    /// It expires: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    deadline: Option<i64>,
}

/// Submits.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    if arguments.each {
        let source = arguments.work.input.as_ref().expect("clap requires the input with --each");
        return each(&session, arguments.with_times(arguments.work.request_without_input()?), source).await;
    }
    let request = arguments.with_times(arguments.work.request()?);
    let created = session.client.call::<CreateExecution>(request).await?;
    if created.duplicate {
        session.out.note("It was there already.");
    }
    if arguments.wait {
        // Whoever stops waiting knows what to ask for later.
        session.out.note(&format!("waiting for {}", created.execution_id));
        return result::wait_and_print(session.patient().await?, created.execution_id, None).await;
    }
    session.out.answer(&created, |_| created.execution_id.to_string())
}

impl Arguments {
    fn with_times(&self, request: Args) -> Args {
        Args {
            idempotency_key: self.idempotency_key.clone(),
            delay_until: self.delay,
            deadline_at: self.deadline,
            ..request
        }
    }
}

/// Everything is checked before anything is sent.
async fn each(session: &Session, request: Args, source: &Source) -> Result<()> {
    let text = source.read_text()?;
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        serde_json::from_str::<serde::de::IgnoredAny>(line)
            .map_err(|error| input::malformed(source.name(), index + 1, error.column(), &error))?;
        requests.push(Args { input: Some(JsonText(line.trim().to_owned())), ..request.clone() });
    }
    let bar = Bar::start(&session.out, requests.len(), "submitted");
    let mut refused = None;
    for batch in requests.chunks(limits::BATCH_CREATE_MAX) {
        for result in send(&session.client, batch).await? {
            match result {
                CreateResult::Created(created) => session.out.line(&created, |_| created.execution_id.to_string())?,
                CreateResult::Refused { error } => refused = Some(error),
            }
        }
        bar.advance(batch.len());
    }
    refused.map_or(Ok(()), |error| Err(Failure::from(SdkError::from(error))))
}

async fn send(client: &Client, batch: &[create_execution::Args]) -> Result<Vec<CreateResult>> {
    Ok(client.submit_all(batch.to_vec()).await?)
}
