//! tail and events.

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
