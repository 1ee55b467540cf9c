//! Colours and `--watch`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{connected, run};
use crate::work;

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    run(connected("colours", &["submit", "greet"]), "");
    let shown = |arguments: &[&str], no_color: Option<&str>| {
        let mut command = connected("colours", arguments);
        no_color.map(|value| command.env("NO_COLOR", value));
        run(command, "").stdout
    };
    assert!(!shown(&["ls"], None).contains('\u{1b}'), "a pipe is no terminal");
    assert!(shown(&["ls", "--color", "always"], None).contains("\u{1b}["));
    assert!(!shown(&["ls", "--color", "never"], None).contains('\u{1b}'));
    assert!(!shown(&["ls", "--color", "auto"], Some("1")).contains('\u{1b}'));
    assert!(!shown(&["ls", "--color", "always", "-o", "json"], None).contains('\u{1b}'), "programs get no colours");
}

#[test]
fn a_watch_shows_every_change_until_the_end() {
    let id = run(connected("watch", &["submit", "greet"]), "").stdout.trim().to_owned();
    let mut child = connected("watch", &["get", &id, "--watch", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().expect("a line").unwrap();
        let view: serde_json::Value = serde_json::from_str(&line).unwrap();
        view["public_state"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(), "waiting");
    work::complete("watch", "1");
    assert_eq!(next(), "completed");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_watched_list_shows_what_is_new() {
    run(connected("watch-ls", &["submit", "first"]), "");
    let mut child = connected("watch-ls", &["ls", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("first")));
    run(connected("watch-ls", &["submit", "second"]), "");
    assert!(lines.any(|line| line.contains("second")));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watched_flow_ends_with_the_flow() {
    let yaml = "nodes:\n  a: { kind: k }\n";
    let id = run(connected("watch-flow", &["flow", "submit", "-"]), yaml).stdout.trim().to_owned();
    work::complete("watch-flow", "1");
    let shown = run(connected("watch-flow", &["flow", "get", &id, "--watch"]), "");
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains("1 of 1 ended"), "{shown:?}");
}

#[test]
fn whoever_stops_reading_ends_the_command_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = connected("pipe", &["ls"]);
    let ended = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap().as_str()), (Some(0), ""));
}
