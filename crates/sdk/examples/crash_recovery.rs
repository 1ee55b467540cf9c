//! A worker dies in the middle of its task, the hard way, and another one goes on where it died.
//! `cargo run --example crash_recovery -- [URL]`
//!
//! The program runs itself a second time as the worker that dies. Without an address, both use a file in the
//! temporary directory.

use std::time::Duration;

use flowfabric::{Client, ExecutionId, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

type Problem = Box<dyn std::error::Error>;

/// State that all tasks of a worker share: whether it dies.
struct Doomed(bool);

async fn careful(ctx: TaskContext<Doomed>, number: u32) -> Result<u32, TaskError> {
    let half = ctx
        .step("first half", || async {
            println!("the first half is done");
            Ok(number * 20)
        })
        .await?;
    if ctx.state().0 {
        std::process::abort();
    }
    ctx.step("second half", || async {
        println!("the second half is done");
        Ok(half + 2)
    })
    .await
}

fn worker(name: &str, doomed: bool) -> WorkerRuntime<Doomed> {
    // A crash is noticed when the lease runs out, so short leases recover fast.
    let config = WorkerConfig::new(name).lease_ttl(Duration::from_secs(1));
    WorkerRuntime::with_state(config, Doomed(doomed)).register("careful", careful)
}

/// Submits the task, does half of it, and dies without a word.
async fn die(url: &str) -> Result<(), Problem> {
    let client = Client::connect(url).await?.in_namespace("crash-recovery");
    println!("{}", client.submit("careful").input(&2).send().await?.id());
    Ok(worker("doomed", true).run(&client).await?)
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
    let said = String::from_utf8(died.stdout)?;
    let (id, said) = said.split_once('\n').ok_or("the first worker said nothing")?;
    println!("{}\nthe first worker ended: {}", said.trim_end(), died.status);

    let client = Client::connect(&url).await?.in_namespace("crash-recovery");
    let heir = worker("heir", false).start(&client).await?;
    let execution = client.execution(id.parse::<ExecutionId>()?);
    println!("the result is {}", execution.result::<u32>().await?);
    for attempt in execution.attempts().await? {
        println!("attempt {}: {} by {}", attempt.index, attempt.kind, attempt.worker_id.unwrap_or_default());
    }
    heir.stop().await?;
    client.close().await;
    // The embedded store keeps companions beside its file.
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    Ok(())
}
