//! tail and events.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Transcript, connected, run};
use crate::work;

#[test]
fn the_output_of_an_execution_is_followed_to_its_end() {
    let mut it = Transcript::new("tail");
    let id = it.ff(&["submit", "write"]);
    let task = work::hold("tail");
    work::write("tail", &task, 1, &[("token", "\"Hello \""), ("token", "\"Ada\""), ("log", "{\"step\": 1.00}")]);
    work::write("tail", &task, 4, &[("error", "\"line one\\nline two\"")]);
    work::complete_held("tail", &task, "1");
    it.both(&["tail", &id]);
    it.ff(&["tail", &id, "--type", "log"]);
    it.ff(&["tail", &id, "--after", "0-3"]);
    it.ff(&["tail", &id, "--raw", "--type", "token"]);
    it.ff(&["tail", &id, "--color", "always", "--type", "token"]);
    it.finish("tail");
}

#[test]
fn a_tail_that_is_open_gets_frames_as_they_come() {
    let ended = run(connected("tail-live", &["submit", "write"]), "");
    let id = ended.stdout.trim().to_owned();
    let task = work::hold("tail-live");
    let viewer = std::thread::spawn(move || run(connected("tail-live", &["tail", &id, "--raw"]), ""));
    work::write("tail-live", &task, 1, &[("token", "\"Hello \"")]);
    work::write("tail-live", &task, 2, &[("token", "\"Ada\"")]);
    work::complete_held("tail-live", &task, "1");
    assert_eq!(viewer.join().unwrap().stdout, "Hello Ada");
}

#[test]
fn a_tail_tells_of_further_attempts() {
    let mut it = Transcript::new("tail-attempts");
    let once = "{\"retry\": {\"max_retries\": 1, \"backoff\": {\"fixed\": {\"delay_ms\": 1}}}}";
    let id = it.ff(&["submit", "write", "--policy", once]);
    let first = work::hold("tail-attempts");
    work::write("tail-attempts", &first, 1, &[("token", "\"Helo\"")]);
    work::fail_held("tail-attempts", &first, "misspelled");
    let second = work::hold("tail-attempts");
    work::write("tail-attempts", &second, 1, &[("token", "\"Hello\"")]);
    work::complete_held("tail-attempts", &second, "1");
    it.both(&["tail", &id]);
    it.ff(&["get", &id, "--attempts"]);
    it.finish("tail_attempts");
}

#[test]
fn a_tail_says_what_a_paused_attempt_waits_for() {
    let id = run(connected("tail-paused", &["submit", "deploy"]), "").stdout.trim().to_owned();
    work::ask("tail-paused", &["approve"], "deploy to production?");
    let mut child = connected("tail-paused", &["tail", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "-- attempt 0 pauses, waiting_for_approval: deploy to production?");
    assert_eq!(run(connected("tail-paused", &["approve", &id, "--yes"]), "").code, 0);
    work::complete("tail-paused", "1");
    assert_eq!(lines.next().unwrap(), "-- completed");
    assert!(child.wait().unwrap().success());
}

#[test]
fn events_are_followed_as_they_happen() {
    let mut child =
        connected("follow", &["events", "--follow", "--kind", "completion"]).stdout(Stdio::piped()).spawn().unwrap();
    let id = run(connected("follow", &["submit", "greet"]), "").stdout.trim().to_owned();
    work::complete("follow", "1");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.next().unwrap();
    assert!(line.contains("completed") && line.contains(&id), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn events_are_listed() {
    let mut it = Transcript::new("events");
    it.both(&["events"]);
    let id = it.ff(&["submit", "greet", "--tag", "team=a"]);
    work::complete("events", "1");
    it.both(&["events"]);
    it.ff(&["events", "--kind", "completion", "--tag", "team=a"]);
    it.ff(&["events", "--tag", "team=b"]);
    it.both(&["events", "--execution", &id]);
    it.finish("events");
}
