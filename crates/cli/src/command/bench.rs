//! `ff bench`: measures FlowFabric on a store, with the engine in this process. Work is done in namespaces of its own.

use std::process::ExitCode;

use ff_bench::{Error, NewFiles};

use crate::failure::{Failure, Result};
use crate::output::{Format, Output, When};

/// A program that is interrupted from the keyboard ends like this in every shell.
const INTERRUPTED: u8 = 130;

/// The arguments of `ff bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff bench throughput                                   on a new SQLite file, which is removed afterwards
  ff bench wake --store valkey://127.0.0.1:6379
  ff bench throughput --store postgres://localhost/flowfabric --via http --json
  ff bench growth --store sqlite:///var/tmp/bench.db --queued 1000,100000

Without an address, SQLite's file goes where temporary files go: set TMPDIR to a disk if that is memory. Work is done
in namespaces of its own, so a store in use keeps its queues to itself; its servers are slowed down all the same.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    own: ff_bench::Arguments,
    /// Text for people, or JSON for programs, as with --json
    #[arg(long, short, env = "FF_OUTPUT", value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Measures.
pub(crate) fn run(mut arguments: Arguments) -> ExitCode {
    if arguments.own.json {
        arguments.output = Format::Json;
    }
    arguments.own.json = arguments.output == Format::Json;
    match measure(&arguments.own) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            Output::new(arguments.output, When::Never).failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

fn measure(arguments: &ff_bench::Arguments) -> Result<()> {
    ff_bench::measure(arguments, &NewFiles(std::env::temp_dir())).map_err(|error| match error {
        Error::Usage(why) => Failure::usage(why),
        Error::Refused(refused) => Failure::from(refused),
        Error::Output(error) => Failure::from(error),
        Error::Interrupted => Failure::silent(INTERRUPTED),
        Error::Broken(why) => Failure::new(1, "internal", why),
    })
}
