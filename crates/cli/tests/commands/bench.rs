//! `ff bench`: short runs for people and for programs, and what it refuses.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{Ended, command, run};

fn bench(arguments: &[&str]) -> Ended {
    run(command(&[&["bench"], arguments].concat()), "")
}

/// Replaces what differs by run and machine: numbers, versions, the name of the namespace.
fn normal(text: &str) -> String {
    let mut normal = String::new();
    for line in text.lines() {
        let mut word = String::new();
        // A blank at the end closes the last word.
        for letter in line.chars().chain([' ']) {
            if letter.is_ascii_alphanumeric() || "-._/".contains(letter) {
                word.push(letter);
                continue;
            }
            let name = word.trim_end_matches('.');
            let is_number = name.starts_with(|first: char| first.is_ascii_digit());
            normal.push_str(match (is_number, name.starts_with("bench-")) {
                (true, _) => "N",
                (_, true) => "bench-N",
                _ => &word,
            });
            word.clear();
            normal.push(letter);
        }
        normal = normal.trim_end().to_owned() + "\n";
    }
    normal
}

fn transcript(runs: &[&[&str]]) -> String {
    let mut text = String::new();
    for arguments in runs {
        let ended = bench(arguments);
        text.push_str(&format!("$ ff bench {}\n{}", arguments.join(" "), normal(&ended.stdout)));
        for line in ended.stderr.lines() {
            text.push_str(&format!("! {}\n", line.trim_end()));
        }
        text.push_str(&format!("exit code {}\n\n", ended.code));
    }
    text
}

fn check(name: &str, runs: &[&[&str]]) {
    let mut settings = insta::Settings::new();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, transcript(runs)));
}

#[test]
fn a_short_run_for_people_and_for_programs() {
    check(
        "bench",
        &[
            &["throughput", "--tasks", "50"],
            &["throughput", "--tasks", "50", "--repetitions", "1", "-o", "json"],
            &["wake", "--store", "memory://", "--via", "http", "--repetitions", "1", "--json"],
        ],
    );
}

#[test]
fn what_cannot_be_measured_is_told() {
    check(
        "bench_mistakes",
        &[
            &["everything"],
            &["throughput", "--store", "valkey"],
            &["throughput", "--store", "postgres", "-o", "json"],
            &["throughput", "--store", "mysql://user:canary@host"],
            &["throughput", "--store", "valkey://127.0.0.1:1"],
            &["throughput", "--store", "postgres://127.0.0.1:1/bench"],
            &["throughput", "--store", "sqlite:///nonexistent/bench.db"],
            &["throughput", "--sync", "everysec"],
            &["throughput", "--tasks", "0"],
            &["footprint", "--tasks", "1", "--store", "memory"],
            &["bloat", "--tasks", "1"],
            &["idle", "--servers", "2"],
        ],
    );
}

#[test]
fn a_store_in_use_keeps_its_queues_and_the_file_is_as_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("ff.db").display());
    let with = |arguments: &[&str]| run(command(&[arguments, &["--server", &store, "-o", "json"]].concat()), "");
    let submitted = with(&["submit", "greet"]).json();
    let id = submitted["execution_id"].as_str().unwrap().to_owned();
    let ended = bench(&["throughput", "--store", &store, "--tasks", "20", "--repetitions", "1"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let items = with(&["ls"]).json()["items"].clone();
    assert_eq!(items.as_array().unwrap().len(), 1, "{items}");
    assert_eq!((&items[0]["execution_id"], &items[0]["public_state"]), (&id.into(), &"waiting".into()));
    // Documents that no engine knows are not written beside its own.
    let ended = bench(&["store", "--store", &store, "--seconds", "1"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("needs an empty one"), "{ended:?}");
}

#[test]
fn a_new_file_is_gone_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["bench", "throughput", "--tasks", "5", "--repetitions", "1"]);
    command.env("TMPDIR", folder.path());
    let ended = run(command, "");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn an_interrupt_takes_the_new_file_away_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["bench", "idle", "--seconds", "50"]);
    command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The head is printed when the store is open, so the file is there by now.
    lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("namespace"))).unwrap().unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    let told = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
