//! flow submit, get, ls, cancel.

use crate::support::{Transcript, connected, run};
use crate::work;

const YAML: &str = "\
kind: report
tags: { team: data }
nodes:
  fetch: { kind: fetch, input: { url: https://example.com } }
  parse: { kind: parse, after: [fetch] }
  index: { kind: index, after: [fetch] }
  mail:
    kind: mail
    after: [{ node: parse, as: page }, index]
";

const JSON: &str = r#"{"nodes": {"only": {"kind": "one", "input": 1}}}"#;

#[test]
fn a_graph_is_submitted_shown_and_cancelled() {
    let mut it = Transcript::new("flow");
    it.both(&["flow", "ls"]);
    it.ff_with(&["flow", "submit", "-", "--check"], YAML);
    let id = it.ff_with(&["flow", "submit", "-", "--key", "nightly"], YAML);
    it.ff_with(&["flow", "submit", "-", "--key", "nightly", "-o", "json"], YAML);
    it.ff(&["flow", "get", &id]);
    work::complete("flow", "1");
    it.ff(&["flow", "get", &id]);
    it.both(&["flow", "ls"]);
    it.ff(&["flow", "cancel", &id, "--reason", "no longer needed", "--wait"]);
    it.ff(&["flow", "get", &id]);
    it.ff(&["flow", "ls", "--state", "completed"]);
    let other = it.ff_with(&["flow", "submit", "-"], JSON);
    it.ff(&["flow", "get", &other, "-o", "json"]);
    it.ff(&["flow", "cancel", &other, "--policy", "cancel_pending"]);
    it.ff(&["flow", "cancel", &other, "-o", "json"]);
    it.ff(&["flow", "rm", &other]);
    it.ff(&["flow", "rm", &id, "-o", "json"]);
    it.ff(&["flow", "get", &id]);
    it.finish("flow");
}

#[test]
fn a_file_is_checked_without_a_server() {
    let mut command = connected("flow-check", &["flow", "submit", "-", "--check", "-o", "json"]);
    command.env("FF_SERVER", "http://127.0.0.1:1");
    assert_eq!(run(command, YAML).json(), serde_json::json!({ "nodes": 4, "edges": 4 }));
    let ended = run(connected("flow-empty", &["flow", "submit", "-"]), "nodes: {}\n");
    assert!(ended.code == 2 && ended.stderr.contains("nothing to run"), "{ended:?}");
    let circle = "nodes:\n  a: { kind: x, after: [b] }\n  b: { kind: x, after: [a] }\n";
    let ended = run(connected("flow-circle", &["flow", "submit", "-", "--check"]), circle);
    assert!(ended.code != 0 && ended.stderr.contains("cycle"), "{ended:?}");
}

#[test]
fn a_file_is_read_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flow.yaml");
    std::fs::write(&file, YAML).unwrap();
    let ended = run(connected("flow-file", &["flow", "submit", file.to_str().unwrap(), "-o", "json"]), "");
    assert_eq!(ended.json()["executions"].as_object().unwrap().len(), 4);
}
