//! An agent: a model chooses tools in a loop, each call a step; a budget limits it, a person approves what it does to the
//! world, and no crash makes it think or pay twice. `cargo run --example agent_loop -- [URL]`
//!
//! The crash drill: `... -- sqlite:///tmp/agent.db --die-at N` dies at the N-th boundary of a step. Started again without
//! it, the agent goes on where it died. `--effects FILE` appends a line for every body that runs.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowfabric::op::create_budget;
use flowfabric::{Client, Limits, OnDoubt, PublicState, Signal, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

const BUDGET: &str = "agent";
const TURNS_MAX: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
struct Research {
    topic: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    approved: bool,
    by: String,
}

impl Signal for Decision {
    const NAME: &'static str = "decision";
}

/// The model's next wish.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Turn {
    Search(String),
    Publish(String),
}

/// The drill: where this process dies, and where it writes down what it did to the world.
#[derive(Debug, Default)]
struct Drill {
    die_at: Option<u32>,
    boundary: AtomicU32,
    effects: Option<String>,
}

impl Drill {
    /// A boundary of a step: the process may die here as a power cut would have it.
    fn boundary(&self) {
        if Some(self.boundary.fetch_add(1, Ordering::SeqCst)) == self.die_at {
            let own = std::process::id().to_string();
            let killed = std::process::Command::new("kill").args(["-9", &own]).status();
            unreachable!("a killed process goes on: {killed:?}");
        }
    }

    fn effect(&self, what: &str) -> Result<(), TaskError> {
        println!("{what}");
        if let Some(path) = &self.effects {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{what}")?;
            file.sync_data()?;
        }
        Ok(())
    }
}

/// Stands for a model that takes time and costs money: it searches twice, then publishes.
async fn ask_model(drill: &Drill, seen: &[String]) -> Result<Turn, TaskError> {
    drill.effect(&format!("model {}", seen.len()))?;
    Ok(match seen.len() {
        0 => Turn::Search("tides".into()),
        1 => Turn::Search(format!("more about {}", seen[0])),
        _ => Turn::Publish(seen.join(", ")),
    })
}

async fn search(drill: &Drill, words: &str) -> Result<String, TaskError> {
    drill.effect(&format!("search {words}"))?;
    Ok(format!("<{words}>"))
}

#[flowfabric::task]
async fn research(ctx: TaskContext<Drill>, task: Research) -> Result<String, TaskError> {
    let drill = ctx.state();
    let mut seen = Vec::new();
    for turn in 0..TURNS_MAX {
        drill.boundary();
        let next: Turn = ctx.step("think", || ask_model(drill, &seen)).key(turn.to_string()).await?;
        drill.boundary();
        // The same turn is charged once, however often this line is reached. A used up budget is an error.
        ctx.report_usage([("tokens", 10)], Some(format!("turn-{turn}"))).await?;
        match next {
            Turn::Search(words) => {
                let found: String = ctx.step("search", || search(drill, &words)).key(turn.to_string()).await?;
                drill.boundary();
                seen.push(found);
            }
            Turn::Publish(text) => {
                // No worker holds the task while a person thinks.
                let decision = ctx.wait_for::<Decision>().timeout(Duration::from_secs(86_400)).await?;
                drill.boundary();
                if !decision.approved {
                    return Err(TaskError::new(format!("refused by {}", decision.by)).category("refused"));
                }
                // A published report cannot be taken back. If it is not known whether it was published, the step fails,
                // and people look.
                let publish = || async {
                    drill.effect("publish")?;
                    drill.boundary();
                    Ok(format!("{}: {text}, approved by {}", task.topic, decision.by))
                };
                let published: String = ctx.step("publish", publish).once(OnDoubt::Fail).await?;
                drill.boundary();
                return Ok(published);
            }
        }
    }
    Err(TaskError::new("the agent does not come to an end").category("turns"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut url = "memory://".to_owned();
    let mut namespace = "agent-loop".to_owned();
    let mut drill = Drill::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--die-at" => drill.die_at = arguments.next().and_then(|number| number.parse().ok()),
            "--effects" => drill.effects = arguments.next(),
            "--namespace" => namespace = arguments.next().unwrap_or(namespace),
            _ => url = argument,
        }
    }
    let client = Client::connect(&url).await?.in_namespace(&namespace);
    let dimensions = [("tokens".to_owned(), Limits { hard: 100, soft: 80, ..Limits::default() })].into();
    client.create_budget(create_budget::Args { name: BUDGET.into(), dimensions, ..Default::default() }).await?;
    // The key makes a second start of this program go on with the execution of the first.
    let task = client.submit(Research { topic: "The sea".into() });
    let terms = ["in_doubt", "refused", "budget_exceeded"];
    let task = task.with(|it| it.budget(BUDGET).never_retry(terms).idempotency_key("the-sea"));
    let execution = task.send().await?;
    // Short, so that a second start of this program soon gets what a killed one held, and long enough that a busy machine does
    // not cost the lease of a step that is under way: its body would run again.
    let config = WorkerConfig::new("agent").lease_ttl(Duration::from_secs(3));
    let worker = WorkerRuntime::with_state(config, drill).serve(research).start(&client).await?;

    // The person's side: a decision may come before the task waits for it, and is kept. The key makes it one decision.
    let decision = Decision { approved: true, by: "ada".into() };
    if !execution.state().await?.is_terminal() {
        let signal = execution.signal(Decision::NAME).payload(&decision).idempotency_key("ada");
        signal.send().await?;
    }
    let ended = execution.wait().await?;
    if ended.public_state == PublicState::Completed {
        println!("{}", execution.result().await?);
    } else {
        println!("ended as {}: {}", ended.public_state, ended.last_failure.map(|it| it.reason).unwrap_or_default());
    }
    println!("tokens used: {:?}", client.budget(BUDGET).await?.usage.get("tokens"));
    worker.stop().await?;
    client.close().await;
    Ok(())
}
