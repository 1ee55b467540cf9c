//! Bad input and bad luck, for every command: the exit code, the message, the next step.

use std::process::Command;

use crate::help::{is_remote, leaves};
use crate::support::{Ended, SERVER, TOKEN, Transcript, command, connected, run};

const ID: &str = "0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e";

/// Every command that needs a deployment, with arguments that make sense, and its exit code when what it names is not
/// there.
const COMMANDS: &[(&[&str], i32)] = &[
    (&["submit", "greet"], 0),
    (&["ls"], 0),
    (&["get", ID], 3),
    (&["explain", ID], 3),
    (&["steps", ID], 3),
    (&["decide", ID, "fail"], 3),
    (&["fork", ID], 3),
    (&["diff", ID, ID], 3),
    (&["result", ID], 3),
    (&["wait", ID], 3),
    (&["tail", ID], 3),
    (&["cancel", ID], 3),
    (&["replay", ID], 3),
    (&["hold", ID], 3),
    (&["release", ID], 3),
    (&["resume", ID], 3),
    (&["priority", "5", ID], 3),
    (&["tag", ID, "a=b"], 3),
    (&["rm", ID], 3),
    (&["signal", ID, "go"], 3),
    (&["approvals"], 0),
    (&["approve", ID, "--yes"], 3),
    (&["reject", ID, "--yes"], 3),
    (&["flow", "submit", "-"], 0),
    (&["flow", "get", ID], 3),
    (&["flow", "ls"], 0),
    (&["flow", "cancel", ID], 3),
    (&["flow", "rm", ID], 3),
    (&["budget", "create", "b", "--hard", "tokens=1"], 0),
    (&["budget", "ls"], 0),
    (&["budget", "get", "nothing"], 3),
    (&["budget", "tree", "nothing"], 3),
    (&["budget", "reservations", "nothing"], 3),
    (&["budget", "grant", "nothing", "tokens=1"], 3),
    (&["budget", "decline", "nothing"], 3),
    (&["budget", "limits", "nothing", "--hard", "tokens=1"], 3),
    (&["budget", "report", "nothing", "tokens=1"], 3),
    (&["budget", "reset", "nothing"], 3),
    (&["budget", "update", "nothing", "--on-hard", "fail"], 3),
    (&["budget", "rm", "nothing"], 3),
    (&["provider", "create", "p", "--requests", "1"], 0),
    (&["provider", "ls"], 0),
    (&["provider", "get", "nothing"], 3),
    (&["provider", "update", "nothing", "--requests", "2"], 3),
    (&["provider", "throttle", "nothing"], 3),
    (&["provider", "rm", "nothing"], 3),
    (&["quota", "create", "q", "--requests", "1"], 0),
    (&["quota", "ls"], 0),
    (&["quota", "get", "nothing"], 3),
    (&["quota", "update", "nothing", "--requests", "2"], 3),
    (&["quota", "rm", "nothing"], 3),
    (&["schedule", "create", "s", "k", "--every", "1d"], 0),
    (&["schedule", "ls"], 0),
    (&["schedule", "get", "nothing"], 3),
    (&["schedule", "update", "nothing", "--every", "1d"], 3),
    (&["schedule", "pause", "nothing"], 3),
    (&["schedule", "resume", "nothing"], 3),
    (&["schedule", "trigger", "nothing"], 3),
    (&["schedule", "backfill", "nothing", "--from", "2h", "--to", "1h"], 3),
    (&["schedule", "rm", "nothing"], 3),
    (&["count"], 0),
    (&["top", "--once"], 0),
    (&["bulk", "cancel", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "replay", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "hold", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "release", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "priority", "1", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "tag", "a=b", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "rm", "--kind", "nothing", "--yes"], 0),
    (&["bulk", "ls"], 0),
    (&["bulk", "get", "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e"], 3),
    (&["bulk", "wait", "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e"], 3),
    (&["bulk", "stop", "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e"], 3),
    (&["subscription", "create", "s", "--create", "k"], 0),
    (&["subscription", "ls"], 0),
    (&["subscription", "get", "nothing"], 3),
    (&["subscription", "pause", "nothing"], 3),
    (&["subscription", "resume", "nothing"], 3),
    (&["subscription", "test", "nothing"], 3),
    (&["subscription", "rm", "nothing"], 3),
    (&["hook", "create", "h", "--kind", "k"], 0),
    (&["hook", "ls"], 0),
    (&["hook", "get", "nothing"], 3),
    (&["hook", "rm", "nothing"], 3),
    (&["lane", "ls"], 0),
    (&["lane", "pause", "x"], 0),
    (&["lane", "resume", "x"], 0),
    (&["lane", "drain", "x"], 0),
    (&["lane", "disable", "x"], 0),
    (&["lane", "age", "x", "10m"], 0),
    (&["lane", "rm", "nothing"], 3),
    (&["worker", "ls"], 0),
    (&["worker", "rm", "nothing"], 0),
    (&["mcp"], 0),
    (&["token", "create", "mistake", "--role", "reader"], 0),
    (&["token", "ls"], 0),
    (&["token", "revoke", "nothing"], 3),
    (&["rotate-secret", "--kid", "mistake"], 0),
    (&["audit"], 0),
    (&["events"], 0),
    (&["events", "--execution", ID], 3),
    (&["call", "list_lanes"], 0),
    (&["call", "get_execution", "{\"execution_id\": \"0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e\"}"], 3),
    (&["doctor"], 0),
    (&["whoami"], 0),
];

/// A file that `flow submit` reads.
const FLOW: &str = "nodes:\n  a: { kind: k }\n";

/// Runs all of them at once.
fn each(cases: &[&'static [&'static str]], prepare: fn(&mut Command)) -> Vec<(String, Ended)> {
    let running: Vec<_> = cases
        .iter()
        .map(|arguments| {
            let mut command = connected("mistakes", arguments);
            prepare(&mut command);
            (arguments.join(" "), std::thread::spawn(move || run(command, FLOW)))
        })
        .collect();
    running.into_iter().map(|(name, running)| (name, running.join().unwrap())).collect()
}

fn arguments() -> Vec<&'static [&'static str]> {
    COMMANDS.iter().map(|(arguments, _)| *arguments).collect()
}

#[test]
fn the_list_of_this_file_is_complete() {
    for leaf in leaves() {
        let known =
            COMMANDS.iter().any(|(arguments, _)| format!("{} ", arguments.join(" ")).starts_with(&format!("{leaf} ")));
        assert!(known || !is_remote(&leaf), "{leaf}");
    }
}

#[test]
fn a_server_that_is_not_there_is_told_by_every_command() {
    for (name, ended) in each(&arguments(), |command| {
        command.env("FF_SERVER", "http://127.0.0.1:1");
    }) {
        assert_eq!(ended.code, 9, "{name}: {ended:?}");
        assert!(
            ended.stderr.contains("cannot be reached") && ended.stderr.contains("`ff server`"),
            "{name}: {ended:?}"
        );
        assert_eq!(ended.stdout, "", "{name}");
    }
}

#[test]
fn a_wrong_token_is_told_by_every_command() {
    for (name, ended) in each(&arguments(), |command| {
        command.env("FF_TOKEN", "wrong-canary");
    }) {
        assert_eq!(ended.code, 7, "{name}: {ended:?}");
        assert!(ended.stderr.contains("--token") && !ended.stderr.contains("canary"), "{name}: {ended:?}");
    }
}

#[test]
fn what_does_not_exist_is_told_with_the_next_step() {
    let missing: Vec<&[&str]> =
        COMMANDS.iter().filter(|(_, code)| *code == 3).map(|(arguments, _)| *arguments).collect();
    assert!(missing.len() > 15);
    for (name, ended) in each(&missing, |_| ()) {
        assert_eq!(ended.code, 3, "{name}: {ended:?}");
        let advice = ended.stderr.lines().nth(1).unwrap_or_default();
        assert!(advice.contains("`ff "), "{name} names no next step: {ended:?}");
    }
    for (name, ended) in each(&missing, |command| {
        command.env("FF_OUTPUT", "json");
    }) {
        let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
        assert_eq!(error["error"]["exit_code"], 3, "{name}: {ended:?}");
        assert!(error["error"]["code"].as_str().unwrap().ends_with("_not_found"), "{name}: {ended:?}");
    }
}

#[test]
fn malformed_input_is_told_by_line_and_column() {
    let mut it = Transcript::new("mistakes");
    it.ff(&["submit", "greet", "{\"a\": }"]);
    it.ff(&["submit", "greet", "Ada"]);
    it.ff_with(&["submit", "greet", "-", "-o", "json"], "{\n  \"a\": 1,\n}");
    it.ff(&["submit", "greet", "@/nonexistent/job.json"]);
    it.ff_with(&["submit", "greet", "--each", "-"], "1\n{\n");
    it.ff(&["submit", "greet", "--policy", "{\"retries\": 1}"]);
    it.ff(&["submit", "greet", "--delay", "soon"]);
    it.ff(&["submit", "greet", "--tag", "team"]);
    it.ff(&["submit", "greet", "--require", "a,b"]);
    it.ff(&["signal", ID, "go", "[1,"]);
    it.ff(&["approve", ID, "--yes", "--payload", "{"]);
    it.ff_with(&["flow", "submit", "-"], "nodes:\n  a: { kind: [\n");
    it.ff_with(&["flow", "submit", "-"], "nodes:\n  a:\n    kind: k\n    prioritty: 3\n");
    it.ff_with(&["flow", "submit", "-"], "nodes:\n  a: { kind: k, after: [b] }\n");
    it.ff_with(&["flow", "submit", "-"], "nodes:\n  a: { kind: k, after: [b] }\n  b: { kind: k, after: [a] }\n");
    it.ff_with(&["flow", "submit", "-"], "{\"nodes\": {\n  \"a\": {\"kind\": true}}}");
    it.ff_with(&["flow", "submit", "-", "-o", "json"], "nodes: 1\n");
    it.ff(&["get", "not-an-id"]);
    it.ff(&["budget", "create", "b", "--hard", "tokens=many"]);
    it.ff(&["events", "--kind", "everything"]);
    it.ff(&["tail", ID, "--after", "x"]);
    it.finish("mistakes");
}

fn profiles(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("flowfabric")).unwrap();
    std::fs::write(folder.path().join("flowfabric/config.toml"), text).unwrap();
    folder
}

#[test]
fn the_address_and_token_come_from_a_profile() {
    let text = format!(
        "default = 'here'\n[profiles.here]\nserver = '{}'\ntoken = '{}'\nnamespace = 'profile'\n\
         [profiles.gone]\nserver = 'http://127.0.0.1:1'\n",
        *SERVER,
        crate::support::TOKEN
    );
    let folder = profiles(&text);
    let with = |arguments: &[&str]| {
        let mut command = command(arguments);
        run(
            {
                command.env("XDG_CONFIG_HOME", folder.path());
                command
            },
            "",
        )
    };
    let submitted = with(&["submit", "greet"]);
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let shown = with(&["get", submitted.stdout.trim(), "-o", "json"]).json();
    assert_eq!(shown["namespace"], "profile");
    assert_eq!(with(&["ls", "--profile", "gone"]).code, 9);
    let unknown = with(&["ls", "--profile", "nowhere"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("gone, here"), "{unknown:?}");
    // The token of the profile is not for another server.
    assert_eq!(with(&["ls", "--server", &SERVER]).code, 7);
}

#[test]
fn profiles_are_listed_and_chosen() {
    let folder = profiles("# ours\n[profiles.a]\nserver = 'http://a'\n[profiles.b]\ntoken = 'canary'\n");
    let with = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.env("XDG_CONFIG_HOME", folder.path());
        run(command, "")
    };
    let names = |ended: Ended| ended.json()["items"].as_array().unwrap().len();
    assert_eq!(names(with(&["profile", "ls", "-o", "json"])), 2);
    assert_eq!(with(&["profile", "use", "c"]).code, 2);
    assert_eq!(with(&["profile", "use", "b"]).code, 0);
    let shown = with(&["profile", "ls"]);
    let chosen = shown.stdout.lines().find(|line| line.ends_with("yes")).unwrap_or_default();
    assert!(chosen.starts_with("b ") && !shown.stdout.contains("canary"), "{shown:?}");
    let text = std::fs::read_to_string(folder.path().join("flowfabric/config.toml")).unwrap();
    assert!(text.starts_with("default = \"b\"\n# ours\n") && text.contains("canary"), "{text}");
}

#[test]
fn options_stand_before_the_command_too() {
    let ended = run(command(&["-n", "before", "--server", &SERVER, "--token", TOKEN, "-ojson", "execution", "ls"]), "");
    assert_eq!((ended.code, &ended.json()["items"]), (0, &serde_json::json!([])), "{ended:?}");
    let refused = run(command(&["-n", "before", "server"]), "");
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn a_profile_file_with_mistakes_is_told_without_its_secrets() {
    let folder = profiles("[profiles.a]\ntoken = canary\n");
    let mut command = command(&["ls"]);
    command.env("XDG_CONFIG_HOME", folder.path());
    let ended = run(command, "");
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("config.toml:2:9") && !ended.stderr.contains("canary"), "{ended:?}");
}

#[test]
fn a_token_that_others_could_read_is_warned_of() {
    let with = |server: &str| run(command(&["ls", "--server", server, "--token", "canary-token"]), "").stderr;
    // An address of tests, which no machine has.
    let warned = with("http://ff.invalid:1");
    assert!(warned.contains("plain HTTP") && !warned.contains("canary"), "{warned}");
    for quiet in ["http://127.0.0.1:1", "https://ff.invalid:1"] {
        assert!(!with(quiet).contains("plain HTTP"), "{quiet}");
    }
}

#[test]
fn a_token_comes_from_a_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{}\n", crate::support::TOKEN)).unwrap();
    let with = |file: &str| run(command(&["ls", "--server", &SERVER, "--token-file", file]), "");
    assert_eq!(with(file.to_str().unwrap()).code, 0);
    let missing = with("/nonexistent/token");
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.stderr.contains("/nonexistent/token"), "{missing:?}");
}

#[test]
fn arguments_that_cannot_be_read_are_told_to_programs_as_json() {
    for arguments in [&["ls", "--stat", "x", "-o", "json"][..], &["--output=json", "frobnicate"], &["get", "-ojson"]] {
        let ended = run(command(arguments), "");
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
        let said: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
        assert_eq!((&said["error"]["code"], &said["error"]["exit_code"]), (&"usage".into(), &2.into()), "{said}");
    }
    assert!(run(command(&["frobnicate"]), "").stderr.starts_with("error: "), "people read what clap says");
}
