//! Every scenario, small, in memory: it ends, and says what it measured. How fast is no matter here.
#![cfg(feature = "servers")]

use std::process::{Command, Output};

use clap::ValueEnum;
use ff_bench::Scenario;
use serde_json::Value;

/// How little of a scenario is enough.
fn size(scenario: Scenario) -> &'static [&'static str] {
    match scenario {
        Scenario::Throughput | Scenario::Routed | Scenario::Blocked | Scenario::Fair => &["--tasks", "100"],
        Scenario::Budget => &["--tasks", "100", "--workers", "4"],
        Scenario::Steps => &["--tasks", "100"],
        Scenario::Fan => &["--tasks", "20"],
        Scenario::Steady => &["--tasks", "100", "--seconds", "1"],
        Scenario::Idle => &["--seconds", "1"],
        Scenario::Stream => &["--tasks", "100", "--viewers", "10"],
        Scenario::Growth => &["--queued", "100,200", "--workers", "1,4", "--partitions", "2"],
        Scenario::Renew => &["--tasks", "100", "--workers", "2", "--seconds", "1"],
        Scenario::Store => &["--seconds", "1"],
        Scenario::Dashboard => &["--tasks", "200", "--seconds", "1"],
        Scenario::Search | Scenario::Bulk => &["--tasks", "500"],
        Scenario::Schedules => &["--tasks", "50"],
        _ => &[],
    }
}

fn bench(scenario: Scenario, rest: &[&str]) -> Output {
    // One that does not end is ended, and fails.
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_ff-bench")]);
    command.args([scenario.as_str(), "--repetitions", "1", "--json"]).args(size(scenario)).args(rest);
    command.output().unwrap()
}

/// The lines of a run that went well, besides its head.
fn figures(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let head = lines.remove(0);
    assert_eq!(head["type"], "run", "{head}");
    assert!(head["store_version"].is_string() && head["durability"].is_string() && head["cores"].is_u64(), "{head}");
    assert!(!lines.is_empty() && lines.iter().all(|line| line["type"] == "figures"), "{lines:?}");
    lines
}

#[test]
fn every_scenario_ends_with_figures() {
    // These have tests of their own.
    let elsewhere = [Scenario::Footprint, Scenario::Bloat, Scenario::Growth];
    for &scenario in Scenario::value_variants().iter().filter(|scenario| !elsewhere.contains(scenario)) {
        for line in figures(&bench(scenario, &["--store", "memory"])) {
            assert_eq!(line["scenario"], scenario.as_str());
            assert_eq!(line["store"], "memory");
        }
    }
}

#[test]
fn a_server_may_stand_between() {
    for scenario in [Scenario::Throughput, Scenario::Stream] {
        for line in figures(&bench(scenario, &["--store", "memory", "--via", "http"])) {
            assert_eq!(line["via"], "http");
        }
    }
}

#[test]
fn growth_is_a_matrix_from_small_to_large() {
    let lines = figures(&bench(Scenario::Growth, &["--store", "memory"]));
    let cells: Vec<_> =
        lines.iter().map(|line| ["partitions", "queued", "workers"].map(|name| line[name].as_u64().unwrap())).collect();
    let expected = [[2, 100, 1], [2, 100, 4], [2, 200, 1], [2, 200, 4]];
    assert_eq!(cells, expected);
    assert!(lines.iter().all(|line| line["per_s"].as_f64().unwrap() > 0.0), "{lines:?}");
}

#[test]
fn tenants_with_little_take_turns_with_one_that_has_much() {
    let lines = figures(&bench(Scenario::Fair, &["--store", "memory"]));
    let claims = lines[0]["claims_for_each_late"].as_f64().unwrap();
    assert!((1.0..=2.0).contains(&claims), "{claims} claims for each of the late tenants' tasks");
    let keys: Vec<_> = lines[1..].iter().map(|line| line["keys"].as_str().unwrap()).collect();
    assert_eq!(keys, ["none", "four", "each"]);
}

#[test]
fn a_store_that_tells_its_memory_has_a_footprint() {
    let lines = figures(&bench(Scenario::Footprint, &["--store", "valkey", "--tasks", "500", "--input-bytes", "100"]));
    let states: Vec<_> =
        lines.iter().map(|line| (line["state"].as_str().unwrap(), line["bytes_each"].as_f64())).collect();
    assert!(matches!(states[..], [("waiting", Some(100.0..)), ("completed", Some(100.0..))]), "{states:?}");
}

#[test]
fn a_database_that_keeps_old_rows_has_bloat() {
    let lines = figures(&bench(Scenario::Bloat, &["--store", "postgres", "--tasks", "200", "--seconds", "30"]));
    let last = lines.last().unwrap();
    assert_eq!((&last["when"], last["tasks"].as_f64()), (&"all".into(), Some(200.0)));
}
