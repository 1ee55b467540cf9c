//! The questions of the doctor to a store: what runs there, how it is set up, how far away it is and what time it has.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ff_core::deployment::Deployment;
use ff_core::{Document, Partition, PartitionConfig};
use ff_store::memory::MemoryStore;
use ff_store::{Layout, Look, Result, Store, StoreError};
use serde::Serialize;

use crate::{Opening, open, redacted, scheme, unknown};

/// Round trips that are timed; the middle one is told, and the fastest says most about the clock.
const ROUND_TRIPS: usize = 9;
/// Clocks that differ by more deserve a word. Correctness does not depend on it: time comes from the store.
const CLOCK_OFFSET_MAX_MS: i64 = 1_000;

/// The findings at an address. They can be printed.
#[derive(Debug, Clone, Serialize)]
pub struct Examination {
    /// The address, without a password.
    pub address: String,
    /// The version of the database.
    pub version: String,
    /// The version of the tables or of the function library there; `None` where it has not been set up yet.
    pub layout_found: Option<u32>,
    /// The version this program needs.
    pub layout_needed: u32,
    /// Settings of the database that durability and capacity depend on, by name.
    pub settings: Vec<(String, String)>,
    /// Findings that using the store brings. `None` where that would have changed it, or another process holds it.
    pub reached: Option<Reached>,
    /// Advice to the operator, in sentences.
    pub warnings: Vec<String>,
}

/// Findings that using the store brings.
#[derive(Debug, Clone, Serialize)]
pub struct Reached {
    /// What an acknowledged commit survives, in words.
    pub durability: String,
    /// The partition counts of the deployment; `None` before its first start.
    pub partitions: Option<PartitionConfig>,
    /// The middle one of a few round trips, in microseconds.
    pub round_trip_us: u64,
    /// By how much the store's clock is ahead of this machine's.
    pub clock_offset_ms: i64,
}

/// Looks at a store and, where it is set up for this version, uses it. Changes nothing there.
pub fn examine(url: &str) -> Opening<'_, Examination> {
    Box::pin(examine_any(url))
}

async fn examine_any(url: &str) -> Result<Examination> {
    let look = look(url).await?;
    let mut examination = Examination {
        address: redacted(url),
        version: look.version,
        layout_found: look.layout.found,
        layout_needed: look.layout.needed,
        settings: look.settings,
        reached: None,
        warnings: look.warnings,
    };
    if !look.layout.ready() {
        return Ok(examination);
    }
    let store = match open(url).await {
        Ok(store) => store,
        // A server that runs is no trouble: it is why the file is held.
        Err(StoreError::Locked(why)) => {
            examination.warnings.push(format!("the store is in use, so it was only looked at: {why}"));
            return Ok(examination);
        }
        Err(error) => return Err(error),
    };
    let reached = reach(&*store).await;
    store.close().await;
    let reached = reached?;
    if reached.clock_offset_ms.abs() > CLOCK_OFFSET_MAX_MS {
        let offset = reached.clock_offset_ms;
        examination.warnings.push(format!(
            "the store's clock differs from this machine's by {offset} ms: times given by clients may surprise"
        ));
    }
    examination.reached = Some(reached);
    Ok(examination)
}

async fn look(url: &str) -> Result<Look> {
    match scheme(url)? {
        "memory" => Ok(Look {
            version: MemoryStore::new().info().version,
            layout: Layout { found: Some(1), needed: 1 },
            settings: Vec::new(),
            warnings: vec!["everything ends with the process".into()],
        }),
        #[cfg(feature = "sqlite")]
        "sqlite" => ff_store_sqlite::look(&url.parse()?),
        #[cfg(feature = "valkey")]
        "valkey" | "valkeys" => ff_store_valkey::ValkeyStore::look(url).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => ff_store_postgres::look(&ff_store_postgres::Options::parse(url)?).await,
        other => Err(unknown(other)),
    }
}

async fn reach(store: &dyn Store) -> Result<Reached> {
    let mut round_trips: Vec<(Duration, i64)> = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let (began, sent) = (Instant::now(), now_ms());
        let answers = store.read(Partition::SYSTEM, Vec::new()).await?;
        let took = began.elapsed();
        // The store looked at its clock about half way.
        let half = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        round_trips.push((took, answers.at.saturating_sub(sent.saturating_add(half))));
    }
    round_trips.sort_unstable();
    let stored = store.documents(Partition::SYSTEM, vec![Deployment::key_of()]).await?.into_iter().flatten().next();
    let partitions = match stored {
        Some(stored) => {
            let deployment =
                Deployment::decode(&stored.body).map_err(|error| StoreError::Corrupt(error.to_string()))?;
            Some(deployment.partitions())
        }
        None => None,
    };
    Ok(Reached {
        durability: store.info().durability,
        partitions,
        round_trip_us: u64::try_from(round_trips[ROUND_TRIPS / 2].0.as_micros()).unwrap_or(u64::MAX),
        clock_offset_ms: round_trips[0].1,
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// One line for each finding.
impl fmt::Display for Examination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store        {}", self.address)?;
        writeln!(f, "version      {}", self.version)?;
        match self.layout_found {
            Some(found) if found == self.layout_needed => writeln!(f, "layout       {found}")?,
            Some(found) => writeln!(f, "layout       {found}, brought to {} by the next start", self.layout_needed)?,
            None => writeln!(f, "layout       none yet, made by the first start")?,
        }
        if let Some(reached) = &self.reached {
            writeln!(f, "durability   {}", reached.durability)?;
            match reached.partitions {
                Some(PartitionConfig { flow, budget, quota }) => {
                    writeln!(f, "partitions   {flow} flow, {budget} budget, {quota} quota")?;
                }
                None => writeln!(f, "partitions   fixed by the first start")?,
            }
            writeln!(f, "round trip   {} us", reached.round_trip_us)?;
            writeln!(f, "clock        {:+} ms", reached.clock_offset_ms)?;
        }
        for (name, value) in &self.settings {
            writeln!(f, "setting      {name} = {value}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning      {warning}")?;
        }
        Ok(())
    }
}
