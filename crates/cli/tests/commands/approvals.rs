//! signal, approve, reject.

use crate::support::{Transcript, connected, run};
use crate::work;

fn submit(namespace: &str, kind: &str) -> String {
    let ended = run(connected(namespace, &["submit", kind]), "");
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout.trim().to_owned()
}

#[test]
fn what_waits_for_a_person_is_listed_and_decided() {
    let mut it = Transcript::new("approve");
    it.both(&["approve", "--list"]);
    let deploy = submit("approve", "deploy");
    work::ask("approve", &["approve", "reject"], "deploy to production?");
    it.both(&["approve", "--list"]);
    it.ff_with(&["approve", &deploy], "n\n");
    it.ff(&["approve", &deploy]);
    it.ff_with(&["approve"], "1\ny\n");
    it.ff(&["approve", &deploy, "--yes"]);
    submit("approve", "deploy");
    // The approved one is first in the queue.
    work::complete("approve", "1");
    work::ask("approve", &["approve", "reject"], "really?");
    it.ff_with(&["reject"], "7\n");
    it.ff_with(&["reject"], "\n");
    it.ff(&["reject", "-o", "json"]);
    it.finish("approve");
}

#[test]
fn decisions_are_sent_for_programs() {
    let mut it = Transcript::new("decide");
    let first = submit("decide", "deploy");
    work::ask("decide", &["approve"], "");
    let payload = "{\"comment\": \"fine\"}";
    it.ff(&["approve", &first, "--yes", "--payload", payload, "--as", "ada", "-o", "json"]);
    work::complete("decide", "1");
    let second = submit("decide", "deploy");
    work::ask("decide", &["approve", "reject"], "");
    it.ff(&["reject", &second, "--yes", "-o", "json"]);
    it.finish("decide");
}

#[test]
fn what_waits_is_listed_and_a_run_is_forked_and_compared() {
    let mut it = Transcript::new("approvals");
    it.both(&["approvals"]);
    let id = submit("approvals", "deploy");
    work::ask("approvals", &["approve", "reject"], "deploy to production?");
    it.both(&["approvals"]);
    it.both(&["decide", &id, "fail"]);
    it.both(&["fork", &id]);
    let other = submit("approvals", "deploy");
    it.both(&["diff", &id, &other]);
    it.finish("approvals");
}

#[test]
fn the_token_of_a_waitpoint_is_checked() {
    let id = submit("signal-token", "call");
    work::ask("signal-token", &["answer"], "");
    let call = |operation: &str, arguments: String| {
        run(connected("signal-token", &["call", operation, &arguments]), "").json()
    };
    let waitpoints = call("list_pending_waitpoints", format!("{{\"execution_id\": \"{id}\"}}"));
    let waitpoint = waitpoints["items"][0]["waitpoint_id"].as_str().unwrap();
    let shown =
        call("get_waitpoint_token", format!("{{\"execution_id\": \"{id}\", \"waitpoint_id\": \"{waitpoint}\"}}"));
    let token = shown["token"].as_str().unwrap();
    let signal = |token: &str| {
        let arguments = ["signal", &id, "answer", "--waitpoint", waitpoint, "--waitpoint-token", token];
        run(connected("signal-token", &arguments), "")
    };
    assert_eq!(signal("k1:00").code, 7);
    let sent = signal(token);
    assert_eq!((sent.code, sent.stdout.trim()), (0, "answer: taken, the execution goes on"), "{sent:?}");
}

#[test]
fn signals_reach_what_waits_for_them() {
    let mut it = Transcript::new("signal");
    let id = submit("signal", "call");
    it.ff(&["signal", &id, "answer"]);
    work::ask("signal", &["answer"], "");
    it.both(&["signal", &id, "other"]);
    it.ff(&["signal", &id, "answer", "{\"status\": 200}", "--idempotency-key", "k", "--source", "ada"]);
    it.ff(&["signal", &id, "answer", "-o", "json"]);
    it.finish("signal");
}
