//! The least there is: a worker, a submission, a result. `cargo run --example hello -- [URL]`

use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

async fn greet(_: TaskContext, name: String) -> Result<String, TaskError> {
    Ok(format!("Hello, {name}!"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?;
    let worker = WorkerRuntime::new(WorkerConfig::new("greeter")).register("greet", greet).start(&client).await?;
    let greeting: String = client.submit("greet").input("world").send().await?.result().await?;
    println!("{greeting}");
    Ok(worker.stop().await?)
}
