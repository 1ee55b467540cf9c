//! `ff task spend`: holds amounts in the task's budgets, runs a command, and settles what it really spent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Command, ExitStatus};

use ff_core::encoding::read_answer;
use ff_core::op::reserve_spend;

use super::call::{Call, SpendCall};
use super::step::NOT_DONE;
use super::{Worker, span};
use crate::failure::{self, Failure, Result};
use crate::input;
use crate::output::Output;

/// The variable with the path of the file into which a command writes what it spent.
const SPENT_FILE: &str = "FF_SPENT_FILE";

#[derive(Debug, clap::Args)]
pub(super) struct SpendArguments {
    /// The name of the spend; the same name under the same lease is the same reservation
    name: String,
    /// The highest cost that it may have
    #[arg(value_name = "DIMENSION=AMOUNT", required = true, value_parser = input::amount)]
    estimate: Vec<(String, i64)>,
    /// How long the amounts are held; after that they count as spent [default: 10m]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    ttl: Option<i64>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(worker: &mut Worker, out: &Output, arguments: SpendArguments) -> Result<()> {
    let SpendArguments { name, estimate, ttl, command } = arguments;
    let estimate: BTreeMap<String, i64> = estimate.into_iter().collect();
    let reserve =
        SpendCall::Reserve { key: name.clone(), amounts: estimate.clone(), ttl_ms: ttl.map(i64::unsigned_abs) };
    let answer = worker.call(&Call::Spend(reserve))?;
    let held = match read_answer(|| serde_json::from_slice(&answer)) {
        Ok(reserve_spend::Outcome::Reserved { budgets }) => !budgets.is_empty(),
        // Refused, or asked: then the worker lets the task go, and the program should end.
        Ok(_) => {
            out.bytes(&answer)?;
            return Err(Failure::silent(failure::BUDGET_SPENT));
        }
        Err(error) => return Err(Failure::new(1, "internal", format!("the worker's answer cannot be read: {error}"))),
    };
    let ended = execute(&command);
    if held {
        worker.call(&Call::Spend(match &ended {
            Ok((status, _)) if status.code() == Some(NOT_DONE) => SpendCall::Release { key: name },
            Ok((status, Some(actual))) if status.success() => SpendCall::Settle { key: name, actual: actual.clone() },
            // A command that says nothing, and one that failed on its way, may have spent everything.
            Ok(_) => SpendCall::Settle { key: name, actual: estimate },
            // It was never begun.
            Err(_) => SpendCall::Release { key: name },
        }))?;
    }
    let (status, _) = ended?;
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(Failure::silent(code.unwrap_or(1)))
}

/// Runs a command to its end, and reads what it says that it spent.
fn execute(command: &[OsString]) -> Result<(ExitStatus, Option<BTreeMap<String, i64>>)> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("spending needs a command: ff task spend NAME DIMENSION=AMOUNT -- COMMAND"));
    };
    let lost = |error: std::io::Error| Failure::usage(format!("{} cannot be run: {error}", program.display()));
    let file = tempfile::NamedTempFile::new().map_err(lost)?;
    let status = Command::new(program).args(arguments).env(SPENT_FILE, file.path()).status().map_err(lost)?;
    let said = std::fs::read_to_string(file.path()).map_err(lost)?;
    let mut actual = BTreeMap::new();
    for word in said.split_whitespace() {
        match input::amount(word) {
            Ok((dimension, amount)) => *actual.entry(dimension).or_insert(0) += amount,
            // A bill that cannot be read is not taken for a smaller one.
            Err(_) => return Ok((status, None)),
        }
    }
    Ok((status, (!actual.is_empty()).then_some(actual)))
}
