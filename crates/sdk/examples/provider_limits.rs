//! Twelve agents share a model that takes few calls and says 429 when there are too many. Calls are booked in order, a 429
//! closes the provider for all of them, and its rate grows back. `cargo run --example provider_limits -- [URL]`

use std::sync::Mutex;
use std::time::{Duration, Instant};

use flowfabric::op::{CreateProvider, GetProvider, create_provider, get_provider};
use flowfabric::{Client, Metered, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

const PROVIDER: &str = "model-api";
const AGENTS: u32 = 12;
/// The limit in the provider's definition, which is more than the model really takes.
const DEFINED: u64 = 20;
/// Calls that the model really takes within a second.
const REAL: usize = 8;

/// A model behind an API. It counts the calls of the last second, and refuses those that are too many.
#[derive(Default)]
struct Model {
    calls: Mutex<Vec<Instant>>,
    refused: Mutex<u32>,
}

impl Model {
    fn ask(&self, agent: u32) -> Result<Metered<String>, TaskError> {
        let mut calls = self.calls.lock().map_err(|_| TaskError::new("the model is broken"))?;
        calls.retain(|call| call.elapsed() < Duration::from_secs(1));
        if calls.len() >= REAL {
            *self.refused.lock().map_err(|_| TaskError::new("the model is broken"))? += 1;
            return Err(TaskError::throttled(Some(Duration::from_millis(500))));
        }
        calls.push(Instant::now());
        Ok(Metered::new(format!("answer for agent {agent}"), 120))
    }
}

async fn agent(context: TaskContext<Model>, number: u32) -> Result<String, TaskError> {
    let mut last = String::new();
    for _ in 0..2 {
        let call = context.acquire(PROVIDER).tokens(150);
        last = call.step("ask the model", || async { context.state().ask(number) }).await?;
    }
    Ok(last)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let namespace = format!("provider-limits-{}", std::process::id());
    let client = Client::connect(&url).await?.in_namespace(&namespace);
    let limits = create_provider::Args {
        name: PROVIDER.into(),
        namespace: Some(namespace.clone()),
        window_ms: Some(1_000),
        max_requests: Some(DEFINED),
        max_concurrent: Some(4),
        ..Default::default()
    };
    client.call::<CreateProvider>(limits).await?;

    let config = WorkerConfig::new("agents").max_concurrent_tasks(16);
    let worker = WorkerRuntime::with_state(config, Model::default()).register("agent", agent).start(&client).await?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(client.submit("agent").input(&number).send().await?);
    }
    for (number, agent) in agents.iter().enumerate() {
        assert_eq!(agent.result::<String>().await?, format!("answer for agent {number}"));
    }
    let args = get_provider::Args { name: PROVIDER.into(), namespace: Some(namespace) };
    let status = client.call::<GetProvider>(args).await?;
    println!(
        "{} calls were let through, the model refused {} of them, its rate is at {} %",
        status.granted, status.throttled, status.effective.percent
    );
    println!("all {AGENTS} agents have their answers");
    Ok(worker.stop().await?)
}
