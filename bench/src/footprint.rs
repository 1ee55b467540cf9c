//! How much memory executions take in the server, while they wait and once they have ended.

use ff_core::encoding::JsonText;
use ff_core::op;
use serde_json::json;

use crate::Result;
use crate::engine::{Arguments, drain, submission, submit_each};

/// Bytes in the server for each execution: while it waits, and once it has ended.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let (client, opened) = (&subject.client, &subject.opened);
    let (tasks, input_bytes) = (arguments.tasks, arguments.input_bytes);
    let Some(empty) = opened.used_memory().await? else {
        return Err("only Valkey tells how much memory it uses".into());
    };
    eprintln!("queueing {tasks} with an input of {input_bytes} bytes");
    submit_each(client, tasks, arguments.submitters, move |_| op::create_execution::Args {
        // A JSON string has two quotes around it.
        input: (input_bytes >= 2).then(|| JsonText(format!("\"{}\"", "i".repeat(input_bytes - 2)))),
        ..submission()
    })
    .await?;
    let each = |bytes: u64| bytes.saturating_sub(empty) / u64::try_from(tasks.max(1)).unwrap_or(u64::MAX);
    let waiting = opened.used_memory().await?.unwrap_or_default();
    arguments.print(
        "footprint",
        json!({ "waiting": tasks, "input_bytes": input_bytes, "used_memory": waiting, "bytes_per_waiting": each(waiting) }),
    );
    eprintln!("completing them");
    drain(client, tasks, arguments.workers).await?;
    let ended = opened.used_memory().await?.unwrap_or_default();
    arguments
        .print("footprint", json!({ "completed": tasks, "used_memory": ended, "bytes_per_completed": each(ended) }));
    subject.close().await
}
