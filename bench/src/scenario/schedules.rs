//! Schedules that are all due at one instant: how soon after it their runs are there.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::error::Result;
use crate::figures::Figures;
use crate::latency::Latencies;
use crate::run::Run;
use crate::work::{all, per_second, take_one};

/// Creating a schedule takes less than this, as a rule; the instant lies so far behind the first of them.
const EACH: Duration = Duration::from_millis(4);
const LEAD: Duration = Duration::from_secs(5);
/// The runs are looked for this often, and for at most so long.
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(600);
const PAGE: usize = 1_000;

/// Creates schedules (`--tasks`), lets their instant come, and looks when their runs were created.
pub(crate) async fn schedules(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let (client, count) = (&subject.client, run.arguments.tasks);
    let now = client.call_json("get_deployment", json!({})).await?["now"].as_i64().ok_or("no time")?;
    let lead = LEAD + EACH * u32::try_from(count)?;
    let due = now + i64::try_from(lead.as_millis())?;
    run.progress(&format!("creating {count} schedules"));
    let began = Instant::now();
    let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(count));
    let mut creating = JoinSet::new();
    for caller in 0..run.arguments.submitters {
        let (client, left) = (client.clone(), left.clone());
        creating.spawn(async move {
            let mut number = 0;
            while take_one(&left) {
                let template = json!({ "execution": { "kind": "bench", "lane": "scheduled" } });
                let name = format!("s-{caller}-{number}");
                let args = json!({ "name": name, "spec": { "at": [due] }, "template": template });
                client.call_json("create_schedule", args).await?;
                number += 1;
            }
            Ok(())
        });
    }
    all(creating).await?;
    let created = began.elapsed();
    if created >= lead {
        return Err(format!("creating {count} schedules took longer than {} s", lead.as_secs()).into());
    }
    run.progress(&format!("{count} schedules are due soon"));
    tokio::time::sleep(lead - created).await;
    let (mut late, last) = lateness(&subject.client, count, due).await?;
    let figures = Figures::new()
        .with("schedules", count)
        .measured("created_per_s", per_second(count, created))
        .measured("all_ran_within_ms", last)
        .measured("per_s", (count as f64 * 1000.0 / last.max(1.0)).round());
    run.report(figures.latency(&mut late))?;
    subject.close().await
}

/// How long after the instant each run was created, once all of them are there; and the latest.
async fn lateness(client: &flowfabric::Client, count: usize, due: i64) -> Result<(Latencies, f64)> {
    let began = Instant::now();
    loop {
        let runs = runs(client).await?;
        if runs.len() > count {
            return Err(format!("{} runs of {count} schedules", runs.len()).into());
        }
        if runs.len() == count {
            let (mut late, mut last) = (Latencies::default(), 0);
            for created_at in runs {
                let ms = u64::try_from((created_at - due).max(0))?;
                late.record(Duration::from_millis(ms));
                last = last.max(ms);
            }
            return Ok((late, last as f64));
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("only {} of {count} schedules ran", runs.len()).into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// When each run was created.
async fn runs(client: &flowfabric::Client) -> Result<Vec<i64>> {
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = client.call_json("list_executions", json!({ "limit": PAGE, "cursor": cursor })).await?;
        let items = page["items"].as_array().ok_or("a list without items")?;
        found.extend(items.iter().filter_map(|item| item["created_at"].as_i64()));
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            return Ok(found);
        }
    }
}
