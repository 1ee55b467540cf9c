//! `ff submit`: hands in work.

use flowfabric::op::create_execution::Args;
use flowfabric::op::create_executions::CreateResult;
use flowfabric::op::{CreateExecution, create_execution};
use flowfabric::{CapabilitySet, Client, JsonText, SdkError, limits};

use crate::command::result;
use crate::failure::{Failure, Result};
use crate::input::{self, Payload, SOURCE, Source};
use crate::progress::Bar;
use crate::session::Session;
use crate::span;

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
    /// What kind of work it is
    kind: String,
    /// What the worker gets: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    input: Option<Source>,
    /// The input is bytes of this type, not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Submit one for each line of the input, each a JSON value
    #[arg(long, requires = "input", conflicts_with_all = ["content_type", "wait", "idempotency_key"])]
    each: bool,
    /// Wait for the end and print the result
    #[arg(long, short)]
    wait: bool,
    /// The lane [default: default]
    #[arg(long)]
    lane: Option<String>,
    /// Higher goes first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// A tag for filters; may be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// The same key means the same execution, for a day
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Not before: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    delay: Option<i64>,
    /// It expires: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    deadline: Option<i64>,
    /// What a worker must be able to do; may be repeated
    #[arg(long = "require", value_name = "CAPABILITY")]
    capabilities: Vec<String>,
    /// A budget it is charged to; may be repeated
    #[arg(long = "budget", value_name = "NAME")]
    budgets: Vec<String>,
    /// The quota it runs under
    #[arg(long, value_name = "NAME")]
    quota: Option<String>,
    /// Retries, timeouts and the rest
    #[arg(long, value_name = SOURCE)]
    policy: Option<Source>,
}

/// Submits.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let request = request(&arguments)?;
    if arguments.each {
        let source = arguments.input.as_ref().expect("clap requires the input with --each");
        return each(&session, request, source).await;
    }
    let payload = Payload::read(arguments.input.as_ref(), arguments.content_type)?;
    let request =
        Args { input: payload.json, input_base64: payload.bytes, content_type: payload.content_type, ..request };
    let created = session.client.call::<CreateExecution>(request).await?;
    if created.duplicate {
        session.out.note("It was there already.");
    }
    if arguments.wait {
        return result::wait_and_print(session.patient().await?, created.execution_id, None).await;
    }
    session.out.answer(&created, |_| created.execution_id.to_string())
}

fn request(arguments: &Arguments) -> Result<Args> {
    let mut policy = match &arguments.policy {
        Some(source) => policy(source)?,
        None => flowfabric::Policy::default(),
    };
    // So that a program run by `ff worker` can say that no retry would help.
    policy.retry.spare_permanent();
    let capabilities = CapabilitySet::new(arguments.capabilities.iter().cloned()).map_err(SdkError::from)?;
    Ok(Args {
        kind: arguments.kind.clone(),
        lane: arguments.lane.clone(),
        priority: arguments.priority,
        tags: arguments.tags.iter().cloned().collect(),
        idempotency_key: arguments.idempotency_key.clone(),
        delay_until: arguments.delay,
        deadline_at: arguments.deadline,
        required_capabilities: capabilities,
        budget_ids: arguments.budgets.clone(),
        quota_policy_id: arguments.quota.clone(),
        policy: Some(policy),
        ..Args::default()
    })
}

fn policy(source: &Source) -> Result<flowfabric::Policy> {
    let text = source.read_text()?;
    serde_json::from_str(&text).map_err(|error| {
        input::malformed(&format!("policy {}", source.name()), error.line(), error.column(), &error)
            .advice("/openapi.json of the server describes policies: {\"retry\": {\"max_retries\": 1}}.")
    })
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
