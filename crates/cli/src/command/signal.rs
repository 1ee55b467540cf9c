//! `ff signal`: sends a signal to an execution.

use ff_core::op::parts::Secret;
use flowfabric::{ExecutionId, SignalEffect, SignalOutcome, WaitpointId};

use crate::failure::Result;
use crate::input::{Payload, SOURCE, Source};
use crate::session::Session;
use crate::span;

/// The arguments of `ff signal`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff signal 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e approve
  ff signal ID tool_result @answer.json
  ff signal ID callback '{\"status\": 200}' --waitpoint WP --waitpoint-token TOKEN

With the token of a waitpoint every sender may signal; without one it takes an operator.")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// The name of the signal
    name: String,
    /// Its payload: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    payload: Option<Source>,
    /// The payload is bytes of this type, not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The waitpoint, where there is more than one
    #[arg(long, value_name = "ID")]
    waitpoint: Option<WaitpointId>,
    /// The token of the waitpoint
    #[arg(long, value_name = "TOKEN", requires = "waitpoint", value_parser = secret)]
    waitpoint_token: Option<Secret>,
    /// The same key means the same signal, for a day
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The name of the sender
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// How long the execution waits before it goes on
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    resume_delay: Option<i64>,
}

fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret(text.to_owned()))
}

/// Sends it.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let payload = Payload::read(arguments.payload.as_ref(), arguments.content_type)?;
    let signal = session.client.execution(arguments.execution_id).signal(&arguments.name).with(|args| {
        args.payload = payload.json;
        args.payload_base64 = payload.bytes;
        args.content_type = payload.content_type;
        args.waitpoint_id = arguments.waitpoint;
        args.token = arguments.waitpoint_token;
        args.idempotency_key = arguments.idempotency_key;
        args.source_type = arguments.source.is_some().then(|| "cli".to_owned());
        args.source_identity = arguments.source;
        args.resume_delay_ms = arguments.resume_delay;
    });
    let outcome = signal.send().await?;
    session.out.answer(&outcome, |_| text(&arguments.name, &outcome))
}

/// The effect of a signal, for people.
pub(crate) fn text(name: &str, outcome: &SignalOutcome) -> String {
    match outcome {
        SignalOutcome::TriggeredResume { .. } => format!("{name}: taken, the execution goes on"),
        SignalOutcome::Accepted { effect, .. } => format!("{name}: {}", effect_text(*effect)),
        SignalOutcome::Duplicate { existing_signal_id } => format!("{name}: was sent before as {existing_signal_id}"),
        SignalOutcome::Unknown(variant) => format!("{name}: {}", variant.json()),
    }
}

fn effect_text(effect: SignalEffect) -> &'static str {
    match effect {
        SignalEffect::AppendedToWaitpoint => "taken, the execution waits for more",
        SignalEffect::ResumeConditionSatisfied => "taken, the execution goes on",
        SignalEffect::Buffered => "kept until the execution waits for it",
        SignalEffect::NoOp => "taken, but nothing waits for a signal of this name",
        SignalEffect::Unknown(word) => word.as_str(),
    }
}
