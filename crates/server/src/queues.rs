//! How much work waits in each lane, read from the queues themselves when a caller asks, and at most every few seconds:
//! a scrape must not become a load.

use std::collections::BTreeMap;
use std::time::Duration;

use ff_core::{Family, Partition, Result, index};
use ff_engine::Engine;
use ff_store::{Answer, Query, Scan};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// A reading is shown again for this long.
const FRESH: Duration = Duration::from_secs(5);
/// Partitions that are read at once.
const AT_ONCE: usize = 16;
/// Queues of one partition that are looked at.
const QUEUES_MAX: usize = 1_000;
/// The weight of one step of priority in a queue's score.
const PRIORITY_STEP: i64 = 1_000_000_000_000;

/// The queues of one lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Depth {
    /// Executions that may be claimed.
    pub(crate) waiting: u64,
    /// How long the next in line has waited.
    pub(crate) oldest_ms: u64,
}

/// By namespace and lane.
pub(crate) type Depths = BTreeMap<(String, String), Depth>;

/// The last reading.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Option<(Instant, Depths)>>);

impl Queues {
    /// A reading that is not too old.
    pub(crate) async fn depths(&self, engine: &Engine) -> Result<Depths> {
        let mut last = self.0.lock().await;
        if let Some((at, depths)) = last.as_ref()
            && at.elapsed() < FRESH
        {
            return Ok(depths.clone());
        }
        let depths = read(engine).await?;
        *last = Some((Instant::now(), depths.clone()));
        Ok(depths)
    }
}

async fn read(engine: &Engine) -> Result<Depths> {
    let partitions = engine.partitions().all().filter(|partition| partition.family == Family::Flow);
    let reads = partitions.map(|partition| read_partition(engine, partition));
    let found: Vec<Depths> = futures_util::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
    let mut depths = Depths::new();
    for (lane, depth) in found.into_iter().flatten() {
        let all = depths.entry(lane).or_default();
        all.waiting += depth.waiting;
        all.oldest_ms = all.oldest_ms.max(depth.oldest_ms);
    }
    Ok(depths)
}

async fn read_partition(engine: &Engine, partition: Partition) -> Result<Depths> {
    let mut depths = Depths::new();
    let queues = engine.store().indexes(partition, vec![index::QUEUE_PREFIX], QUEUES_MAX).await?;
    if queues.is_empty() {
        return Ok(depths);
    }
    let questions = queues.iter().flat_map(|queue| {
        let count = Query::count_all(queue.clone());
        [count, Query::Scan(Scan::first(queue.clone(), 1))]
    });
    let answers = engine.store().read(partition, questions.collect()).await?;
    let now = answers.at;
    let mut answers = answers.answers.into_iter();
    for queue in &queues {
        let (Some(count), Some(head)) = (answers.next(), answers.next()) else { break };
        let (Some(lane), Some(waiting), Some(head)) =
            (index::QueueName::parse(queue), Answer::into_count(count), Answer::into_scan(head))
        else {
            continue;
        };
        let oldest = head.entries.first().map_or(0, |entry| age(entry.score, now));
        let depth = depths.entry((lane.namespace, lane.lane)).or_default();
        depth.waiting += waiting;
        depth.oldest_ms = depth.oldest_ms.max(oldest);
    }
    Ok(depths)
}

/// How long ago the entry with this score was created. Its priority is not known, but a step of priority is thirty
/// years, so only one instant of the recent past fits.
fn age(score: i64, now: i64) -> u64 {
    let within_step = score.rem_euclid(PRIORITY_STEP);
    let steps = (now - within_step).max(0) / PRIORITY_STEP;
    u64::try_from(now - within_step - steps * PRIORITY_STEP).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_an_entry_does_not_depend_on_its_priority() {
        let now = 1_800_000_000_000;
        for priority in [0, 1, 7, 9_000] {
            assert_eq!(age(index::queue_score(priority, now - 1_500, PRIORITY_STEP), now), 1_500);
        }
    }
}
