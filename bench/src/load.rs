//! The calls of servers to their store over a while, beside what they cost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Result;
use crate::figures::Figures;
use crate::machine::processor_time;
use crate::open::Kind;
use crate::postgres::Database;
use crate::subject::Subject;

/// Counts what servers on one store ask of it.
pub(crate) struct Meter<'a> {
    servers: &'a [Subject],
    /// A database counts its transactions itself.
    database: Option<Database>,
}

impl<'a> Meter<'a> {
    pub(crate) async fn new(servers: &'a [Subject]) -> Result<Self> {
        let database = match servers.first().map(|server| &server.opened) {
            Some(opened) if opened.kind == Kind::Postgres => match &opened.url {
                Some(url) => Some(Database::connect(url).await?),
                None => None,
            },
            _ => None,
        };
        Ok(Self { servers, database })
    }

    /// Reads the counts up to now.
    pub(crate) async fn read(&self) -> Result<Reading> {
        let mut reading = Reading { processor: processor_time(), ..Reading::default() };
        for server in self.servers {
            let metrics = server.engine.metrics();
            reading.reads += metrics.reads.load(Ordering::Relaxed);
            reading.commits += metrics.commits.snapshot().0.iter().sum::<u64>();
        }
        if let Some(first) = self.servers.first() {
            reading.commands = first.opened.commands().await?;
        }
        if let Some(database) = &self.database {
            reading.transactions = Some(database.transactions().await?);
        }
        Ok(reading)
    }
}

/// The counts of a store up to some moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reading {
    reads: u64,
    commits: u64,
    commands: Option<u64>,
    transactions: Option<u64>,
    processor: Option<Duration>,
}

impl Reading {
    /// Adds what was asked each second since an earlier moment.
    pub(crate) fn rates(self, earlier: Reading, seconds: u32, figures: Figures) -> Figures {
        let rate = |count: u64| count as f64 / f64::from(seconds);
        let difference = |now: Option<u64>, then: Option<u64>| Some(rate(now?.saturating_sub(then?)));
        let spent = self.processor.zip(earlier.processor).map(|(now, then)| now.saturating_sub(then));
        figures
            .measured("reads_per_s", rate(self.reads - earlier.reads))
            .measured("commits", (self.commits - earlier.commits) as f64)
            .known("database_transactions_per_s", difference(self.transactions, earlier.transactions))
            .known("commands_per_s", difference(self.commands, earlier.commands))
            .known("own_us_per_s", spent.map(|spent| spent.as_secs_f64() * 1e6 / f64::from(seconds)))
    }
}
