//! The rows that many tasks leave behind in the tables of Postgres.

use std::time::Instant;

use super::throughput::WORKERS;
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::open::Kind;
use crate::postgres::Database;
use crate::run::Run;
use crate::work::{drain, milliseconds, per_second, submit};

/// Tasks between two looks at the clock.
const CHUNK: usize = 10_000;

/// Many tasks through one database: what its tables weigh before, after, and after a vacuum, and whether it got slower.
pub(crate) async fn bloat(run: &Run<'_>) -> Result<()> {
    if run.store.kind() != Kind::Postgres {
        return Err(Error::Usage("bloat is a matter of Postgres, which keeps old rows until a vacuum".into()));
    }
    let subject = run.start().await?;
    let (tasks, workers, submitters) =
        (run.arguments.tasks, run.arguments.workers_or(WORKERS), run.arguments.submitters);
    let (client, opened) = (&subject.client, &subject.opened);
    let database = Database::connect(opened.url.as_deref().unwrap_or_default()).await?;
    let report = async |when: &str| -> Result<()> {
        for table in database.tables().await? {
            run.report(
                Figures::new()
                    .with("when", when)
                    .with("table", table.name)
                    .measured("table_bytes", table.heap as f64)
                    .measured("index_bytes", table.indexes as f64)
                    .measured("live_rows", table.live as f64)
                    .measured("dead_rows", table.dead as f64),
            )?;
        }
        Ok(())
    };
    report("before").await?;
    let (began, mut done, mut rates) = (Instant::now(), 0, Vec::new());
    let seconds = u64::from(run.arguments.seconds_or(60));
    while done < tasks && began.elapsed().as_secs() < seconds {
        let chunk = CHUNK.min(tasks - done);
        let chunk_began = Instant::now();
        tokio::try_join!(submit(client, chunk, submitters), drain(client, chunk, workers))?;
        rates.push(per_second(chunk, chunk_began.elapsed()));
        done += chunk;
        run.progress(&format!("{done} of {tasks} tasks, {} tasks/s", rates[rates.len() - 1]));
    }
    let took = began.elapsed();
    report("after").await?;
    let vacuum_began = Instant::now();
    database.vacuum().await?;
    let vacuum = vacuum_began.elapsed();
    report("after vacuum").await?;
    let tenth = rates.len().div_ceil(10);
    let mean = |rates: &[f64]| (rates.iter().sum::<f64>() / rates.len().max(1) as f64).round();
    run.report(
        Figures::new()
            .with("when", "all")
            .measured("tasks", done as f64)
            .measured("seconds", took.as_secs_f64())
            .measured("tasks_per_s", per_second(done, took))
            .measured("first_tenth_per_s", mean(&rates[..tenth]))
            .measured("last_tenth_per_s", mean(&rates[rates.len() - tenth..]))
            .measured("vacuum_ms", milliseconds(vacuum))
            .measured("autovacuums", database.autovacuums().await? as f64),
    )?;
    subject.close().await
}
