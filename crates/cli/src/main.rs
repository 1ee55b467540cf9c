//! `ff`, FlowFabric's command line.
//!
//! Each command is one file in `command/`: what it takes, what it does, how its answer looks. Everything a command does
//! to a deployment goes through `flowfabric::Client`. Around it: where the deployment is (`target`), how answers are
//! written (`output`), and what a refusal looks like (`failure`).

mod arguments;
mod command;
mod dev;
mod failure;
mod flow_file;
mod input;
mod output;
mod profile;
mod progress;
mod session;
mod span;
mod stop;
mod submission;
mod target;
mod task;
mod watch;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// The engine makes many small and short-lived allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command::run(arguments::Arguments::parse().command)
}
