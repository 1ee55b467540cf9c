//! A deploy waits for a person, holding no worker while it does. `cargo run --example human_approval -- [URL]`
//!
//! A person who has the waitpoint's token may approve, from anywhere: the example prints the HTTP call that would do
//! it.

use std::time::Duration;

use flowfabric::op::{GetWaitpointToken, get_waitpoint_token};
use flowfabric::{Client, Signal, StreamEvent, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    approved: bool,
    by: String,
}

impl Signal for Decision {
    const NAME: &'static str = "decision";
}

async fn deploy(ctx: TaskContext, version: String) -> Result<String, TaskError> {
    match ctx.wait_for::<Decision>().timeout(Duration::from_secs(3_600)).await? {
        Decision { approved: true, by } => Ok(format!("{version} deployed, approved by {by}")),
        Decision { approved: false, by } => Err(TaskError::new(format!("refused by {by}")).category("refused")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("human-approval");
    let worker = WorkerRuntime::new(WorkerConfig::new("deployer")).register("deploy", deploy).start(&client).await?;
    let execution = client.submit("deploy").input("v1.2.3").never_retry(["refused"]).send().await?;

    // The person's side: wait until the task asks, fetch the token, decide.
    let mut tail = execution.tail();
    while !matches!(tail.next().await.ok_or("it ended too early")??, StreamEvent::Paused { .. }) {}
    let waitpoint = execution.pending_waitpoints().await?.pop().ok_or("nothing to approve")?;
    let args = get_waitpoint_token::Args { execution_id: execution.id(), waitpoint_id: waitpoint.waitpoint_id };
    let token = client.call::<GetWaitpointToken>(args).await?.token;
    println!("waiting for approval; a person with the token could now call");
    println!("  POST /v1/executions/{}/signal  {{\"waitpoint_id\": ..., \"token\": ...}}", execution.id());
    let decision = Decision { approved: true, by: "ada".into() };
    let signal = execution.signal(Decision::NAME).waitpoint(waitpoint.waitpoint_id, token).payload(&decision);
    println!("{:?}", signal.source("person", "ada").send().await?);
    println!("{}", execution.result::<String>().await?);
    Ok(worker.stop().await?)
}
