//! An agent in plain code: three steps, an approval, and nothing is done twice. `cargo run --example durable_agent -- [URL]`
//!
//! The crash drill: `... -- sqlite:///tmp/agent.db --crash` dies after the second step. Without the flag, the same
//! command goes on where that one died: the model is not asked again for what it has answered.

use std::time::Duration;

use flowfabric::{Client, OnDoubt, StreamEvent, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    approved: bool,
    by: String,
}

/// Stands for a model that takes time and costs money.
async fn ask_model(prompt: &str) -> Result<String, TaskError> {
    println!("the model is asked: {prompt}");
    Ok(format!("<{prompt}>"))
}

async fn write_and_send(ctx: TaskContext, topic: String) -> Result<String, TaskError> {
    let plan: String = ctx.step("plan", || ask_model(&topic)).await?;
    let draft: String = ctx.step("draft", || ask_model(&plan)).await?;
    if std::env::args().any(|argument| argument == "--crash") {
        println!("crash: the plan and the draft are in the journal");
        std::process::exit(3);
    }
    // No worker holds the task while a person thinks. With the answer the function runs again from its first line.
    let decision: Decision = ctx.wait_signal("decision").timeout(Duration::from_secs(24 * 3_600)).await?;
    if !decision.approved {
        return Err(TaskError::new(format!("refused by {}", decision.by)).category("refused"));
    }
    // A mail that was sent cannot be taken back: if it is not known whether it was sent, a person is asked.
    let send = || async {
        println!("the mail is sent");
        Ok(format!("{draft} sent, approved by {}", decision.by))
    };
    ctx.step("send", send).once(OnDoubt::Ask).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().skip(1).find(|argument| argument != "--crash").unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("durable-agent");
    // The key makes a second start of this program go on with the execution of the first.
    let execution = client.submit("agent").input("tides").idempotency_key("tides-1").send().await?;
    let config = WorkerConfig::new("agent").lease_ttl(Duration::from_secs(1));
    let worker = WorkerRuntime::new(config).register("agent", write_and_send).start(&client).await?;

    // The person's side.
    let mut tail = execution.tail();
    while !matches!(tail.next().await.ok_or("it ended too early")??, StreamEvent::Paused { .. }) {}
    execution.signal("decision").payload(&Decision { approved: true, by: "ada".into() }).send().await?;
    println!("{}", execution.result::<String>().await?);
    Ok(worker.stop().await?)
}
