//! The project's tool box.
//!
//! `cargo xtask test` installs what the tests need and runs all of them; `cargo xtask bench` measures.

mod again;
mod all;
mod compare;
mod dashboard;
mod growth;
mod house;
mod profile;
mod program;
mod redteam;
mod schemathesis;
mod sdks;
mod server;
mod setup;

use std::num::NonZeroUsize;
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", filters @ ..] => test(filters),
        ["tidy"] => tidy(),
        ["tidy", "house"] => house(),
        ["dashboard"] => report(dashboard::build()),
        ["dashboard", "test", filters @ ..] => report(dashboard::test(filters, program::build())),
        ["screenshots"] => report(dashboard::screenshots()),
        ["bench", "all", rest @ ..] => all::all(rest),
        ["bench", "compare", rest @ ..] => compare::compare(rest),
        ["bench", "growth", rest @ ..] => growth::growth(rest),
        ["bench", "profile", rest @ ..] => profile::profile(rest),
        ["bench", "allocations", rest @ ..] => bench("ff-bench-counting", &[&["throughput"], rest].concat()),
        ["bench", rest @ ..] => bench("ff-bench", rest),
        ["sim", rest @ ..] => sim(rest),
        ["recovery", rest @ ..] => torture(&[&["recovery"], rest].concat()),
        ["torture", rest @ ..] => torture(rest),
        ["kill", rest @ ..] => kill(rest),
        ["redteam", rest @ ..] => redteam::run(rest),
        ["schemathesis", rest @ ..] => schemathesis::run(rest),
        ["sdks", names @ ..] => sdks::check(names, program::build()),
        _ => {
            eprintln!(
                "usage: cargo xtask test [FILTER] | tidy [house] | sim [--seeds N | --seed S] [--steps N] [--jobs N] [--planted]"
            );
            eprintln!("       cargo xtask dashboard [test [FILE]] | screenshots");
            eprintln!("       cargo xtask recovery [--store valkey,postgres] [--minutes N]");
            eprintln!(
                "       cargo xtask torture [--store sqlite,valkey,replicated,cluster,postgres] [--faults NAME,NAME] [--minutes N] [--rows 1,2,.. [--full]] [--control]"
            );
            eprintln!("       cargo xtask kill [TIMES]");
            eprintln!("       cargo xtask redteam [SECONDS]");
            eprintln!("       cargo xtask schemathesis [-n CASES] [--seed S]");
            eprintln!("       cargo xtask sdks [NAME]");
            eprintln!("       cargo xtask bench SCENARIO [--store sqlite|valkey|postgres|URL] [--json]");
            eprintln!("       cargo xtask bench allocations [--store STORE]");
            eprintln!("       cargo xtask bench all [--store STORE,STORE]");
            eprintln!("       cargo xtask bench growth [--store STORE,STORE] [--quick] [--out FOLDER]");
            eprintln!("       cargo xtask bench profile [--store STORE] [--via process|http] [--out FOLDER]");
            eprintln!("       cargo xtask bench compare [--quick] [--only NAME,NAME] [--rounds N] [--out FOLDER]");
            ExitCode::from(2)
        }
    }
}

/// Kills the agent of the examples at every boundary of its steps, at least so often on SQLite and on Valkey.
fn kill(rest: &[&str]) -> ExitCode {
    let times = rest.first().copied().unwrap_or("100");
    let tests = ["test", "--package", "flowfabric", "--test", "examples", "killed_at_every_step", "--", "--nocapture"];
    let mut command = Command::new("cargo");
    command.args(["build", "--package", "flowfabric", "--example", "agent_loop"]);
    if !matches!(command.status(), Ok(status) if status.success()) {
        return ExitCode::FAILURE;
    }
    match Command::new("cargo").args(tests).env("FF_KILLS", times).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Everything the gate checks: format, lints, the freshness of built files, every test, the SDKs in other languages, and
/// the dashboard in a browser. A filter is for our own tests.
fn test(filters: &[&str]) -> ExitCode {
    if let Err(why) = setup::install_missing() {
        eprintln!("cannot set up the tests: {why}");
        return ExitCode::FAILURE;
    }
    let tidied = timed("format, house and lints", tidy);
    if tidied != ExitCode::SUCCESS {
        return tidied;
    }
    if !filters.is_empty() {
        return run("cargo", &[&["test", "--workspace", "--no-fail-fast"], filters].concat());
    }
    if let Err(why) = timed("the dashboard's files", dashboard::check_fresh) {
        return report(Err(why));
    }
    let tested = timed("Rust", test_workspace);
    let checked = timed("SDKs", || sdks::check(&[], program::of_tests()));
    let shown = timed("the dashboard", || report(dashboard::test(&[], program::of_tests())));
    [tested, checked, shown].into_iter().find(|done| *done != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS)
}

/// Does a part of the gate, and says how long it took.
fn timed<T>(name: &str, part: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = part();
    println!("{name}: {} s", began.elapsed().as_secs());
    done
}

/// Every Rust test. A few that fail are run again, alone. Most wait for servers that they started, so that more of them
/// than there are cores run at once.
fn test_workspace() -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        plain(command.args(["test", "--workspace", "--no-fail-fast"]).args(arguments));
        command.env("RUST_TEST_THREADS", (2 * cores).to_string());
        command
    };
    let tested = again::watch(&mut cargo(&[])).and_then(|(status, said)| {
        if status.success() {
            return Ok(());
        }
        let failed = again::failed_in_cargo(&said)?;
        let names: Vec<&str> = failed.iter().map(String::as_str).collect();
        again::look_again(&failed, || cargo(&[&["--", "--exact", "--test-threads=1"], names.as_slice()].concat()))
    });
    match tested {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("the tests: {why}");
            ExitCode::FAILURE
        }
    }
}

fn report(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("the dashboard: {why}");
            ExitCode::FAILURE
        }
    }
}

/// One of our scenarios, with the usual allocator or with one that counts.
fn bench(program: &str, arguments: &[&str]) -> ExitCode {
    run("cargo", &[&["run", "--release", "--package", "ff-bench", "--bin", program, "--"], arguments].concat())
}

/// The simulator. Its planted bugs are compiled in only when they are asked for.
fn sim(arguments: &[&str]) -> ExitCode {
    let planted: &[&str] = if arguments.contains(&"--planted") { &["--features", "planted"] } else { &[] };
    run("cargo", &[&["run", "--quiet", "--release", "--package", "ff-sim"], planted, &["--"], arguments].concat())
}

/// Campaigns of faults. The program starts itself again as the workers of a campaign.
fn torture(arguments: &[&str]) -> ExitCode {
    run("cargo", &[&["run", "--quiet", "--package", "ff-torture", "--"], arguments].concat())
}

/// Arrows between modules and crates, sizes of files, stray files.
fn house() -> ExitCode {
    if house::is_in_order() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Format, the order of the house, and lints, as strict as the gate.
fn tidy() -> ExitCode {
    let formatted = run("cargo", &["fmt", "--all", "--check"]);
    if formatted != ExitCode::SUCCESS {
        eprintln!("run `cargo fmt --all`");
        return formatted;
    }
    let ordered = house();
    if ordered != ExitCode::SUCCESS {
        return ordered;
    }
    let linted = run("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"]);
    if linted != ExitCode::SUCCESS {
        return linted;
    }
    // Tests turn the schemas of core on; the program that people install has core without them.
    run("cargo", &["clippy", "--package", "ff-core", "--quiet", "--", "--deny", "warnings"])
}

fn run(program: &str, arguments: &[&str]) -> ExitCode {
    match plain(Command::new(program).args(arguments)).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("cannot run {program}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A program of a suite, which ends with its children when it hangs and no person watches. A person can interrupt it
/// instead, and a program in a group of its own would not hear that.
fn bounded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    /// Several times what the longest suite takes.
    const SUITE_MAX_S: &str = "1200";
    if std::env::var_os("CI").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("timeout");
    command.args(["--verbose", "--kill-after=30", SUITE_MAX_S]).arg(program);
    command
}

/// The variables that cargo set for us must not reach it again: some packages would be built anew for it. Where nobody
/// builds a second time nothing is kept for that, and no debugger comes: both would take more of the disk than everything
/// else, and a part of the time.
fn plain(command: &mut Command) -> &mut Command {
    if std::env::var_os("CI").is_some() {
        command.envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "none")]);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}
