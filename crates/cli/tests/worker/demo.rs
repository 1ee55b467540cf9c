//! `ff dev --demo`, to its end.

use crate::process::{Deployment, Process, ff};

/// The lines of the demo, in this order.
const STORY: [&str; 9] = [
    "is ready after",
    "submitted flow",
    "the first execution,",
    "research about",
    "loses the right to write",
    "suspended review waits for a person",
    "completed publish",
    "of 2000 tokens, past the soft limit",
    "completed the flow",
];

fn check(lines: &[String]) {
    let mut lines = lines.iter();
    for part in STORY {
        assert!(lines.any(|line| line.contains(part)), "{part:?} is missing, or too early");
    }
}

#[test]
fn the_demo_runs_to_its_end_twice_in_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = ff(&["dev", "--demo", "--listen", "127.0.0.1:0", "--auto-approve", "--exit-when-done"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let (said, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{said}\n{errors}");
        assert_eq!(errors, "");
        assert!(!said.contains('\u{1b}'), "no colours where there is no terminal");
        check(&said.lines().map(str::to_owned).collect::<Vec<_>>());
    }
    assert!(folder.path().join("flowfabric-dev/flowfabric.db").exists());
}

#[test]
fn the_commands_that_the_demo_shows_work_as_they_are() {
    let demo = Process::start(ff(&["dev", "--demo", "--memory", "--listen", "127.0.0.1:0", "--exit-when-done"]), false);
    let export = demo.line_with("export FF_SERVER=");
    let server = export.split_once('=').unwrap().1;
    let run = |line: &str, more: &[&str]| {
        let shown = line.trim().split("  ").next().unwrap();
        let arguments: Vec<&str> = shown.split(' ').skip(1).chain(more.iter().copied()).collect();
        let output = ff(&arguments).env("FF_SERVER", server).output().unwrap();
        assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let approve = demo.line_with(" approve ");
    let explained = run(&demo.line_with(" explain "), &[]);
    assert!(explained.contains("approval"), "{explained}");
    let listed = run(&demo.line_with(" ls "), &[]);
    assert!(listed.contains("suspended"), "{listed}");
    run(&approve, &["--yes"]);
    assert!(demo.rest().iter().any(|line| line.contains("completed the flow")));
    assert_eq!(demo.ended(), Some(0));
}

#[test]
fn the_token_that_the_demo_shows_is_all_the_authority_it_takes() {
    let demo = Process::start(ff(&["dev", "--demo", "--memory", "--listen", "127.0.0.1:0", "--exit-when-done"]), false);
    let address = demo.line_with("curl http");
    let body = demo.line_with("content-type");
    let url = address.trim().trim_start_matches("curl http://").trim_end_matches(" \\");
    let body = body.split_once("-d '").unwrap().1.trim_end_matches('\'');
    let (host, path) = url.split_once('/').unwrap();
    assert_eq!(post(host, path, body), 200);
    assert!(demo.rest().iter().any(|line| line.contains("completed the flow")));
}

#[test]
fn a_second_one_in_the_same_folder_is_told_what_to_do() {
    let deployment = Deployment::start();
    let arguments = ["dev", "--listen", "127.0.0.1:0"];
    let first = Process::start(deployment.command(&arguments), false);
    first.line_with("is ready");
    let output = deployment.output(&arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("--memory"), "{errors}");
    first.terminate();
    assert_eq!(first.ended(), Some(0));
}

#[test]
fn an_address_that_others_reach_gets_a_token_that_is_told_once() {
    let listed = |address: &str, token: &str| {
        let address = address.replace("0.0.0.0", "127.0.0.1");
        ff(&["ls"]).env("FF_SERVER", address).env("FF_TOKEN", token).output().unwrap().status.code()
    };
    let server = Process::start(ff(&["dev", "--memory", "--listen", "0.0.0.0:0"]), false);
    let address = server.line_with("is ready").rsplit(' ').next().unwrap().to_owned();
    let told = server.line_with("callers need a token");
    let (_, token) = told.split_once("FF_TOKEN=").unwrap();
    assert_eq!((listed(&address, ""), listed(&address, token)), (Some(7), Some(0)));
    server.terminate();
    assert_eq!(server.ended(), Some(0));
    let mut with_token = ff(&["dev", "--memory", "--listen", "0.0.0.0:0"]);
    with_token.env("FF_API_TOKEN", "a-token-of-our-own");
    let server = Process::start(with_token, false);
    let address = server.line_with("is ready").rsplit(' ').next().unwrap().to_owned();
    assert_eq!(listed(&address, "a-token-of-our-own"), Some(0));
    server.terminate();
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_test_clock_stands_still_until_it_is_moved() {
    let refused = ff(&["dev", "--test-clock"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--memory"), "it needs a store that knows the clock");
    let elsewhere = ff(&["dev", "--test-clock", "--store", "sqlite://./test.db"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2), "{}", String::from_utf8_lossy(&elsewhere.stderr));
    let arguments = ["dev", "--memory", "--test-clock", "--listen", "127.0.0.1:0"];
    let server = Process::start(ff(&arguments), false);
    let ready = server.line_with("is ready");
    let address = ready.rsplit(' ').next().unwrap();
    let call = |operation: &str, arguments: &str| {
        let output = ff(&["call", operation, arguments]).env("FF_SERVER", address).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let began = call("get_test_clock", "{}")["now"].as_i64().unwrap();
    assert_eq!(call("get_test_clock", "{}")["now"], began);
    assert_eq!(call("advance_test_clock", r#"{"advance_ms": 3600000}"#)["now"], began + 3_600_000);
    assert_eq!(call("wait_until_idle", "{}")["idle"], true);
    server.terminate();
    assert_eq!(server.ended(), Some(0));
}

fn post(host: &str, path: &str, body: &str) -> u16 {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let length = body.len();
    let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "POST /{path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse().unwrap()
}
