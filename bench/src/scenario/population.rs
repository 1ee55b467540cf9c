//! Many executions that lists and counts are tried on.

use ff_core::op::create_execution;
use flowfabric::Client;

use super::throughput::WORKERS;
use crate::error::Result;
use crate::run::Run;
use crate::work::{drain, submission, submit_each_in_batches};

/// One of so many executions has ended; the others wait.
const ENDED_EVERY: usize = 10;
/// Lanes of those that wait: `lane-0` and so on.
pub(super) const LANES: usize = 4;
/// Kinds: `kind-0` and so on.
const KINDS: usize = 8;
/// Values of the tag `customer`.
const CUSTOMERS: usize = 1_000;
/// Executions are submitted in calls of so many, a few at once.
const BATCH: usize = 500;
const CALLERS: usize = 4;

/// Submits `--tasks` executions of several kinds to several lanes.
pub(super) async fn submit(run: &Run<'_>, client: &Client) -> Result<()> {
    run.progress(&format!("submitting {}", run.arguments.tasks));
    submit_each_in_batches(client, run.arguments.tasks, BATCH, CALLERS, numbered).await
}

/// Completes one of ten.
pub(super) async fn complete_some(run: &Run<'_>, client: &Client) -> Result<()> {
    run.progress("completing some of them");
    drain(client, run.arguments.tasks.div_ceil(ENDED_EVERY), run.arguments.workers_or(WORKERS)).await
}

/// Some are in the lane that is drained.
fn numbered(number: usize) -> create_execution::Args {
    let lane =
        if number.is_multiple_of(ENDED_EVERY) { "default".to_owned() } else { format!("lane-{}", number % LANES) };
    create_execution::Args {
        kind: format!("kind-{}", number % KINDS),
        lane: Some(lane),
        tags: [("customer".to_owned(), (number % CUSTOMERS).to_string())].into(),
        ..submission()
    }
}
