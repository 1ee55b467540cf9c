//! What keeps the server from starting, and what it says about itself.

use crate::process::{Process, command, request};

fn outcome(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = command(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_wrong_configuration_is_refused_with_its_reason() {
    for (arguments, variables, word) in [
        (&["--listen", "0.0.0.0:0"][..], &[][..], "FF_API_TOKEN"),
        (&["--listen", "nowhere"], &[], "listen"),
        (&[], &[("FF_LISTN", "x")], "FF_LISTN"),
        (&["--flow-partitions", "2"], &[], "together"),
        (&["--config", "/nonexistent/ff.toml"], &[], "ff.toml"),
        (&["--log-level", "a=b=c"], &[], "log_level"),
    ] {
        let (code, _, errors) = outcome(arguments, variables);
        assert_eq!(code, Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(word), "{errors}");
    }
    let (code, _, errors) = outcome(&["--store", "mysql://user:hunter2@host"], &[]);
    assert_ne!(code, Some(0));
    assert!(errors.contains("mysql") && !errors.contains("hunter2"), "{errors}");
}

#[test]
fn the_configuration_is_printed_without_its_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ff.toml");
    std::fs::write(&file, "listen = '127.0.0.1:1'\nlanes = ['a', 'b']\nsse_max = 7\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--print-config", "--sse-max", "8"];
    let variables = [("FF_API_TOKEN", "hunter2"), ("FF_STORE", "valkey://u:hunter3@h"), ("FF_LISTEN", "127.0.0.1:2")];
    let (code, printed, errors) = outcome(&arguments, &variables);
    assert_eq!(code, Some(0), "{errors}");
    assert!(!printed.contains("hunter"), "{printed}");
    for line in ["listen = \"127.0.0.1:2\"", "lanes = [\"a\", \"b\"]", "sse_max = 8", "drain_ms = 15000"] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
}

#[test]
fn a_start_says_what_runs_where_and_what_is_open() {
    let server = Process::start("memory://", &[]);
    assert_eq!(request(&server.address, "GET /readyz", &[], "").unwrap().0, 200);
    server.terminate();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    for word in ["memory://", "\"version\"", "\"partitions\"", "\"lanes\":\"open\"", "no API token is configured"] {
        assert!(log.contains(word), "{word} is not in {log}");
    }
}
