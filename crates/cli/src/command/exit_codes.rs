//! `ff help exit-codes`: what the exit codes mean. They never change.

use std::process::ExitCode;

use clap::CommandFactory;

/// The table, as `ff help exit-codes` shows it.
const TABLE: &str = "\
Programs may rely on these:
   0  it worked
   1  a defect, here or in the server: report it
   2  the command or its input is wrong; also malformed JSON, YAML or TOML, with line and column
   3  what was named does not exist, or not in this namespace
   4  the present state forbids it
   5  the lease or stream is no longer the caller's own
   6  a limit was reached
   7  no token, or no valid one
   8  the token does not allow this
   9  the server or its store cannot be reached, or cannot answer now
  10  the execution ended without success (wait, result, submit --wait)
  11  the time was up before it ended (--timeout)
  12  the doctor has warnings (doctor --strict)
  13  a question was answered with no, or could not be asked (approve, reject)
  14  a budget refused what was spent: its hard limit is met (task usage, task spend)
  15  what was to be waited for has come already: go on (task suspend)

With `-o json` a failure is a JSON object on standard error: {\"error\": {\"code\", \"message\", \"exit_code\", \"advice\",
\"details\"}}. The codes are those of the API.

Examples:
  ff exit-codes
  ff wait ID --timeout 30s; test $? -eq 11 && echo 'still running'
  ff get ID -o json 2>&1 >/dev/null | jq -r .error.code";

/// The arguments of `ff exit-codes`: none.
#[derive(Debug, clap::Args)]
#[command(after_help = TABLE)]
pub(crate) struct Arguments {}

/// Prints the table.
pub(crate) fn run() -> ExitCode {
    let mut command = crate::arguments::Arguments::command();
    let printed = command.find_subcommand_mut("exit-codes").map(clap::Command::print_help);
    if matches!(printed, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use ff_core::Code;

    use crate::failure;

    #[test]
    fn every_exit_code_stands_in_the_table() {
        let table = |code: u8| super::TABLE.lines().any(|line| line.starts_with(&format!("{code:>4}  ")));
        for code in Code::ALL {
            assert!(table(code.class().exit_code()), "{code}");
        }
        let own = [failure::ENDED_WITHOUT_SUCCESS, failure::TIME_RAN_OUT, failure::WARNINGS, failure::NOT_CONFIRMED];
        assert!([failure::BUDGET_SPENT, failure::GO_ON].into_iter().all(table));
        assert!(own.into_iter().all(table));
    }
}
