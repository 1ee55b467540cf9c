//! What many tasks leave behind in the tables of Postgres.

use std::time::Instant;

use serde_json::json;

use crate::Result;
use crate::engine::{Arguments, drain, milliseconds, per_second, submit};
use crate::open::Kind;
use crate::postgres::Database;

/// Tasks between two looks at the clock.
const CHUNK: usize = 10_000;

/// Many tasks through one database: what its tables weigh before, after, and after a vacuum, and whether it got slower.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let subject = arguments.start().await?;
    let (client, opened) = (&subject.client, &subject.opened);
    let Some(url) = opened.url.as_deref().filter(|_| arguments.store == Kind::Postgres) else {
        return Err("bloat is a matter of Postgres: use --store postgres".into());
    };
    let database = Database::connect(url).await?;
    let report = async |when: &str| -> Result<()> {
        for table in database.tables().await? {
            let figures = json!({ "when": when, "table": table.name, "table_bytes": table.heap,
                "index_bytes": table.indexes, "live_rows": table.live, "dead_rows": table.dead });
            arguments.print("bloat", figures);
        }
        Ok(())
    };
    report("before").await?;
    let (began, mut done, mut rates) = (Instant::now(), 0, Vec::new());
    while done < arguments.tasks && began.elapsed().as_secs() < arguments.seconds {
        let chunk = CHUNK.min(arguments.tasks - done);
        let chunk_began = Instant::now();
        tokio::try_join!(submit(client, chunk, arguments.submitters), drain(client, chunk, arguments.workers))?;
        rates.push(per_second(chunk, chunk_began.elapsed()));
        done += chunk;
        eprint!("\r{done} of {} tasks, {} tasks/s ", arguments.tasks, rates[rates.len() - 1]);
    }
    eprintln!();
    let took = began.elapsed();
    report("after").await?;
    let vacuum_began = Instant::now();
    database.vacuum().await?;
    let vacuum = vacuum_began.elapsed();
    report("after vacuum").await?;
    let tenth = rates.len().div_ceil(10);
    let mean = |rates: &[f64]| (rates.iter().sum::<f64>() / rates.len().max(1) as f64).round();
    arguments.print(
        "bloat",
        json!({ "tasks": done, "seconds": took.as_secs(), "tasks_per_s": per_second(done, took),
            "first_tenth_per_s": mean(&rates[..tenth]), "last_tenth_per_s": mean(&rates[rates.len() - tenth..]),
            "vacuum_ms": milliseconds(vacuum), "autovacuums": database.autovacuums().await? }),
    );
    subject.close().await
}
