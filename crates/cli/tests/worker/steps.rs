//! Programs with steps: a command whose output is recorded does not run again.

use serde_json::json;
use tempfile::TempDir;

use crate::process::Deployment;

/// A folder in which each command leaves a line.
fn script(folder: &TempDir, text: &str) -> String {
    text.replace("FOLDER", folder.path().to_str().unwrap())
}

fn runs(folder: &TempDir, name: &str) -> usize {
    std::fs::read_to_string(folder.path().join(name)).map_or(0, |text| text.lines().count())
}

const RETRIES: &str = r#"{"retry": {"max_retries": 3, "backoff": {"fixed": {"delay_ms": 1}}}}"#;

#[test]
fn a_program_that_runs_again_gets_what_its_commands_printed() {
    let (deployment, folder) = (Deployment::start(), TempDir::new().unwrap());
    let id = deployment.run(&["submit", "k", "--policy", RETRIES]);
    let text = script(
        &folder,
        r#"set -e
        page=$(ff task step fetch -- sh -c 'echo x >> FOLDER/fetch; echo "{\"page\": 7}"')
        for n in 1 2; do
            ff task step part --key "$n" -- sh -c "echo x >> FOLDER/part; printf 'part %s\n' $n" >&2
        done
        ff task step flaky -- sh -c 'echo x >> FOLDER/flaky; test $(wc -l < FOLDER/flaky) -ge 2' >&2
        if test "$FF_TASK_RETRY_COUNT" -lt 2; then exit 1; fi
        echo "$page"
        "#,
    );
    let worker = deployment.worker("sh", &text);
    for outcome in ["retry_scheduled", "retry_scheduled", "completed"] {
        let report = worker.json();
        assert_eq!(report["outcome"], outcome, "{report}");
    }
    assert_eq!(deployment.run(&["result", &id]), r#"{"page": 7}"#);
    assert_eq!(["fetch", "part", "flaky"].map(|name| runs(&folder, name)), [1, 2, 2]);

    let shown = deployment.json(&["steps", &id]);
    let labels = |item: &serde_json::Value| json!([item["number"], item["name"], item["key"], item["state"]]);
    let items: Vec<_> = shown["items"].as_array().unwrap().iter().map(labels).collect();
    let expected = [
        json!([1, "fetch", null, "completed"]),
        json!([2, "part", "1", "completed"]),
        json!([3, "part", "2", "completed"]),
        json!([4, "flaky", null, "completed"]),
    ];
    assert_eq!(items, expected, "{shown}");
    let table = deployment.run(&["steps", &id]);
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().take(5).collect()).collect();
    assert_eq!(words[0], ["NUMBER", "STEP", "KIND", "STATE", "ATTEMPT"], "{table}");
    assert_eq!(words[2], ["2", "part[1]", "step", "completed", "0"], "{table}");
    assert_eq!(words[4], ["4", "flaky", "step", "completed", "1"], "{table}");
}

#[test]
fn a_once_command_in_doubt_is_not_run_again_by_itself() {
    let (deployment, folder) = (Deployment::start(), TempDir::new().unwrap());
    let id = deployment.run(&["submit", "k", "--policy", RETRIES]);
    // Ends with 75 first: nothing happened. Then with 1: it is not known whether it happened.
    let text = script(
        &folder,
        r#"code=0
        ff task step pay --once -- sh -c 'echo x >> FOLDER/pay; test $(wc -l < FOLDER/pay) -ge 2 || exit 75; exit 1' || code=$?
        if test "$code" -eq 4; then ff task step pay --key second --once -- echo receipt; exit; fi
        exit "$code"
        "#,
    );
    let worker = deployment.worker("sh", &text);
    let reports: Vec<_> = (0..3).map(|_| worker.json()["outcome"].clone()).collect();
    assert_eq!(reports, ["retry_scheduled", "retry_scheduled", "completed"]);
    assert_eq!(runs(&folder, "pay"), 2, "the doubt is not settled by a retry");
    assert_eq!(deployment.run(&["result", &id]), "receipt");
    let records = deployment.json(&["steps", &id, "--records"]);
    let states: Vec<_> = records["items"].as_array().unwrap().iter().map(|item| item["state"].clone()).collect();
    assert_eq!(states, ["begun", "retrying", "begun", "begun", "completed"], "{records}");
}

#[test]
fn a_person_says_what_became_of_a_command_in_doubt() {
    for (answer, outcome, ran, result) in [
        (&["happened", r#""receipt 7""#][..], "completed", 1, Some(r#""receipt 7""#)),
        (&["did_not_happen"], "completed", 2, Some("receipt 2")),
        (&["fail"], "failed", 1, None),
    ] {
        let (deployment, folder) = (Deployment::start(), TempDir::new().unwrap());
        let id = deployment.run(&["submit", "k", "--policy", r#"{"retry": {"max_retries": 0}}"#]);
        let text = script(
            &folder,
            r#"set -e
            ff task step pay --once --on-doubt ask -- sh -c \
                'echo x >> FOLDER/pay; n=$(wc -l < FOLDER/pay); test $n -ge 2 || exit 1; echo "receipt $n"'
            "#,
        );
        let worker = deployment.worker("sh", &text);
        assert_eq!(worker.json()["outcome"], "suspended", "{answer:?}");
        deployment.run(&[&["decide", &id], answer].concat());
        assert_eq!(worker.json()["outcome"], outcome, "{answer:?}");
        assert_eq!(runs(&folder, "pay"), ran, "{answer:?}");
        if let Some(result) = result {
            assert_eq!(deployment.run(&["result", &id]), result);
        }
    }
}

#[test]
fn steps_that_cannot_be_told_apart_are_refused() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker(
        "sh",
        r#"code=0
        ff task step outer -- ff task step outer -- echo inner || code=$?
        test "$code" -eq 4 || exit 1
        ff task step page --key 7 -- echo first >&2
        code=0; ff task step page --key 7 -- echo second || code=$?
        test "$code" -eq 4 || exit 1
        ff task step large -- head -c 2000000 /dev/zero > /dev/null
        test $? -eq 2 || exit 1
        echo '"all refused"'
        "#,
    );
    let report = worker.json();
    assert_eq!(report["outcome"], "completed", "{report}");
    assert_eq!(deployment.run(&["result", &id]), r#""all refused""#);
}
