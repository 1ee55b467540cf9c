//! A worker that is killed while it holds tasks. The test runs itself again as the worker.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ff_server::Settings;
use flowfabric::op::{Complete, complete};
use flowfabric::{ClaimKind, Client, ExecutionId, FlowFabricWorker, LeaseFence, WorkerConfig};
use serde::{Deserialize, Serialize};

use crate::support::{Running, within};

const TASKS: usize = 20;
/// The address of the deployment, for the process that is going to be killed.
const HOLD: &str = "FLOWFABRIC_TEST_HOLD";

/// A task that the killed process held.
#[derive(Debug, Serialize, Deserialize)]
struct HeldTask {
    execution_id: ExecutionId,
    fence: LeaseFence,
}

fn config(name: &str) -> WorkerConfig {
    WorkerConfig::new(name)
        .max_concurrent_tasks(TASKS)
        .lease_ttl(Duration::from_secs(1))
        .claim_wait(Duration::from_secs(20))
}

/// Claims everything, says what it holds, and holds it until it is killed.
async fn hold(url: &str) {
    let client = Client::connect(url).await.unwrap();
    let worker = FlowFabricWorker::connect(&client, config("doomed")).await.unwrap();
    for number in 0..TASKS {
        client.submit("k").input(&number).send().await.unwrap();
    }
    let mut tasks = Vec::new();
    while tasks.len() < TASKS {
        tasks.extend(worker.claim_all_it_can().await.unwrap());
    }
    for task in &tasks {
        let held = HeldTask { execution_id: task.execution_id(), fence: task.fence() };
        println!("held {}", serde_json::to_string(&held).unwrap());
    }
    std::future::pending::<()>().await;
}

/// Runs a test of this file in a process of its own, as the worker; answers when it holds everything.
fn start_holder(test: &str, url: &str) -> (Child, Vec<HeldTask>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(HOLD, url);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines.map_while(Result::ok).filter_map(|line| {
        let (_, json) = line.split_once("held ")?;
        serde_json::from_str(json).ok()
    });
    let held: Vec<HeldTask> = held.take(TASKS).collect();
    assert_eq!(held.len(), TASKS, "the worker did not come so far");
    (child, held)
}

/// Another worker finishes everything, and the first one is refused whatever it still says.
async fn finish_and_refuse(client: &Client, held: Vec<HeldTask>) {
    let worker = FlowFabricWorker::connect(client, config("heir")).await.unwrap();
    let mut finished = 0;
    while finished < TASKS {
        for task in within(worker.claim_all_it_can()).await.unwrap() {
            assert_eq!((task.claim_kind(), task.attempt_index().0), (ClaimKind::Reclaim, 1));
            let number: usize = task.input_json().unwrap();
            task.complete(&(number * 2)).await.unwrap();
            finished += 1;
        }
    }
    for HeldTask { execution_id, fence } in held {
        let result = Some(flowfabric::JsonText("\"late\"".into()));
        let late = complete::Args {
            execution_id,
            fence,
            result,
            result_base64: None,
            content_type: None,
            entries: vec![],
            first_number: None,
            run: None,
        };
        let refused = client.call::<Complete>(late).await.unwrap_err();
        assert!(refused.is_lease_lost(), "{refused}");
        let result: usize = client.execution(execution_id).result().await.unwrap();
        assert_eq!(result % 2, 0);
    }
    worker.stop(Duration::ZERO).await.unwrap();
}

fn kill(mut child: Child) {
    // SIGKILL: the process has no chance to say anything.
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn tasks_of_a_killed_process_with_its_own_engine_are_finished_by_the_next() {
    if let Ok(url) = std::env::var(HOLD) {
        return hold(&url).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("ff.db").display());
    let test = "crash::tasks_of_a_killed_process_with_its_own_engine_are_finished_by_the_next";
    let (child, held) = start_holder(test, &url);
    kill(child);
    let client = Client::connect(&url).await.unwrap();
    finish_and_refuse(&client, held).await;
    client.close().await;
}

#[tokio::test]
async fn tasks_of_a_killed_worker_of_a_server_are_finished_by_another() {
    if let Ok(url) = std::env::var(HOLD) {
        return hold(&url).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = ff_store_sqlite::Options::new(directory.path().join("ff.db"));
    let server = Running::start(Settings::default(), ff_store_sqlite::open(&options).unwrap()).await;
    let test = "crash::tasks_of_a_killed_worker_of_a_server_are_finished_by_another";
    let url = server.url.clone();
    let (child, held) = tokio::task::spawn_blocking(move || start_holder(test, &url)).await.unwrap();
    kill(child);
    let client = Client::connect(&server.url).await.unwrap();
    finish_and_refuse(&client, held).await;
    server.stop().await;
}

#[tokio::test]
async fn a_process_that_slept_too_long_is_refused_when_it_wakes() {
    let server = Running::start(Settings::default(), Arc::new(ff_store::memory::MemoryStore::new())).await;
    let client = Client::connect(&server.url).await.unwrap();
    let (sleeper, heir) = (config("sleeper"), config("heir"));
    let sleeper = FlowFabricWorker::connect(&client, sleeper).await.unwrap();
    client.submit("k").send().await.unwrap();
    let task = within(sleeper.claim_next()).await.unwrap().unwrap();
    // A sleeper finds its lease revoked: another worker has gone on meanwhile.
    client.execution(task.execution_id()).revoke_lease("asleep").await.unwrap();
    let heir = FlowFabricWorker::connect(&client, heir).await.unwrap();
    let taken = within(heir.claim_next()).await.unwrap().unwrap();
    taken.update_progress(50, "mine now").await.unwrap();
    assert!(task.update_progress(90, "mine still").await.unwrap_err().is_lease_lost());
    assert!(task.renew_lease().await.unwrap_err().is_lease_lost());
    assert!(task.complete(&"late").await.unwrap_err().is_lease_lost());
    taken.complete(&"in time").await.unwrap();
    server.stop().await;
}
