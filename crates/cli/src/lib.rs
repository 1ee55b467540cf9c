//! `ff`, FlowFabric's command line.
//!
//! Each command is one file in `command/`: what it takes, what it does, how its answer looks. Everything a command does
//! to a deployment goes through `flowfabric::Client`. Around it: where the deployment is (`target`), how answers are
//! written (`output`), and what a refusal looks like (`failure`).
//!
//! The program itself (`main.rs`) only calls [`main`]: cargo begins with a library as soon as it knows what those below it
//! offer, and with a program only when they are all compiled.

mod arguments;
mod command;
mod dev;
mod failure;
mod flow_file;
mod input;
mod output;
mod profile;
mod progress;
mod selection;
mod session;
mod span;
mod stop;
mod submission;
mod target;
mod task;
mod watch;
mod word_order;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// Carries out the command that the process was started with.
pub fn main() -> ExitCode {
    match arguments::Arguments::try_parse_from(word_order::arrange(std::env::args_os())) {
        Ok(arguments) => command::run(arguments.command),
        Err(error) if error.use_stderr() && asks_for_json(std::env::args()) => {
            let words = error.to_string();
            let mut lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
            let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let failure = failure::Failure::usage(first).with("text", words.as_str());
            output::Output::new(output::Format::Json, output::When::Never).failure(&failure);
            ExitCode::from(failure.exit_code)
        }
        Err(error) => error.exit(),
    }
}

/// Whether arguments that cannot be read ask for JSON.
fn asks_for_json(arguments: impl Iterator<Item = String>) -> bool {
    let arguments: Vec<String> = arguments.take_while(|argument| argument != "--").collect();
    let joined = |argument: &String| matches!(argument.as_str(), "-ojson" | "-o=json" | "--output=json");
    let apart = arguments.windows(2).any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json");
    apart || arguments.iter().any(joined)
}
