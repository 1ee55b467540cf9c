//! A mock model streams its answer token by token; a viewer sees it grow. `cargo run --example llm_stream -- [URL]`
//!
//! Against a server the viewer reads the same server-sent events that a browser would.

use std::io::Write;

use flowfabric::{Client, Frame, StreamEvent, TaskContext, TaskError, WorkerConfig, WorkerRuntime};

/// Stands in for a model.
const ANSWER: &str = "A durable execution survives its worker, its server and your deploy on a Friday afternoon.";

async fn answer(context: TaskContext, question: String) -> Result<String, TaskError> {
    context.update_progress(0, format!("thinking about {question:?}")).await?;
    for word in ANSWER.split_inclusive(' ') {
        context.emit(Frame::text("token", word)).await?;
    }
    context.report_usage([("tokens", 17)], None).await?;
    Ok(ANSWER.into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("llm-stream");
    let worker = WorkerRuntime::new(WorkerConfig::new("model")).register("answer", answer).start(&client).await?;
    let execution = client.submit("answer").input("what is durable execution?").send().await?;
    let mut tail = execution.tail();
    while let Some(event) = tail.next().await {
        match event? {
            StreamEvent::Frame(frame) => print!("{}", std::str::from_utf8(&frame.payload)?),
            // Frames of an attempt that did not survive are void.
            StreamEvent::Attempt { attempt } => println!("\n[attempt {attempt} begins anew]"),
            StreamEvent::End { public_state } => println!("\n[{public_state}]"),
            _ => {}
        }
        std::io::stdout().flush()?;
    }
    Ok(worker.stop().await?)
}
