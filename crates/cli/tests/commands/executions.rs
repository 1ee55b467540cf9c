//! submit, ls, get, explain, result, wait, cancel, replay.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{Transcript, connected, run};
use crate::work;

#[test]
fn work_is_submitted_from_an_argument_a_file_or_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.json");
    std::fs::write(&file, "{\"from\": \"file\"}\n").unwrap();
    let file = format!("@{}", file.display());
    let mut it = Transcript::new("submit");
    it.both(&["submit", "greet", "{\"name\": \"Ada\"}"]);
    it.ff_with(&["submit", "greet", "-", "--lane", "gpu", "--priority", "7", "--tag", "team=a"], "[1, 2]");
    it.ff(&["submit", "greet", "1", "--idempotency-key", "k"]);
    it.ff(&["submit", "greet", "1", "--idempotency-key", "k"]);
    it.ff(&["submit", "greet", "2", "--idempotency-key", "k"]);
    it.ff_with(&["submit", "greet", "--each", "-"], "\"a\"\n\n\"b\"\n");
    it.ff_with(&["submit", "greet", "--each", "-", "-o", "json"], "\"c\"\n");
    let from_file = run(connected("submit", &["submit", "greet", &file]), "");
    assert_eq!(from_file.code, 0, "{from_file:?}");
    let task = work::hold("submit");
    assert_eq!(&task.input.unwrap().bytes[..], b"{\"name\": \"Ada\"}");
    it.finish("submit");
}

#[test]
fn work_shares_keys_with_other_work() {
    let mut it = Transcript::new("keys");
    it.both(&["submit", "report", "--singleton", "nightly"]);
    it.ff(&["submit", "index", "1", "--debounce", "page=7=1h", "--max-wait", "2h"]);
    it.ff(&["submit", "index", "2", "--debounce", "page=7=1h"]);
    it.ff(&["ls", "--all"]);
    it.ff(&["submit", "sync", "--concurrency", "acme=2", "--fair-key", "acme", "--fair-weight", "3"]);
    it.ff(&["submit", "sync", "--concurrency", "acme"]);
    it.ff(&["submit", "sync", "--debounce", "a"]);
    it.ff(&["submit", "sync", "--concurrency", "acme=0"]);
    it.ff(&["submit", "sync", "--budget", "nobody", "--estimate", "tokens=5"]);
    it.ff(&["submit", "sync", "--estimate", "tokens=many"]);
    it.finish("keys");
}

#[test]
fn retries_and_a_timeout_need_no_whole_policy() {
    let submit = |more: &[&str]| run(connected("policy", &[&["submit", "greet"], more].concat()), "").stdout;
    let policy = |id: String| run(connected("policy", &["get", id.trim(), "-o", "json"]), "").json()["policy"].clone();
    let said = policy(submit(&["--retries", "1", "--timeout", "5m"]));
    assert_eq!((&said["retry"]["max_retries"], &said["timeout"]["attempt_timeout_ms"]), (&1.into(), &300_000.into()));
    let beside = policy(submit(&["--retries", "1", "--policy", "{\"max_replay_count\": 2}"]));
    assert_eq!((&beside["retry"]["max_retries"], &beside["max_replay_count"]), (&1.into(), &2.into()), "{beside}");
    let plain = policy(submit(&[]));
    assert_eq!(plain["timeout"]["attempt_timeout_ms"], serde_json::Value::Null, "{plain}");
}

#[test]
fn bytes_stay_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scan.png");
    std::fs::write(&file, b"\x89PNG\r\n\x00\xff").unwrap();
    let source = format!("@{}", file.display());
    let submitted = run(connected("bytes", &["submit", "ocr", &source, "--content-type", "image/png"]), "");
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let input = work::hold("bytes").input.unwrap();
    assert_eq!((&input.bytes[..], input.content_type.as_str()), (&b"\x89PNG\r\n\x00\xff"[..], "image/png"));
    let refused = run(connected("bytes", &["submit", "ocr", &source]), "");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("is not UTF-8") && refused.stderr.contains("--content-type"), "{refused:?}");
}

#[test]
fn waiting_submissions_print_their_result() {
    let mut it = Transcript::new("submit-wait");
    for format in [&[][..], &["-o", "json"]] {
        let worker = std::thread::spawn(|| work::complete("submit-wait", "{\"text\": \"Hello Ada\"}"));
        it.ff(&[&["submit", "greet", "\"Ada\"", "--wait"], format].concat());
        worker.join().unwrap();
    }
    let worker = std::thread::spawn(|| work::fail("submit-wait", "no such person"));
    it.ff(&["submit", "greet", "--wait", "--policy", "{\"retry\": {\"max_retries\": 0}}"]);
    worker.join().unwrap();
    it.finish("submit_wait");
}

#[test]
fn executions_are_listed_with_filters_and_pages() {
    let mut it = Transcript::new("ls");
    it.both(&["ls"]);
    for (kind, lane) in [("a", "default"), ("b", "gpu"), ("c", "default")] {
        run(connected("ls", &["submit", kind, "--lane", lane, "--tag", &format!("letter={kind}")]), "");
    }
    work::complete("ls", "1");
    it.both(&["ls"]);
    it.ff(&["ls", "--state", "completed"]);
    it.ff(&["ls", "--tag", "letter=b", "--since", "1h"]);
    it.ff(&["ls", "--kind", "nothing"]);
    it.ff(&["ls", "--state", "done"]);
    it.ff(&["ls", "--all", "--lane", "gpu"]);
    let page = run(connected("ls", &["ls", "--limit", "2", "-o", "json"]), "").json();
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = run(connected("ls", &["ls", "--cursor", cursor, "-o", "json"]), "").json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
    it.finish("ls");
}

#[test]
fn an_execution_is_shown_through_its_life() {
    let mut it = Transcript::new("get");
    let once = "{\"retry\": {\"max_retries\": 0}}";
    let id =
        it.ff(&["submit", "greet", "1", "--tag", "team=a", "--require", "cuda", "--budget", "b", "--policy", once]);
    it.both(&["get", &id]);
    it.both(&["explain", &id]);
    it.both(&["result", &id]);
    it.ff(&["cancel", &id, "--reason", "changed my mind"]);
    it.ff(&["cancel", &id, "-o", "json"]);
    it.both(&["get", &id]);
    let id = it.ff(&["submit", "greet", "--policy", once]);
    work::fail("get", "the sky is falling");
    it.ff(&["get", &id]);
    it.both(&["get", &id, "--attempts"]);
    it.ff(&["replay", &id]);
    it.ff(&["replay", &id]);
    work::complete("get", "\"better\"");
    it.ff(&["replay", &id, "-o", "json"]);
    work::complete("get", "\"best\"");
    it.ff(&["result", &id, "--wait", "-o", "json"]);
    it.finish("get");
}

#[test]
fn what_a_function_did_is_shown() {
    let mut it = Transcript::new("steps");
    let id = it.ff(&["submit", "greet"]);
    it.both(&["steps", &id]);
    let task = work::hold("steps");
    let entries = serde_json::json!([
        { "name": "fetch", "state": "completed", "result": { "title": "Tides" }, "took_ms": 1_200 },
        { "name": "page", "key": "7", "state": "begun" },
        { "name": "page", "key": "7", "state": "failed", "category": "timeout", "message": "the step timed out" },
        { "name": "cool down", "kind": "sleep", "state": "begun", "next_at": 1_800_000_000_000_i64 },
    ]);
    work::record("steps", &task, entries);
    it.both(&["steps", &id]);
    it.ff(&["steps", &id, "--records"]);
    it.finish("steps");
}

#[test]
fn results_and_ends_are_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let mut it = Transcript::new("wait");
    let first = it.ff(&["submit", "greet"]);
    work::complete("wait", "{\"n\": 1.00}");
    it.both(&["wait", &first]);
    it.both(&["result", &first]);
    let written = run(connected("wait", &["result", &first, "--out", file.to_str().unwrap()]), "");
    assert_eq!((written.code, std::fs::read(&file).unwrap().as_slice()), (0, &b"{\"n\": 1.00}"[..]));
    let second = it.ff(&["submit", "greet", "--policy", "{\"retry\": {\"max_retries\": 0}}"]);
    it.both(&["wait", &first, &second, "--timeout", "10ms"]);
    work::fail("wait", "broken");
    it.ff(&["wait", &first, &second, "--timeout", "1m"]);
    it.finish("wait");
}

#[test]
fn an_operator_changes_executions_and_removes_them() {
    let mut it = Transcript::new("change");
    let id = it.ff(&["submit", "greet", "--tag", "team=a"]);
    it.both(&["hold", &id, "--reason", "not yet"]);
    it.both(&["release", &id]);
    it.both(&["priority", "100", &id]);
    it.both(&["tag", &id, "stage=two", "team="]);
    it.both(&["resume", &id]);
    it.ff(&["rm", &id]);
    it.ff(&["cancel", &id]);
    it.ff(&["rm", &id]);
    it.ff(&["get", &id]);
    let other = it.ff(&["submit", "greet"]);
    it.ff(&["cancel", &other]);
    it.ff(&["rm", &other, "-o", "json"]);
    it.finish("change");
}

#[test]
fn a_person_who_stops_waiting_has_the_id() {
    let mut command = connected("submit-interrupted", &["submit", "greet", "--wait"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let told = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    // Where tests run in the background of a shell, programs ignore interrupts.
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    let id = said.trim().strip_prefix("waiting for ").unwrap_or_else(|| panic!("{said}"));
    let view = run(connected("submit-interrupted", &["get", id, "-o", "json"]), "");
    assert_eq!((view.code, &view.json()["public_state"]), (0, &"waiting".into()), "it goes on without a watcher");
}
