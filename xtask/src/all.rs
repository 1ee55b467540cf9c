//! `cargo xtask bench all`: every scenario once, small, on each store. It shows that they work, not how fast we are.

use std::process::{Command, ExitCode};

use crate::compare::systems;

/// One scenario may take this long.
const SCENARIO_MAX_S: &str = "300";
/// Unless said otherwise.
const STORES: &str = "sqlite,valkey,postgres";

/// A scenario, how much of it, and the only store it is for, if there is one.
type Small = (&'static str, &'static [&'static str], Option<&'static str>);

const SCENARIOS: [Small; 21] = [
    ("throughput", &["--tasks", "2000"], None),
    ("wake", &[], None),
    ("suspend-resume", &[], None),
    ("steady", &["--tasks", "2000", "--seconds", "5"], None),
    ("chain", &[], None),
    ("fan", &["--tasks", "500"], None),
    ("routed", &["--tasks", "2000"], None),
    ("quorum-cancel", &[], None),
    ("idle", &["--seconds", "5"], None),
    ("stream", &["--tasks", "2000", "--viewers", "200"], None),
    ("budget", &["--tasks", "2000"], None),
    ("ceiling", &[], None),
    ("growth", &["--queued", "1000,5000"], None),
    ("renew", &["--tasks", "2000", "--seconds", "15"], None),
    ("blocked", &["--tasks", "2000"], None),
    ("footprint", &["--tasks", "5000", "--input-bytes", "100"], None),
    ("bloat", &["--tasks", "5000", "--seconds", "30"], Some("postgres")),
    ("store", &["--seconds", "3"], None),
    ("search", &["--tasks", "5000"], None),
    ("schedules", &["--tasks", "500"], None),
    ("bulk", &["--tasks", "5000"], None),
];

/// Runs them all; those that fail are named at the end.
pub(crate) fn all(arguments: &[&str]) -> ExitCode {
    let stores = match arguments {
        [] => STORES,
        ["--store", stores] => stores,
        _ => {
            eprintln!("usage: cargo xtask bench all [--store STORE,STORE]");
            return ExitCode::from(2);
        }
    };
    if let Err(why) = systems::enter_workspace().and_then(|()| systems::build()) {
        eprintln!("cannot measure: {why}");
        return ExitCode::FAILURE;
    }
    let mut failed = Vec::new();
    for store in stores.split(',') {
        for (scenario, size, only) in SCENARIOS {
            // An address begins with the kind of its store, as a rule.
            if only.is_some_and(|only| !store.starts_with(only)) {
                continue;
            }
            let mut bounded = Command::new("timeout");
            bounded.args(["--foreground", "--kill-after=30", SCENARIO_MAX_S]).arg(systems::program());
            bounded.args([scenario, "--store", store, "--repetitions", "1"]).args(size);
            println!("\n== {scenario} on {}", store.split("://").next().unwrap_or(store));
            if !bounded.status().is_ok_and(|status| status.success()) {
                failed.push(scenario);
            }
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("failed: {}", failed.join(" "));
    ExitCode::FAILURE
}
