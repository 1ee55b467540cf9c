//! `ff decide`: answers a question about a step of an execution.

use ff_core::execution::StepAnswer;
use ff_core::journal::StepIdentity;
use flowfabric::ExecutionId;
use flowfabric::op::{DecideStep, decide_step};

use crate::failure::Result;
use crate::input::{Payload, SOURCE, Source};
use crate::session::Session;

/// The arguments of `ff decide`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff explain ID                         what is asked, and what speaks for one answer or another
  ff decide ID happened '{\"receipt\": 7}'
  ff decide ID did_not_happen --step pay
  ff decide ID run_again                drop what was recorded from the step on

A step in doubt takes happened, did_not_happen or fail. A step that the program no longer fits takes keep, run_again
or fail. Steps that were taken for a loop take go_on or fail.")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// happened, did_not_happen, keep, run_again, go_on or fail
    #[arg(value_parser = answer)]
    answer: StepAnswer,
    /// The result of a step that happened: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    result: Option<Source>,
    /// The result is bytes of this type, not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The step, where more than one question is open
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// The key of the step
    #[arg(long, requires = "step")]
    key: Option<String>,
    /// Which call of the name it is, from 0, when it has no key
    #[arg(long, value_name = "NUMBER", requires = "step", conflicts_with = "key")]
    occurrence: Option<u32>,
    /// The reason, for people who read the journal
    #[arg(long)]
    reason: Option<String>,
}

fn answer(text: &str) -> Result<StepAnswer, String> {
    let known = || StepAnswer::ALL.iter().map(|answer| answer.as_str()).collect::<Vec<_>>().join(", ");
    StepAnswer::parse(text).ok_or_else(|| format!("the answers are {}", known()))
}

/// Answers.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let Arguments { execution_id, answer, result, content_type, step, key, occurrence, reason } = arguments;
    let payload = Payload::read(result.as_ref(), content_type)?;
    let args = decide_step::Args {
        execution_id,
        step: step.map(|name| StepIdentity { name, key, occurrence }),
        answer,
        result: payload.json,
        result_base64: payload.bytes,
        content_type: payload.content_type,
        reason,
        command_id: None,
    };
    let decided = session.client.call::<DecideStep>(args).await?;
    let then = if decided.public_state.is_terminal() { "has ended" } else { "goes on" };
    session.out.answer(&decided, |_| format!("{}: {answer}, the execution {then}", decided.step.label()))
}
