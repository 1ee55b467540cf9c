//! Sixty-four agents race for one token budget. Each reserves before it calls its model and settles what the call really
//! took, so that together they never pass the ceiling. `cargo run --example agent_budget -- [URL]`

use flowfabric::op::create_budget;
use flowfabric::{Client, HardAction, Limits, Spent, TaskContext, TaskError, WorkerConfig, WorkerRuntime, category};

const BUDGET: &str = "agents";
const AGENTS: u32 = 64;
const CEILING: i64 = 1_000;

/// A model whose calls take between 1 and 20 tokens; the number is known only afterwards.
async fn ask_model(agent: u32, call: u32) -> Result<i64, TaskError> {
    tokio::task::yield_now().await;
    Ok(i64::from((agent * 7 + call * 13) % 20 + 1))
}

async fn agent(context: TaskContext, number: u32) -> Result<i64, TaskError> {
    let mut spent = 0;
    for call in 0..8 {
        let answer = context.spend("model call", [("tokens", 20)], || async {
            let tokens = ask_model(number, call).await?;
            Ok(Spent::new(tokens, [("tokens", tokens)]))
        });
        match answer.await {
            Ok(tokens) => spent += tokens,
            // Without room the call was not made: the agent ends with what it has.
            Err(error) if error.has_category(category::BUDGET_REFUSED) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(spent)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    // A namespace of its own for each run, so that each begins with a full budget.
    let namespace = format!("agent-budget-{}", std::process::id());
    let client = Client::connect(&url).await?.in_namespace(&namespace);
    let dimensions = [("tokens".to_owned(), Limits { hard: CEILING, ..Limits::default() })].into();
    // An agent that would start while nothing is left ends at once instead of waiting for a reset.
    let on_hard = Some(HardAction::Fail);
    client
        .create_budget(create_budget::Args { name: BUDGET.into(), dimensions, on_hard, ..Default::default() })
        .await?;

    let config = WorkerConfig::new("agents").max_concurrent_tasks(64);
    let worker = WorkerRuntime::new(config).register("agent", agent).start(&client).await?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(client.submit("agent").input(&number).budget(BUDGET).send().await?);
    }
    for agent in &agents {
        agent.wait().await?;
        let tokens = client.budget(BUDGET).await?.standing["tokens"].clone();
        assert!(tokens.used - tokens.overrun + tokens.reserved <= CEILING, "{tokens:?}");
    }
    let tokens = client.budget(BUDGET).await?.standing["tokens"].clone();
    println!("{AGENTS} agents used {} tokens, {} are held, {:?} are left", tokens.used, tokens.reserved, tokens.left);
    println!("the ceiling of {CEILING} held");
    Ok(worker.stop().await?)
}
