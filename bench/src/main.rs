//! Benchmarks. Each scenario is a subcommand that prints a table, or with `--json` one object a line.
//!
//! Figures of one run may be compared with each other; those of two machines or two hours may not.

mod latency;
mod open;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What everything here may end with.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug, Parser)]
#[command(about = "Measures FlowFabric", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Commits per second of a store, for one committer and for many
    Store(store::Arguments),
}

fn main() -> ExitCode {
    let Scenario::Store(arguments) = Arguments::parse().scenario;
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(store::run(&arguments)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ff-bench: {why}");
            ExitCode::FAILURE
        }
    }
}
