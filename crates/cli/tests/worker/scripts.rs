//! A shell script and a Python script that stream, report, retry later and complete.

use crate::process::{Deployment, Process, ff};

/// The token of the server where it asks for one.
const TOKEN: &str = "a-token-of-our-own";

#[test]
fn a_shell_script_streams_reports_usage_and_completes() {
    let deployment = Deployment::start();
    deployment.run(&["budget", "create", "team", "--hard", "tokens=10"]);
    let id = deployment.run(&["submit", "k", r#"{"name": "Ada"}"#, "--budget", "team"]);
    let worker = deployment.worker(
        "sh",
        r#"set -e
        input=$(cat)
        echo "takes $FF_TASK_KIND of $FF_TASK_LANE, attempt $FF_TASK_ATTEMPT, $FF_TASK_CLAIM_KIND" >&2
        ff task progress 50 'half of it'
        ff task frame --type token 'Hello, '
        printf 'A\nda\n' | ff task frame --type token --lines
        ff task frame --mode summary '{"words": 2}'
        ff task usage tokens=7 --dedup-key once | grep -q '"ok"' >&2
        ff task usage tokens=7 --dedup-key once > /dev/null
        code=0; ff task usage tokens=4 > /dev/null || code=$?
        test "$code" -eq 14
        code=0; ff task spend big tokens=4 -- false > /dev/null || code=$?
        test "$code" -eq 14
        ff task spend call tokens=3 -- sh -c 'echo tokens=2 > "$FF_SPENT_FILE"'
        code=0; ff task spend undone tokens=1 -- sh -c 'exit 75' || code=$?
        test "$code" -eq 75
        test "$FF_TASK_EXECUTION_ID" && test "$FF_TASK_LEASE_ID" && test "$FF_TASK_FENCE" && test "$FF_SERVER"
        echo "{\"said\": 1.00, \"input\": $input}"
        "#,
    );
    let report = worker.json();
    assert_eq!((report["execution_id"].as_str(), report["outcome"].as_str()), (Some(id.as_str()), Some("completed")));

    assert_eq!(deployment.run(&["result", &id]), r#"{"said": 1.00, "input": {"name": "Ada"}}"#);
    let mut frames = deployment.frames(&id);
    let log = ("log".to_owned(), "takes k of default, attempt 0, initial".to_owned());
    assert!(frames.contains(&log), "{frames:?}");
    frames.retain(|(kind, _)| kind == "token");
    let said: String = frames.into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, "Hello, Ada");
    let shown = deployment.json(&["get", &id]);
    assert_eq!(shown["progress"]["pct"], 50);
    assert_eq!(deployment.json(&["budget", "get", "team"])["usage"]["tokens"], 9);
}

/// The script of a page, as it stands there.
fn script_of(page: &str) -> &str {
    let (_, rest) = page.split_once("```sh\n").expect("the page has a script");
    rest.split_once("```").expect("the script has an end").0
}

#[test]
fn the_worker_of_the_page_that_needs_only_curl_completes_and_fails() {
    let deployment = Deployment::start_with(&[("FF_API_TOKEN", TOKEN)]);
    let run = |arguments: &[&str]| {
        let output = deployment.command(arguments).env("FF_TOKEN", TOKEN).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let submit = |input: &str| run(&["submit", "greet", input, "--retries", "0"]).1;
    let (greeted, nobody) = (submit(r#"{"name": "Ada"}"#), submit(r#"{"name": 7}"#));
    let script = script_of(include_str!("../../../../docs/workers.md"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).env("FF_SERVER", &deployment.address).env("FF_TOKEN", TOKEN);
    let _worker = Process::start(shell, false);
    assert_eq!(run(&["wait", &greeted, &nobody, "--timeout", "30s"]).0, Some(10), "one of them failed");
    assert_eq!(run(&["result", &greeted]).1, r#""Hello, Ada""#);
    assert!(run(&["get", &nobody]).1.contains("nobody to greet"));
}

#[test]
fn a_python_script_asks_to_be_retried_later_and_then_completes() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k", r#"[3, 4]"#]);
    let worker = deployment.worker(
        "python3",
        r#"
import json, os, subprocess, sys
numbers = json.load(sys.stdin)
print("adding", numbers, file=sys.stderr)
if os.environ["FF_TASK_RETRY_COUNT"] == "0":
    subprocess.run(["ff", "task", "retry-after", "10ms"], check=True)
    print("not yet", file=sys.stderr)
    sys.exit(75)
subprocess.run(["ff", "task", "frame", "--type", "sum"], input=str(sum(numbers)).encode(), check=True)
json.dump({"sum": sum(numbers)}, sys.stdout)
"#,
    );
    let first = worker.json();
    assert_eq!((first["outcome"].as_str(), first["attempt"].as_u64()), (Some("retry_scheduled"), Some(0)));
    assert_eq!(first["detail"], "exit code 75: not yet");
    let second = worker.json();
    assert_eq!((second["outcome"].as_str(), second["attempt"].as_u64()), (Some("completed"), Some(1)));
    assert_eq!(deployment.run(&["result", &id]), r#"{"sum": 7}"#);
    let attempts = deployment.json(&["get", &id, "--attempts"]);
    let failed = &attempts["items"][0];
    assert_eq!(failed["failure_category"], "retry_later", "{attempts}");
    assert!(deployment.frames(&id).contains(&("sum".to_owned(), "7".to_owned())));
}

#[test]
fn a_task_is_only_there_inside_a_worker() {
    let output = ff(&["task", "progress", "10"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("FF_TASK_SOCKET") && errors.contains("ff worker"), "{errors}");
}
