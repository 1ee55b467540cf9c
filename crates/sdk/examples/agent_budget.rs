//! An agent's steps are charged to a token budget: it stops hard when the budget is used up, and goes on after a
//! reset. `cargo run --example agent_budget -- [URL]`

use std::time::Duration;

use flowfabric::op::create_budget;
use flowfabric::{Client, Limits, ReportUsageResult, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

const BUDGET: &str = "agent";

async fn step(context: TaskContext, number: u32) -> Result<u32, TaskError> {
    let answers = context.report_usage([("tokens", 40)], Some(format!("{}-{number}", context.execution_id()))).await?;
    if let Some(ReportUsageResult::HardBreach { current, limit, .. }) = answers.get(BUDGET) {
        println!("step {number}: the budget is at {current} of {limit}; it waits");
        return Err(TaskError::new("out of tokens").category("budget"));
    }
    println!("step {number}: done");
    Ok(number)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    // A namespace of its own for each run, so that each begins with a full budget.
    let namespace = format!("agent-budget-{}", std::process::id());
    let client = Client::connect(&url).await?.in_namespace(&namespace);
    let limits = Limits { hard: 100, soft: 80, ..Limits::default() };
    let dimensions = [("tokens".to_owned(), limits)].into();
    client.create_budget(create_budget::Args { name: BUDGET.into(), dimensions, ..Default::default() }).await?;

    let config = WorkerConfig::new("agent").max_concurrent_tasks(1);
    let worker = WorkerRuntime::new(config).register("step", step).start(&client).await?;
    let submit = |number: u32| client.submit("step").input(&number).budget(BUDGET).send();
    // Two steps fit; the next one meets the limit, and nothing that is charged to the budget starts any more.
    for number in [1, 2] {
        submit(number).await?.wait().await?;
    }
    let waiting = [submit(3).await?, submit(4).await?];
    while waiting[1].explain().await?.reasons.iter().all(|reason| !reason.message.contains(BUDGET)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = client.budget(BUDGET).await?;
    println!("used up: {:?} at {:?}", status.exhausted, status.usage);
    client.reset_budget(BUDGET).await?;
    println!("the budget was reset");
    for step in &waiting {
        step.wait().await?;
    }
    println!("all steps done; used since the reset: {:?}", client.budget(BUDGET).await?.usage);
    Ok(worker.stop().await?)
}
