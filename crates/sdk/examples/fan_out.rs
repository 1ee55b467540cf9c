//! One execution becomes a hundred, which become one again: a flow created in one call.
//! `cargo run --example fan_out -- [URL]`

use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

const PARTS: u64 = 100;

async fn split(_: TaskContext, (): ()) -> Result<u64, TaskError> {
    Ok(10_000)
}

async fn count(_: TaskContext, part: u64) -> Result<u64, TaskError> {
    Ok(part * part)
}

async fn sum(context: TaskContext, (): ()) -> Result<u64, TaskError> {
    let mut total = 0;
    for upstream in context.upstreams().await? {
        let result = upstream.result.ok_or_else(|| TaskError::new("a part has no result"))?;
        total += serde_json::from_slice::<u64>(&result.bytes)?;
    }
    Ok(total)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("fan-out");
    let config = WorkerConfig::new("counter").max_concurrent_tasks(32);
    let runtime = WorkerRuntime::new(config).register("split", split).register("count", count).register("sum", sum);
    let worker = runtime.start(&client).await?;

    let mut flow = client.new_flow("fan_out").node("split", client.submit("split")).node("sum", client.submit("sum"));
    for part in 1..=PARTS {
        let name = format!("part-{part}");
        flow = flow.node(&name, client.submit("count").input(&part)).edge("split", &name).edge(&name, "sum");
    }
    let flow = flow.create().await?;
    let total: u64 = flow.node("sum").ok_or("the flow has no sum")?.result().await?;
    println!("the squares of 1 to {PARTS} sum to {total}");
    let counts = client.flow(flow.id()).await?;
    println!("flow {} is {} with {} members", flow.id(), counts.state, counts.member_count);
    Ok(worker.stop().await?)
}
