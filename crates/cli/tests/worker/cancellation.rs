//! A lease that is lost stops the program.

use crate::process::{Deployment, Process};

#[test]
fn a_cancelled_execution_ends_its_program_with_sigterm() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let worker = deployment.worker(
        "sh",
        r#"trap 'touch "$FOLDER/terminated"; exit 1' TERM
        echo begun >&2
        sleep 1000 & wait"#,
    );
    let tail = Process::start(deployment.command(&["tail", &id]), false);
    tail.line_with("begun");
    deployment.run(&["cancel", &id]);
    assert_eq!(worker.json()["outcome"], "lost");
    assert!(deployment.folder.path().join("terminated").exists(), "it saw no SIGTERM");
    assert_eq!(deployment.json(&["get", &id])["public_state"], "cancelled");
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_with_everything_it_started() {
    let deployment = Deployment::start();
    let id = deployment.run(&["submit", "k"]);
    let path = deployment.folder.path().join("deaf.sh");
    std::fs::write(&path, "trap '' TERM; sh -c 'echo begun >&2; sleep 1000; true'; true").unwrap();
    let arguments = ["worker", "--lease-ttl", "1s", "--grace", "200ms", "-o", "json", "--", "sh", "deaf.sh"];
    let worker = Process::start(deployment.command(&arguments), false);
    let tail = Process::start(deployment.command(&["tail", &id]), false);
    tail.line_with("begun");
    deployment.run(&["cancel", &id]);
    assert_eq!(worker.json()["outcome"], "lost");
}
