//! Benchmarks. Each scenario is a subcommand that prints a table, or with `--json` one object a line.
//!
//! Figures of one run may be compared with each other; those of two machines or two hours may not.

mod bloat;
mod engine;
mod flow;
mod footprint;
mod idle;
mod latency;
mod open;
mod postgres;
mod store;
mod subject;
mod suspend;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// As in the product: the engine makes many small and short-lived allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Empty tasks per second through the engine: submit, claim, complete
    Throughput(engine::Arguments),
    /// From submit to the task in the hand of an idle worker
    Wake(engine::Arguments),
    /// What idle workers cost the store
    Idle(engine::Arguments),
    /// Sizes of Postgres tables before and after many (`--tasks`) tasks, and after a vacuum
    Bloat(engine::Arguments),
    /// Bytes of the server's memory for each waiting and each completed execution
    Footprint(engine::Arguments),
    /// From a signal to the suspended task back in hand, at 1 and at 64 at a time
    SuspendResume(engine::Arguments),
    /// Claims per second with few and with many (`--tasks`) queued
    Growth(engine::Arguments),
    /// How many (`--tasks`) behind a budget that is used up delay the one that may run
    Blocked(engine::Arguments),
    /// A flow of one, then many (`--tasks`, as far as one graph may be large), then one
    Fan(engine::Arguments),
    /// Chains of ten: one at a time, and a hundred at once
    Chain(engine::Arguments),
    /// One success cancels 9, 99 and 999 others
    QuorumCancel(engine::Arguments),
}

async fn run(scenario: &Scenario) -> Result<()> {
    match scenario {
        Scenario::Store(arguments) => store::run(arguments).await,
        Scenario::Throughput(arguments) => engine::throughput(arguments).await,
        Scenario::Wake(arguments) => engine::wake(arguments).await,
        Scenario::Idle(arguments) => idle::run(arguments).await,
        Scenario::Bloat(arguments) => bloat::run(arguments).await,
        Scenario::Footprint(arguments) => footprint::run(arguments).await,
        Scenario::SuspendResume(arguments) => suspend::suspend_resume(arguments).await,
        Scenario::Growth(arguments) => engine::growth(arguments).await,
        Scenario::Blocked(arguments) => engine::blocked(arguments).await,
        Scenario::Fan(arguments) => flow::fan(arguments).await,
        Scenario::Chain(arguments) => flow::chain(arguments).await,
        Scenario::QuorumCancel(arguments) => flow::quorum_cancel(arguments).await,
    }
}

fn main() -> ExitCode {
    let scenario = Arguments::parse().scenario;
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(&scenario)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ff-bench: {why}");
            ExitCode::FAILURE
        }
    }
}
