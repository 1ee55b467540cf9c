//! Whether work that may not run delays work that may.

use std::time::Instant;

use ff_core::budget::Limits;
use ff_core::op;
use ff_core::{Family, index};

use crate::error::Result;
use crate::figures::Figures;
use crate::run::Run;
use crate::subject::Subject;
use crate::work::{claim_args, claim_one, milliseconds, submission, submit_each};

/// Combinations of budgets in the way. One refusal closes the gate for a whole combination, so this many are examined.
const COMBINATIONS: usize = 64;
/// Tasks that the reset makes room for.
const ROOM: u32 = 10;

/// Many behind a budget that is used up, in front of one that may run: when that one is claimed, and how many the
/// reset lets in.
pub(crate) async fn blocked(run: &Run<'_>) -> Result<()> {
    let subject = run.start().await?;
    let client = &subject.client;
    let (room, tasks) = (i64::from(ROOM), run.arguments.tasks);
    let budget = |name: String, hard: i64| op::create_budget::Args {
        name,
        dimensions: [("tokens".to_owned(), Limits { hard, ..Default::default() })].into(),
        ..Default::default()
    };
    client.create_budget(budget("spent".into(), room)).await?;
    for number in 0..COMBINATIONS {
        client.create_budget(budget(format!("wide-{number}"), 0)).await?;
    }
    client.report_budget_usage("spent", [("tokens".to_owned(), room)].into()).await?;
    run.progress(&format!("queueing {tasks} behind a budget that is used up"));
    submit_each(client, tasks, run.arguments.submitters, |number| op::create_execution::Args {
        priority: Some(10),
        budget_ids: vec!["spent".into(), format!("wide-{}", number % COMBINATIONS)],
        ..submission()
    })
    .await?;
    let free = client.submit("bench").send().await?.id();
    let began = Instant::now();
    let first = claim_one(client, claim_args(0, 30_000)).await?.execution_id;
    let until_claimed = began.elapsed();
    if first != free {
        return Err(format!("claimed {first} instead of the one that may run").into());
    }
    let parked = count_parked(&subject, "b:spent").await?;
    let began = Instant::now();
    client.reset_budget("spent").await?;
    let reset = began.elapsed();
    let left = count_parked(&subject, "b:spent").await?;
    run.report(
        Figures::new()
            .with("blocked", tasks)
            .with("budget_combinations", COMBINATIONS)
            .with("reset_with_room_for", ROOM)
            .measured("claimed_after_ms", milliseconds(until_claimed))
            .measured("parked", parked as f64)
            .measured("reset_ms", milliseconds(reset))
            .measured("unparked", parked.saturating_sub(left) as f64),
    )?;
    subject.close().await
}

/// How many executions a gate keeps out of their queues.
async fn count_parked(subject: &Subject, gate: &str) -> Result<u64> {
    let engine = &subject.engine;
    let mut parked = 0;
    for partition in engine.partitions().all().filter(|partition| partition.family == Family::Flow) {
        let blocked = index::blocked(&subject.namespace, gate);
        parked += engine.store().count(partition, blocked, i64::MIN, i64::MAX).await?;
    }
    Ok(parked)
}
