//! `ff`, FlowFabric's command line. Each command has a file of its own.

mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// FlowFabric: durable execution for long-running, interruptible work.
#[derive(Parser)]
#[command(name = "ff", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server.
    Server(server::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Server(arguments) => server::run(arguments),
    }
}
