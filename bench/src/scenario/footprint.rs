//! How much executions take in the store, while they wait and once they have ended.

use ff_core::op;

use super::throughput::WORKERS;
use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::work::{drain, input_of, submission, submit_each};

/// Bytes in the store for each execution: while it waits, and once it has ended.
pub(crate) async fn footprint(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (client, opened) = (&subject.client, &subject.opened);
    let (tasks, input_bytes) = (run.arguments.tasks, run.arguments.input_bytes);
    let empty = opened.size().await?;
    run.progress(&format!("queueing {tasks} with an input of {input_bytes} bytes"));
    submit_each(client, tasks, run.arguments.submitters, move |_| op::create_execution::Args {
        input: input_of(input_bytes),
        ..submission()
    })
    .await?;
    let waiting = opened.size().await?;
    let figures = |state: &str, used: u64| {
        Figures::new()
            .with("executions", tasks)
            .with("state", state)
            .with("input_bytes", input_bytes)
            .measured("store_bytes", used as f64)
            .measured("bytes_each", (used.saturating_sub(empty) as f64 / tasks as f64).round())
    };
    run.report(figures("waiting", waiting))?;
    run.progress("completing them");
    drain(client, tasks, run.arguments.workers_or(WORKERS)).await?;
    let ended = opened.size().await?;
    run.report(figures("completed", ended))?;
    subject.close().await
}
