//! `ff task step`: runs a command once, and prints what it printed.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use ff_core::{Blob, limits};

use super::Worker;
use super::call::{Call, OnDoubt, StepCall, StepEnd, StepTurn};
use crate::failure::{Failure, Result};
use crate::output::Output;

/// The exit code by which a command says for certain that nothing happened, and that it may be tried again.
pub(super) const NOT_DONE: i32 = 75;

#[derive(Debug, clap::Args)]
pub(super) struct StepArguments {
    /// The name of the step; it is known by this, never by its place in the program
    name: String,
    /// Tells steps of one name apart; commands that run at the same time need one
    #[arg(long)]
    key: Option<String>,
    /// The command has an effect that must not happen twice: that it begins is recorded first
    #[arg(long)]
    once: bool,
    /// What becomes of the step when it is not known whether the command did it
    #[arg(long, requires = "once", value_name = "WHAT", default_value = "fail")]
    on_doubt: OnDoubt,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(worker: &mut Worker, out: &Output, arguments: StepArguments) -> Result<()> {
    let StepArguments { name, key, once, on_doubt, command } = arguments;
    let turn = worker.call(&Call::Step(StepCall { name, key, once, on_doubt }))?;
    let step = match serde_json::from_slice(&turn) {
        Ok(StepTurn::Done(output)) => return out.raw(&output.0),
        Ok(StepTurn::Run(step)) => step,
        Err(error) => return Err(Failure::new(1, "internal", format!("the worker's answer cannot be read: {error}"))),
    };
    let started = Instant::now();
    let (status, output) = match execute(&command) {
        Ok(ended) => ended,
        Err(failure) => {
            worker.call(&Call::StepEnded { step, end: StepEnd::Failed })?;
            return Err(failure);
        }
    };
    if !status.success() {
        let end = if status.code() == Some(NOT_DONE) { StepEnd::NotDone } else { StepEnd::Failed };
        worker.call(&Call::StepEnded { step, end })?;
        out.raw(&output)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Err(Failure::silent(code.unwrap_or(1)));
    }
    // Rounded up: a step that took no time at all would read as one whose time is not known.
    let took_ms = i64::try_from(started.elapsed().as_micros().div_ceil(1_000)).unwrap_or(i64::MAX);
    // Printed after it is recorded: what the program goes on with is what it will find again.
    let end = StepEnd::Printed { output: Blob(output.clone().into()), took_ms };
    worker.call(&Call::StepEnded { step, end })?;
    out.raw(&output)
}

/// Runs a command to its end; what it prints is kept, up to what a step may have for a result.
fn execute(command: &[OsString]) -> Result<(ExitStatus, Vec<u8>)> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("a step needs a command: ff task step NAME -- COMMAND"));
    };
    let lost = |error: std::io::Error| Failure::usage(format!("{} cannot be run: {error}", program.display()));
    let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().map_err(lost)?;
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let most = u64::try_from(limits::STEP_RESULT_MAX_BYTES).unwrap_or(u64::MAX);
        stdout.take(most.saturating_add(1)).read_to_end(&mut output).map_err(lost)?;
    }
    if output.len() > limits::STEP_RESULT_MAX_BYTES {
        let _ = child.kill();
        let _ = child.wait();
        let detail = format!("the step printed more than {} bytes", limits::STEP_RESULT_MAX_BYTES);
        return Err(Failure::usage(detail).advice("Write it to a file or a bucket, and print where it is."));
    }
    Ok((child.wait().map_err(lost)?, output))
}
