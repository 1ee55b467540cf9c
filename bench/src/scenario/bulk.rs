//! Bulk jobs: how fast one changes many executions.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::work::{per_second, submit_in_batches};

/// Executions are submitted in calls of so many, a few at once.
const BATCH: usize = 500;
const CALLERS: usize = 4;
/// The job is looked at this often.
const LOOK: Duration = Duration::from_millis(20);

/// Cancels many waiting executions (`--tasks`) by one job, and counts them by a dry run before.
pub(crate) async fn bulk(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (client, count) = (&subject.client, run.arguments.tasks);
    run.progress(&format!("submitting {count}"));
    submit_in_batches(client, count, BATCH, CALLERS).await?;
    for dry_run in [true, false] {
        run.progress("the job is under way");
        let began = Instant::now();
        let args = json!({ "filter": { "state": ["waiting"] }, "action": "cancel", "dry_run": dry_run });
        let job = client.call_json("create_bulk", args).await?["bulk_id"].clone();
        let job = loop {
            let job = client.call_json("get_bulk", json!({ "bulk_id": job })).await?;
            if job["ended_at"].is_i64() {
                break job;
            }
            tokio::time::sleep(LOOK).await;
        };
        let took = began.elapsed();
        let done = job["progress"]["done"].as_u64().unwrap_or(0);
        if done != count as u64 {
            return Err(format!("the job changed {done} of {count}: {job}").into());
        }
        let figures = Figures::new()
            .with("executions", count)
            .with("action", if dry_run { "cancel, dry run" } else { "cancel" })
            .measured("per_s", per_second(count, took))
            .measured("took_ms", took.as_secs_f64() * 1000.0);
        run.report(figures)?;
    }
    subject.close().await
}
