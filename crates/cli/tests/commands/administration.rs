//! budget, quota, schedule, lane, worker, token, rotate-secret, doctor, call, completions.

use crate::support::{Transcript, command, connected, run};
use crate::work;

#[test]
fn budgets_are_defined_charged_and_reset() {
    let mut it = Transcript::new("budget");
    it.both(&["budget", "ls"]);
    it.ff(&["budget", "create", "team-a", "--hard", "tokens=100", "--soft", "tokens=80", "--reset", "1d"]);
    it.ff(&[
        "budget",
        "create",
        "team-a",
        "--hard",
        "tokens=100",
        "--soft",
        "tokens=80",
        "--reset",
        "1d",
        "-o",
        "json",
    ]);
    it.ff(&["budget", "create", "team-a", "--hard", "tokens=5"]);
    it.ff(&["budget", "create", "team-b"]);
    it.ff(&["budget", "report", "team-a", "tokens=60", "--dedup-key", "k"]);
    it.ff(&["budget", "report", "team-a", "tokens=60", "--dedup-key", "k"]);
    it.ff(&["budget", "report", "team-a", "tokens=30"]);
    it.both(&["budget", "report", "team-a", "tokens=30"]);
    it.both(&["budget", "get", "team-a"]);
    it.ff(&["budget", "create", "team-a/ada", "--hard", "tokens=10"]);
    it.both(&["budget", "tree", "team-a"]);
    it.both(&["budget", "reservations", "team-a"]);
    it.ff(&["budget", "create", "team-c", "--hard", "tokens=10", "--on-hard", "ask"]);
    it.ff(&["submit", "agent", "--budget", "team-c"]);
    work::reserve("budget", "draft", 8);
    it.both(&["budget", "reservations", "team-c"]);
    it.ff(&["submit", "agent", "--budget", "team-c"]);
    work::reserve("budget", "draft", 8);
    it.ff(&["budget", "get", "team-c"]);
    it.ff(&["budget", "grant", "team-c", "tokens=5"]);
    work::reserve("budget", "draft", 8);
    it.ff(&["budget", "grant", "team-c", "tokens=1", "-o", "json"]);
    work::reserve("budget", "draft", 9);
    it.both(&["budget", "decline", "team-c"]);
    it.both(&["budget", "limits", "team-a", "--hard", "tokens=200"]);
    it.both(&["budget", "reset", "team-a"]);
    it.both(&["budget", "ls"]);
    it.both(&["budget", "update", "team-a", "--on-hard", "fail", "--hard", "tokens=300", "--reset", "12h"]);
    let id = it.ff(&["submit", "greet", "--budget", "team-a"]);
    it.ff(&["budget", "rm", "team-a"]);
    it.ff(&["budget", "rm", "team-a/ada"]);
    it.both(&["budget", "rm", "team-a"]);
    it.ff(&["cancel", &id]);
    it.ff(&["budget", "rm", "team-a"]);
    it.ff(&["budget", "create", "team-b", "--hard", "tokens=1"]);
    it.ff(&["budget", "rm", "team-b", "--force", "-o", "json"]);
    it.finish("budget");
}

#[test]
fn providers_are_defined_throttled_and_shown() {
    let mut it = Transcript::new("provider");
    it.both(&["provider", "ls"]);
    it.ff(&["provider", "create", "model-api", "--requests", "60", "--tokens", "90000", "--concurrent", "4"]);
    it.ff(&[
        "provider",
        "create",
        "model-api",
        "--requests",
        "60",
        "--tokens",
        "90000",
        "--concurrent",
        "4",
        "-o",
        "json",
    ]);
    it.ff(&["provider", "create", "model-api"]);
    it.both(&["provider", "get", "model-api"]);
    it.both(&["provider", "ls"]);
    it.both(&["provider", "update", "model-api", "--requests", "120", "--window", "10s"]);
    it.both(&["provider", "throttle", "model-api", "--retry-after", "0s"]);
    it.ff(&["provider", "rm", "model-api"]);
    it.ff(&["provider", "create", "model-api", "--concurrent", "4"]);
    it.ff(&["provider", "rm", "model-api", "--force", "-o", "json"]);
    it.finish("provider");
}

#[test]
fn quotas_are_defined_and_shown() {
    let mut it = Transcript::new("quota");
    it.both(&["quota", "ls"]);
    it.ff(&["quota", "create", "api", "--requests", "60", "--concurrent", "4", "--jitter", "200ms"]);
    it.ff(&["quota", "create", "api", "--requests", "60", "--concurrent", "4", "--jitter", "200ms", "-o", "json"]);
    it.ff(&["quota", "create", "api"]);
    it.both(&["quota", "get", "api"]);
    it.both(&["quota", "ls"]);
    it.both(&["quota", "update", "api", "--requests", "120"]);
    it.ff(&["quota", "rm", "api"]);
    it.ff(&["quota", "create", "api", "--concurrent", "4"]);
    it.ff(&["quota", "rm", "api", "--force", "-o", "json"]);
    it.finish("quota");
}

#[test]
fn bulk_jobs_ask_count_change_and_are_shown() {
    let mut it = Transcript::new("bulk");
    it.both(&["bulk", "ls"]);
    for _ in 0..3 {
        it.ff(&["submit", "report", "--tag", "team=data"]);
    }
    it.ff(&["submit", "other"]);
    it.both(&["count"]);
    it.both(&["top", "--once"]);
    it.both(&["bulk", "hold", "--kind", "report", "--reason", "a look", "--dry-run"]);
    // There is no terminal here to ask at.
    it.ff(&["bulk", "hold", "--kind", "report"]);
    it.both(&["bulk", "hold", "--kind", "report", "--reason", "a look", "--max", "2", "--yes"]);
    it.both(&["bulk", "release", "--tag", "team=data", "--yes"]);
    it.both(&["bulk", "priority", "7", "--kind", "report", "--yes"]);
    it.both(&["bulk", "tag", "team=two", "--kind", "report", "--yes"]);
    it.both(&["bulk", "cancel", "--tag", "team=two", "--reason", "enough", "--yes"]);
    it.both(&["bulk", "replay", "--state", "cancelled", "--yes"]);
    it.ff(&["bulk", "cancel", "--kind", "report", "--yes"]);
    let job = it.ff(&["bulk", "rm", "--ended-since", "1h", "--rate", "100", "--yes", "--no-wait"]);
    it.both(&["bulk", "wait", &job]);
    it.both(&["bulk", "rm", "--kind", "nothing", "--yes"]);
    it.both(&["bulk", "get", &job]);
    it.both(&["bulk", "stop", &job]);
    it.both(&["ls"]);
    it.finish("bulk");
}

#[test]
fn schedules_are_created_shown_changed_and_removed() {
    let mut it = Transcript::new("schedule");
    it.both(&["schedule", "ls"]);
    let nightly = ["schedule", "create", "nightly", "report", "{\"of\": \"yesterday\"}", "--cron", "0 2 * * *"];
    it.ff(&[&nightly[..], &["--zone", "Europe/Berlin", "--overlap", "skip", "--jitter", "10s"]].concat());
    it.ff(&[&nightly[..], &["--zone", "Europe/Berlin", "--overlap", "skip", "--jitter", "10s", "-o", "json"]].concat());
    it.ff(&nightly);
    it.ff(&[
        "schedule",
        "create",
        "poll",
        "fetch",
        "--every",
        "1d",
        "--catch-up",
        "last",
        "--pause-after-failures",
        "3",
    ]);
    it.ff_with(&["schedule", "create", "graph", "--flow", "-", "--every", "1d"], "nodes:\n  a: { kind: k }\n");
    it.ff(&["schedule", "create", "bad", "report", "--cron", "0 25 * * *"]);
    it.ff(&["schedule", "create", "bad", "report"]);
    it.ff(&["schedule", "trigger", "poll"]);
    it.ff(&["schedule", "trigger", "graph", "-o", "json"]);
    it.both(&["schedule", "trigger", "poll", "--overlap", "skip"]);
    it.both(&["schedule", "pause", "nightly", "--note", "the warehouse is moved"]);
    it.both(&["schedule", "ls"]);
    it.both(&["schedule", "resume", "nightly"]);
    it.both(&["schedule", "update", "poll", "--every", "2d", "--overlap", "skip"]);
    it.ff(&["schedule", "update", "poll", "--lane", "chores"]);
    it.both(&["schedule", "get", "poll"]);
    it.both(&["schedule", "backfill", "nightly", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T00:30:00Z"]);
    it.both(&["schedule", "rm", "graph"]);
    it.finish("schedule");
}

#[test]
fn lanes_are_opened_and_closed() {
    let mut it = Transcript::new("lane");
    it.both(&["lane", "ls"]);
    it.both(&["lane", "pause", "gpu", "--reason", "driver update"]);
    it.both(&["lane", "resume", "gpu"]);
    it.both(&["lane", "age", "gpu", "10m"]);
    it.both(&["lane", "drain", "gpu"]);
    it.both(&["lane", "disable", "gpu", "--reason", "sold"]);
    it.ff(&["submit", "greet", "--lane", "gpu"]);
    it.both(&["lane", "ls"]);
    it.ff(&["lane", "rm", "gpu"]);
    it.ff(&["lane", "pause", "gpu"]);
    it.ff(&["lane", "rm", "gpu", "--force", "-o", "json"]);
    it.finish("lane");
}

#[test]
fn workers_are_listed_and_removed() {
    let mut it = Transcript::new("worker");
    it.both(&["worker", "ls"]);
    work::register("worker", "worker-1");
    it.both(&["worker", "ls", "--lane", "gpu"]);
    it.both(&["worker", "rm", "worker-1"]);
    it.finish("worker");
}

#[test]
fn tokens_are_created_listed_and_revoked() {
    // Tokens belong to the deployment: this test alone makes some.
    let mut it = Transcript::new("token");
    it.both(&["token", "ls"]);
    let secret = it.ff(&["token", "create", "ci", "--role", "submitter", "--expires", "30d"]);
    it.ff(&["token", "create", "root", "--role", "admin", "--everywhere", "-o", "json"]);
    it.ff(&["token", "create", "root", "--role", "owner"]);
    let mut as_ci = |arguments: &[&str]| it.ff(&[arguments, &["--token", "CI-TOKEN"]].concat());
    as_ci(&["ls"]);
    let with = |arguments: &[&str]| run(connected("token", &[arguments, &["--token", &secret]].concat()), "");
    assert_eq!(with(&["submit", "greet"]).code, 0);
    let refused = with(&["lane", "pause", "x"]);
    assert_eq!(refused.code, 8, "{refused:?}");
    assert!(refused.stderr.contains("stronger role"), "{refused:?}");
    it.both(&["token", "ls"]);
    it.both(&["token", "revoke", "ci"]);
    it.ff(&["token", "revoke", "nobody"]);
    it.finish("token");
}

#[test]
fn a_caller_is_told_who_it_is() {
    let mut it = Transcript::new("whoami");
    it.both(&["whoami"]);
    it.finish("whoami");
}

#[test]
fn the_secret_of_waitpoint_tokens_is_rotated() {
    let mut it = Transcript::new("rotate");
    let secret = "ab".repeat(32);
    it.ff_with(&["rotate-secret", "--kid", "k2", "--secret-file", "-"], &secret);
    it.ff_with(&["rotate-secret", "--kid", "k2", "--secret-file", "-", "-o", "json"], &secret);
    it.ff(&["rotate-secret", "--kid", "k2"]);
    it.ff(&["rotate-secret", "--kid", "k3", "--grace", "1h"]);
    it.ff_with(&["rotate-secret", "--kid", "k4", "--secret-file", "-"], "xyz");
    it.finish("rotate_secret");
}

#[test]
fn the_doctor_examines_a_server() {
    let mut it = Transcript::new("doctor");
    it.both(&["doctor"]);
    it.ff(&["doctor", "--strict"]);
    it.finish("doctor");
}

#[test]
fn the_doctor_examines_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let mut it = Transcript::new("doctor").within(folder.path());
    it.both(&["doctor", "sqlite://./ff.db"]);
    let submitted =
        run(command(&["submit", "greet", "--server", &format!("sqlite://{}/ff.db", folder.path().display())]), "");
    assert_eq!(submitted.code, 0, "{submitted:?}");
    it.ff(&["doctor", "sqlite://./ff.db", "--strict"]);
    it.both(&["doctor", "memory://", "--strict"]);
    it.ff(&["doctor", "mysql://user:canary@host"]);
    it.ff(&["doctor", "valkey://127.0.0.1:1"]);
    it.finish("doctor_store");
}

#[test]
fn any_operation_is_called_by_its_name() {
    let mut it = Transcript::new("call");
    let id = it.ff(&["submit", "greet"]);
    it.both(&["call", "hold_execution", &format!("{{\"execution_id\": \"{id}\", \"reason\": \"not now\"}}")]);
    it.ff(&["explain", &id]);
    it.ff_with(&["call", "release_execution", "-"], &format!("{{\"execution_id\": \"{id}\"}}"));
    it.ff(&["call", "get_state", "{\"execution\": 1}"]);
    it.ff(&["call", "get_weather"]);
    it.ff(&["call", "get_state", "{"]);
    it.finish("call");
    let listed = run(connected("call", &["call", "--list"]), "").stdout;
    assert!(
        listed.contains("change_priority") && listed.contains("/v1/executions/{execution_id}/priority"),
        "{listed}"
    );
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ended = run(connected("", &["completions", shell]), "");
        assert_eq!(ended.code, 0);
        for word in ["rotate-secret", "approve", "budget", "idempotency-key"] {
            assert!(ended.stdout.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn what_was_done_is_listed() {
    let mut it = Transcript::new("audit");
    it.ff(&["lane", "pause", "gpu", "--reason", "driver update"]);
    it.ff(&["budget", "create", "b", "--hard", "tokens=1"]);
    it.ff(&["budget", "create", "b", "--hard", "tokens=2"]);
    it.ff(&["audit"]);
    it.ff(&["audit", "--what", "pause_lane"]);
    // Records are numbered through the whole deployment, which other tests share.
    it.ff(&["audit", "--who", "nobody", "-o", "json"]);
    it.ff(&["audit", "--what", "get_budget"]);
    it.finish("audit");
}

#[test]
fn subscriptions_are_created_shown_changed_and_removed() {
    let mut it = Transcript::new("subscription");
    it.both(&["subscription", "ls"]);
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let alarms = ["subscription", "create", "alarms", "--url", "https://example.com/hook", "--event", "failed"];
    it.ff_with(&[&alarms[..], &["--tag", "team=a", "--secret-file", "-"]].concat(), secret);
    it.ff_with(&[&alarms[..], &["--tag", "team=a", "--secret-file", "-", "-o", "json"]].concat(), secret);
    it.ff(&["subscription", "create", "alarms", "--url", "https://example.com/other"]);
    it.ff(&["subscription", "create", "tidy", "--create", "clean-up", "--lane", "chores", "--kind", "build"]);
    it.ff(&["subscription", "create", "bad", "--url", "ftp://example.com"]);
    it.ff(&["subscription", "create", "bad"]);
    it.both(&["subscription", "pause", "alarms", "--note", "the receiver is moved"]);
    it.both(&["subscription", "ls"]);
    it.both(&["subscription", "resume", "alarms"]);
    it.both(&["subscription", "pause", "tidy"]);
    it.both(&["subscription", "test", "tidy"]);
    it.both(&["subscription", "get", "tidy"]);
    it.both(&["subscription", "rm", "tidy"]);
    it.ff(&["subscription", "rm", "alarms"]);
    it.finish("subscription");
}

#[test]
fn hooks_are_created_shown_and_removed() {
    let mut it = Transcript::new("hook");
    it.both(&["hook", "ls"]);
    let pushes = ["hook", "create", "pushes", "--scheme", "github", "--kind", "build", "--secret-file", "-"];
    it.ff_with(&pushes, "a secret of sixteen bytes or more");
    it.ff_with(&[&pushes[..], &["-o", "json"]].concat(), "a secret of sixteen bytes or more");
    it.ff_with(&pushes, "too short");
    let paid = ["hook", "create", "payments", "--signal", "paid", "--correlation-id", "/data/order", "--tag", "order"];
    it.ff_with(&[&paid[..], &["--secret-file", "-"]].concat(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    it.ff(&["hook", "create", "nothing"]);
    it.both(&["hook", "ls"]);
    it.both(&["hook", "get", "payments"]);
    it.both(&["hook", "rm", "payments"]);
    it.ff(&["hook", "get", "payments"]);
    it.ff(&["hook", "rm", "pushes"]);
    it.finish("hook");
}
