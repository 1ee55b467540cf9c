//! A program that lets go of its task and is started again.

use crate::process::{Deployment, Process};

const ASKS: &str = r#"
import json, os, subprocess, sys

def ff(*arguments):
    return subprocess.run(["ff", "task", *arguments], check=True, capture_output=True, text=True).stdout

if os.environ["FF_TASK_CLAIM_KIND"] == "resumed":
    signals = json.loads(ff("signals"))
    page = json.loads(ff("continuation"))["page"]
    print(json.dumps({"decision": signals[0]["name"], "page": page, "attempt": os.environ["FF_TASK_ATTEMPT"]}))
else:
    print("asks a person", file=sys.stderr)
    answer = json.loads(ff("suspend", "--signal", "approve", "--signal", "reject", "--reason", "approval",
                           "--continuation", '{"page": 7}', "--detail", "print page 7?"))
    assert answer["outcome"] == "suspended" and answer["token"], answer
    sys.exit(9)
"#;

#[test]
fn a_program_suspends_itself_and_goes_on_with_the_signal() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker("python3", ASKS);
    let first = worker.json();
    assert_eq!(first["outcome"], "suspended", "its exit code means nothing any more: {first}");
    let listed = deployment.json(&["approve", "--list"]);
    assert_eq!(listed["items"][0]["detail"], "print page 7?", "{listed}");
    deployment.run(&["approve", &id, "--yes"]);
    assert_eq!(worker.json()["outcome"], "completed");
    assert_eq!(deployment.run(&["result", &id]), r#"{"decision": "approve", "page": 7, "attempt": "0"}"#);
    assert!(deployment.frames(&id).contains(&("log".to_owned(), "asks a person".to_owned())));
}

#[test]
fn a_waitpoint_that_is_satisfied_before_lets_the_program_go_on() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker(
        "sh",
        r#"ff task waitpoint --key gate > "$FOLDER/waitpoint.json"
        mkfifo "$FOLDER/sent"
        echo open >&2
        read -r _ < "$FOLDER/sent"
        waitpoint=$(sed 's/.*"waitpoint_id":"\([^"]*\)".*/\1/' "$FOLDER/waitpoint.json")
        code=0; ff task suspend --signal go --waitpoint "$waitpoint" > /dev/null || code=$?
        echo "went on" >&2
        echo "$code""#,
    );
    let tail = Process::start(deployment.command(&["tail", &id]), false);
    tail.line_with("open");
    deployment.run(&["signal", &id, "go"]);
    std::fs::write(deployment.folder.path().join("sent"), "sent\n").unwrap();
    assert_eq!(worker.json()["outcome"], "completed");
    assert_eq!(deployment.run(&["result", &id]), "15");
    assert!(deployment.frames(&id).contains(&("log".to_owned(), "went on".to_owned())), "later words are stored, too");
}

#[test]
fn a_program_comes_back_after_a_delay_and_after_its_children() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k", "\"parent\""]);
    let worker = deployment.worker(
        "sh",
        r#"set -e
        input=$(cat)
        if test "$input" = '"child"'; then echo '"grown"'; exit; fi
        if ! test -e "$FOLDER/delayed"; then touch "$FOLDER/delayed"; ff task delay 10ms > /dev/null; exit; fi
        if ! test -e "$FOLDER/born"; then
            touch "$FOLDER/born"; ff task child k '"child"' > /dev/null; ff task wait-children > /dev/null; exit
        fi
        ff task upstreams | sed 's/.*"payload":\("[a-z]*"\).*/\1/'"#,
    );
    let outcomes: Vec<String> = (0..4).map(|_| worker.json()["outcome"].as_str().unwrap().to_owned()).collect();
    assert_eq!(outcomes, ["delayed", "waiting_children", "completed", "completed"]);
    assert_eq!(deployment.run(&["result", &id]), "\"grown\"");
    assert_eq!(deployment.json(&["get", &id])["attempt"], 0);
}

#[test]
fn a_program_that_runs_again_finds_the_children_it_submitted() {
    let deployment = Deployment::start();
    let policy = r#"{"retry": {"max_retries": 1, "backoff": {"fixed": {"delay_ms": 1}}}}"#;
    let id = deployment.run(&["submit", "k", "\"parent\"", "--policy", policy]);
    let worker = deployment.worker(
        "sh",
        r#"set -e
        child() {
            id=$(ff task child k "$@" --lane children --tag customer=acme --priority 3 \
                --policy '{"retry": {"max_retries": 7}}')
            echo "$id" >> "$FOLDER/run-$FF_TASK_ATTEMPT"
        }
        child '"a"'; child '"a"'; child '"b"'; child '"c"' --key named
        test "$FF_TASK_ATTEMPT" = 1"#,
    );
    assert_eq!(worker.json()["outcome"], "retry_scheduled");
    assert_eq!(worker.json()["outcome"], "completed");
    let spawned = |attempt: u32| {
        let path = deployment.folder.path().join(format!("run-{attempt}"));
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let first = spawned(0);
    assert_eq!(first, spawned(1), "the same children, in the same order");
    let distinct: std::collections::BTreeSet<&String> = first.iter().collect();
    assert_eq!(distinct.len(), 4, "two with the same arguments are two children: {first:?}");
    let child = deployment.json(&["get", &first[3]]);
    assert_eq!((&child["lane"], &child["tags"]["customer"]), (&"children".into(), &"acme".into()), "{child}");
    assert_eq!((&child["priority"], &child["policy"]["retry"]["max_retries"]), (&3.into(), &7.into()), "{child}");
    assert_eq!(deployment.json(&["get", &id])["attempt"], 1);
}
