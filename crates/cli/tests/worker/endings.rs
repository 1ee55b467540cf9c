//! The meaning of exit codes, output and missing programs, and how a worker stops.

use crate::process::{Deployment, Process, ff};

fn failure(deployment: &Deployment, id: &str) -> (String, String) {
    let shown = deployment.json(&["get", id]);
    let word = |name: &str| shown["last_failure"][name].as_str().unwrap_or_default().to_owned();
    (word("category"), word("reason"))
}

#[test]
fn a_program_says_that_no_retry_would_help() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker("sh", "echo 'the input makes no sense' >&2; exit 65");
    let report = worker.json();
    assert_eq!((report["outcome"].as_str(), report["attempt"].as_u64()), (Some("failed"), Some(0)));
    let expected = ("permanent".to_owned(), "exit code 65: the input makes no sense".to_owned());
    assert_eq!(failure(&deployment, &id), expected);
}

#[test]
fn other_codes_and_signals_are_categories_that_a_policy_can_name() {
    let deployment = Deployment::start();
    let policy = r#"{"retry": {"max_retries": 2, "non_retryable_categories": ["exit_3", "signal_9"]}}"#;
    let worker = deployment.worker("sh", r#"read -r how; eval "${how#\"}" 2> /dev/null"#);
    for (input, category) in [(r#""exit 3 #""#, "exit_3"), (r#""kill -KILL $$ #""#, "signal_9")] {
        let id = deployment.run(&["submit", "k", input, "--policy", policy]);
        assert_eq!(worker.json()["outcome"], "failed", "{input}");
        assert_eq!(failure(&deployment, &id).0, category);
    }
}

#[test]
fn output_that_is_no_json_is_kept_as_its_bytes() {
    let deployment = Deployment::start();
    std::fs::write(deployment.folder.path().join("input.bin"), b"\x00\xffraw\n").unwrap();
    let id = deployment.run(&["submit", "k", "@input.bin", "--content-type", "application/x-test"]);
    let worker = deployment.worker("sh", "test \"$FF_TASK_INPUT_TYPE\" = application/x-test && cat");
    assert_eq!(worker.json()["outcome"], "completed");
    let output = deployment.output(&["result", &id]);
    assert_eq!(output.stdout, b"\x00\xffraw\n");
}

/// Prints what a server refuses to store, by the name of the mistake.
const REFUSED_RESULTS: &str = r#"
    echo run >> "$FOLDER/runs"
    case "$(cat)" in
        *surrogate*) printf '%s' '"\ud800"' ;;
        *deep*) printf '%0150d' 0 | tr 0 '['; printf '%0150d' 0 | tr 0 ']' ;;
        *large*) printf '"%0100d"' 0 ;;
    esac"#;

#[test]
fn a_result_that_is_refused_fails_the_attempt_and_says_so() {
    let deployment = Deployment::start_with(&[("FF_RESULT_MAX_BYTES", "64")]);
    let worker = deployment.worker("sh", REFUSED_RESULTS);
    for mistake in ["surrogate", "deep", "large"] {
        let input = format!("\"{mistake}\"");
        let id = deployment.run(&["submit", "k", &input, "--policy", r#"{"retry": {"max_retries": 0}}"#]);
        let report = worker.json();
        assert_eq!(report["outcome"], "failed", "{mistake}: {report}");
        assert!(report["detail"].as_str().is_some_and(|detail| detail.starts_with("refused: ")), "{report}");
        let (category, reason) = failure(&deployment, &id);
        assert!(category == "refused" && !reason.is_empty(), "{mistake}: {category}: {reason}");
        assert_eq!(deployment.json(&["get", &id])["public_state"], "failed", "{mistake}");
    }
    let runs = std::fs::read_to_string(deployment.folder.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 3, "each program ran once");
}

#[test]
fn a_refused_result_is_retried_as_the_policy_says() {
    let deployment = Deployment::start();
    let policy = r#"{"retry": {"max_retries": 1, "backoff": {"fixed": {"delay_ms": 1}}}}"#;
    let id = deployment.run(&["submit", "k", "\"deep\"", "--policy", policy]);
    let worker = deployment.worker("sh", REFUSED_RESULTS);
    assert_eq!(worker.json()["outcome"], "retry_scheduled");
    let last = worker.json();
    assert_eq!((last["outcome"].as_str(), last["attempt"].as_u64()), (Some("failed"), Some(1)));
    assert_eq!(failure(&deployment, &id).0, "refused");
}

#[test]
fn a_content_type_that_is_none_fails_the_attempt() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k", "--policy", r#"{"retry": {"max_retries": 0}}"#]);
    let arguments = ["worker", "--content-type", "no\ntype", "-o", "json", "--", "echo", "hello"];
    let worker = Process::start(deployment.command(&arguments), false);
    assert_eq!(worker.json()["outcome"], "failed");
    assert_eq!(failure(&deployment, &id).0, "refused");
}

#[test]
fn a_program_that_is_not_there_keeps_its_worker_from_starting() {
    let deployment = Deployment::start();
    for program in ["./not-there", "ff-no-such-program", "/"] {
        let ended = deployment.command(&["worker", "-o", "json", "--", program]).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&ended.stderr).unwrap();
        assert_eq!((ended.status.code(), &said["error"]["code"]), (Some(2), &"usage".into()), "{said}");
        assert!(said["error"]["message"].as_str().unwrap().contains(program), "{said}");
    }
}

#[test]
fn a_program_is_given_neither_the_token_nor_the_address_of_the_store() {
    let deployment = Deployment::start();
    deployment.run(&["submit", "k"]);
    let script = "echo \"${FF_TOKEN:-none} ${FF_API_TOKEN:-none} ${FF_STORE:-none} ${FF_TASK_KIND}\"";
    let mut command =
        deployment.command(&["worker", "-o", "json", "--content-type", "text/plain", "--", "sh", "-c", script]);
    command.env("FF_API_TOKEN", "canary").env("FF_STORE", "postgres://u:canary@h/db");
    let worker = Process::start(command, false);
    let ended = worker.json();
    assert_eq!(ended["outcome"], "completed", "{ended}");
    let result = deployment.run(&["result", ended["execution_id"].as_str().unwrap()]);
    assert_eq!(result.trim(), "none none none k");
}

#[test]
fn work_of_another_kind_is_left_to_its_worker() {
    let deployment = Deployment::start();
    let other_id = deployment.run(&["submit", "other"]);
    let own_id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker("sh", "true");
    assert_eq!(worker.json()["execution_id"], own_id, "what came before it is of another kind");
    let explanation = deployment.json(&["explain", &other_id]);
    assert_eq!(explanation["reasons"][0]["code"], "kind_not_served", "{explanation}");
    let other = deployment.command(&["worker", "--kind", "other", "-o", "json", "--", "true"]);
    let other = Process::start(other, false);
    let report = other.json();
    assert_eq!((&report["execution_id"], &report["outcome"]), (&other_id.into(), &"completed".into()), "{report}");
}

#[test]
fn a_worker_without_a_server_says_so() {
    let output = ff(&["worker", "--server", "http://127.0.0.1:1", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("cannot be reached") && errors.contains("ff server"), "{errors}");
    let output = ff(&["worker", "--lane", "l"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a program is missing");
}

#[test]
fn a_worker_that_is_told_to_stop_lets_its_programs_finish() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker =
        deployment.worker("sh", r#"mkfifo "$FOLDER/go"; echo begun >&2; read -r word < "$FOLDER/go"; echo "$word""#);
    let tail = Process::start(deployment.command(&["tail", &id]), false);
    tail.line_with("begun");
    worker.terminate();
    std::fs::write(deployment.folder.path().join("go"), "\"done\"\n").unwrap();
    assert_eq!(worker.json()["outcome"], "completed");
    assert_eq!(worker.ended(), Some(0));
    assert_eq!(deployment.run(&["result", &id]), "\"done\"");
    assert!(deployment.json(&["worker", "ls"])["items"].as_array().unwrap().is_empty());
}
