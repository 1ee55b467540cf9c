//! A worker dies in the middle of its task, the hard way, and another one finishes it.
//! `cargo run --example crash_recovery -- [URL]`
//!
//! The program runs itself a second time as the worker that dies. Without an address, both use a file in the
//! temporary directory.

use std::time::Duration;

use flowfabric::{Client, ExecutionId, FlowFabricWorker, Frame, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

type Problem = Box<dyn std::error::Error>;

fn config(name: &str) -> WorkerConfig {
    // A crash is noticed when the lease runs out, so short leases recover fast.
    WorkerConfig::new(name).lease_ttl(Duration::from_secs(1))
}

/// Claims the task, does half of it, and dies without a word.
async fn die(url: &str) -> Result<(), Problem> {
    let client = Client::connect(url).await?.in_namespace("crash-recovery");
    let execution = client.submit("careful").input(&3).send().await?;
    println!("{}", execution.id());
    let worker = FlowFabricWorker::connect(&client, config("doomed")).await?;
    let task = worker.claim_next().await?.ok_or("there is no task")?;
    task.append_frame(Frame::text("log", "half way through")).await?;
    std::process::abort()
}

async fn careful(context: TaskContext, number: u32) -> Result<u32, TaskError> {
    println!("attempt {} is a {}", context.attempt_index(), context.claim_kind());
    Ok(number * 2)
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let mut arguments = std::env::args().skip(1);
    let file = std::env::temp_dir().join(format!("flowfabric-crash-{}.db", std::process::id()));
    let url = arguments.next().unwrap_or_else(|| format!("sqlite://{}", file.display()));
    if arguments.next().is_some() {
        return die(&url).await;
    }
    let died = std::process::Command::new(std::env::current_exe()?).args([&url, "die"]).output()?;
    let id: ExecutionId = String::from_utf8(died.stdout)?.trim().parse()?;
    println!("the first worker ended: {}", died.status);

    let client = Client::connect(&url).await?.in_namespace("crash-recovery");
    let worker = WorkerRuntime::new(config("heir")).register("careful", careful).start(&client).await?;
    let execution = client.execution(id);
    println!("the result is {}", execution.result::<u32>().await?);
    for attempt in execution.attempts().await? {
        println!("attempt {}: {} by {}", attempt.index, attempt.kind, attempt.worker_id.unwrap_or_default());
    }
    worker.stop().await?;
    client.close().await;
    // The embedded store keeps companions beside its file.
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    Ok(())
}
