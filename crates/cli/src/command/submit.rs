//! `ff submit`: hands in work.

use flowfabric::op::create_execution::Args;
use flowfabric::op::{CreateExecution, CreateResult, Debounce, Singleton, create_execution};
use flowfabric::{Client, JsonText, SdkError, limits};

use crate::command::result;
use crate::failure::{Failure, Result};
use crate::input::{self, Source};
use crate::progress::Bar;
use crate::session::Session;
use crate::span;
use crate::submission::Work;

/// The arguments of `ff submit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff submit greet '{\"name\": \"Ada\"}'              JSON as an argument
  ff submit transcode @job.json --lane media       from a file
  cat job.json | ff submit transcode -             from standard input
  ff submit ocr @scan.png --content-type image/png any bytes
  ff submit greet '\"Ada\"' --wait                   wait, and print the result
  ff submit greet --each @names.jsonl              one for each line
  ff submit report --singleton nightly             not while one waits or runs
  ff submit index --debounce doc-7=2s              only the last of a burst
  ff submit sync --concurrency acme=1 --fair-key acme
  ff submit agent --budget team --estimate tokens=2000

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
    /// While one with this key waits or runs, that one is the answer
    #[arg(long, value_name = "KEY", conflicts_with_all = ["debounce", "each"])]
    singleton: Option<String>,
    /// Starts when no other with this key came for SPAN, in the place of the one before
    #[arg(long, value_name = "KEY=SPAN", value_parser = debounce, conflicts_with_all = ["delay", "each"])]
    debounce: Option<(String, i64)>,
    /// Put off a debounced burst for no longer than this [default: ten times the span]
    #[arg(long, value_name = "SPAN", value_parser = span::parse, requires = "debounce")]
    max_wait: Option<i64>,
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
    if let Some(superseded) = created.superseded {
        session.out.note(&format!("It takes the place of {superseded}."));
    }
    if arguments.wait {
        // A person who stops waiting knows which execution to ask for later.
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
            singleton: self.singleton.clone().map(|key| Singleton { key }),
            debounce: self.debounce.clone().map(|(key, wait_ms)| Debounce { key, wait_ms, max_wait_ms: self.max_wait }),
            ..request
        }
    }
}

/// A debounce key and its span, which is what follows the last `=`.
fn debounce(text: &str) -> std::result::Result<(String, i64), String> {
    let (key, wait) = text.rsplit_once('=').ok_or("expected KEY=SPAN, such as index=2s")?;
    Ok((key.to_owned(), span::parse(wait)?))
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
                CreateResult::Unknown(variant) => session.out.line(&variant, |_| variant.json().to_owned())?,
            }
        }
        bar.advance(batch.len());
    }
    refused.map_or(Ok(()), |error| Err(Failure::from(SdkError::from(error))))
}

async fn send(client: &Client, batch: &[create_execution::Args]) -> Result<Vec<CreateResult>> {
    Ok(client.submit_all(batch.to_vec()).await?)
}
