//! Maintenance that no caller waits for: records past the cap of their log, and documents that have expired, are
//! deleted here, and it is noted how far indexes are drained.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use ff_core::{IndexName, Key, Partition};
use ff_store::{Append, Batch, Result};
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;

use crate::connect::{self, within};
use crate::drain::{self, Drained, Taken};
use crate::error;
use crate::locks::Locks;

/// How often expired documents are looked for.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);
/// Rows deleted in one statement: few enough for any time limit.
const DELETED_MAX: i64 = 1_000;
/// Records counted in one statement.
const COUNTED_MAX: u64 = 100_000;
/// A log gets about this much more than its cap before it is trimmed, or a quarter of the cap if that is more.
const SLACK_MIN: u64 = 64;
/// Chores that wait.
const CHORES_MAX: usize = 1_024;

/// Has something done now and then. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Maintenance {
    dice: Arc<Dice>,
    taken: Arc<Taken>,
    chores: mpsc::Sender<Chore>,
}

/// Something to do.
pub(crate) enum Chore {
    Trim(Trim),
    Drain(Drained),
}

/// A log that may have grown past its cap.
pub(crate) struct Trim {
    partition: Partition,
    log: Key,
    cap: u64,
}

impl Maintenance {
    /// Also returns what there is to do.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Chore>) {
        let (chores, waiting) = mpsc::channel(CHORES_MAX);
        (Self { dice: Arc::default(), taken: Arc::default(), chores }, waiting)
    }

    /// Notes what a batch that was applied did to logs that have a cap and to indexes.
    pub(crate) fn applied(&self, partition: Partition, batch: &Batch) {
        batch.appends.iter().filter(|append| append.cap > 0).for_each(|append| self.appended(partition, append));
        for drained in self.taken.take(partition, batch) {
            // When the queue is full it is noted another time.
            let _ = self.chores.try_send(Chore::Drain(drained));
        }
    }

    /// Notes that an index is scanned from its beginning.
    pub(crate) fn scanned(&self, partition: Partition, index: &IndexName) {
        self.taken.scanned(partition, index);
    }

    /// Notes records. Chance decides which of them have the log trimmed, so that nothing need be remembered of any
    /// log: neither a restart nor any number of other logs keeps one from its turn.
    fn appended(&self, partition: Partition, append: &Append) {
        let slack = (append.cap / 4).max(SLACK_MIN);
        if self.dice.below(slack) < append.records.len() as u64 {
            // When the queue is full the log is trimmed another time.
            let trim = Trim { partition, log: append.log.clone(), cap: append.cap };
            let _ = self.chores.try_send(Chore::Trim(trim));
        }
    }
}

/// Numbers without a pattern; nothing secret depends on them.
#[derive(Default)]
struct Dice {
    seed: RandomState,
    thrown: AtomicU64,
}

impl Dice {
    /// A number below `sides`, which is not 0.
    fn below(&self, sides: u64) -> u64 {
        self.seed.hash_one(self.thrown.fetch_add(1, Ordering::Relaxed)) % sides
    }
}

/// Does what there is to do, and expires, until it is aborted. Any one statement has `limit` to be answered.
pub(crate) async fn run(pool: Pool, limit: Duration, locks: Locks, mut chores: mpsc::Receiver<Chore>) {
    let mut next_expiry = tokio::time::Instant::now() + EXPIRY_PERIOD;
    loop {
        let done = match tokio::time::timeout_at(next_expiry, chores.recv()).await {
            Ok(Some(Chore::Trim(trim))) => {
                on_a_connection(&pool, async |client| keep_newest(client, limit, &trim).await).await
            }
            Ok(Some(Chore::Drain(drained))) => {
                on_a_connection(&pool, async |client| within(limit, drain::note(client, locks, &drained)).await).await
            }
            Ok(None) => return,
            Err(_) => {
                next_expiry += EXPIRY_PERIOD;
                on_a_connection(&pool, async |client| expire(client, limit).await).await
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a chore was not done; it waits for the next time");
        }
    }
}

async fn on_a_connection(pool: &Pool, work: impl AsyncFnOnce(&Object) -> Result<()>) -> Result<()> {
    let client = connect::take(pool).await?;
    let done = work(&client).await;
    connect::give_back(client, done)
}

/// A record of a log. One that was removed and began anew gives its numbers again, but all of its records are later.
struct Place {
    sequence: i64,
    at: i64,
}

/// Deletes the oldest records first, a few at a time, so that a log of any size gets smaller.
async fn keep_newest(client: &Object, limit: Duration, trim: &Trim) -> Result<()> {
    // Each statement goes on behind the last: to begin at the oldest would be to step over all that was just deleted.
    const DELETE: &str = "WITH gone AS (
           DELETE FROM records WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM records
             WHERE partition = $1 AND log = $2 AND sequence > $3 AND sequence <= $4 AND at <= $5
             ORDER BY sequence LIMIT $6))
           RETURNING sequence),
         noted AS (
           INSERT INTO logs AS l (partition, log, counted, next, removed)
           SELECT $1, $2, false, max(sequence) + 1, max(sequence) FROM gone HAVING count(*) > 0
           ON CONFLICT (partition, log) DO UPDATE SET removed = greatest(l.removed, excluded.removed))
         SELECT count(*), max(sequence) FROM gone";
    let Some(last) = newest_too_many(client, limit, trim).await? else { return Ok(()) };
    let (partition, log) = (partition(trim), trim.log.as_bytes());
    let wrong = |error| error::reading(&error);
    let mut behind = 0_i64;
    loop {
        let deleted = async {
            let statement = client.prepare_cached(DELETE).await.map_err(wrong)?;
            let arguments: [&(dyn ToSql + Sync); 6] =
                [&partition, &log, &behind, &last.sequence, &last.at, &DELETED_MAX];
            client.query_one(&statement, &arguments).await.map_err(wrong)
        };
        let row = within(limit, deleted).await?;
        match (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1)) {
            (DELETED_MAX.., Some(sequence)) => behind = sequence,
            _ => return Ok(()),
        }
    }
}

/// The newest record that the cap leaves no room for.
async fn newest_too_many(client: &Object, limit: Duration, trim: &Trim) -> Result<Option<Place>> {
    const OLDER: &str = "SELECT sequence, at FROM records
         WHERE partition = $1 AND log = $2 AND sequence <= $3 AND at <= $4
         ORDER BY sequence DESC OFFSET $5 LIMIT 1";
    let (partition, log) = (partition(trim), trim.log.as_bytes());
    let wrong = |error| error::reading(&error);
    let mut from = Place { sequence: i64::MAX, at: i64::MAX };
    let mut left = trim.cap;
    while left > 0 {
        let step = left.min(COUNTED_MAX);
        left -= step;
        let step = i64::try_from(step).expect("it is at most the constant");
        let older = async {
            let statement = client.prepare_cached(OLDER).await.map_err(wrong)?;
            let arguments: [&(dyn ToSql + Sync); 5] = [&partition, &log, &from.sequence, &from.at, &step];
            client.query_opt(&statement, &arguments).await.map_err(wrong)
        };
        match within(limit, older).await? {
            Some(row) => from = Place { sequence: row.get(0), at: row.get(1) },
            None => return Ok(None),
        }
    }
    Ok(Some(from))
}

fn partition(trim: &Trim) -> i32 {
    i32::try_from(trim.partition.ordinal()).expect("ordinals stay below four times 65,536")
}

async fn expire(client: &Object, limit: Duration) -> Result<()> {
    const DELETE: &str = "DELETE FROM documents WHERE ctid = ANY (ARRAY(
           SELECT ctid FROM documents WHERE expires_at <= (SELECT ff_now(0))
           ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))";
    let wrong = |error| error::reading(&error);
    loop {
        let deleted = async {
            let statement = client.prepare_cached(DELETE).await.map_err(wrong)?;
            client.execute(&statement, &[&DELETED_MAX]).await.map_err(wrong)
        };
        let deleted = within(limit, deleted).await?;
        if i64::try_from(deleted).is_ok_and(|deleted| deleted < DELETED_MAX) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: Partition = Partition::flow(0);
    /// Records that may be there beyond the cap of [`append`].
    const SLACK: u64 = SLACK_MIN;

    fn append(log: &str, cap: u64) -> Append {
        Append {
            log: Key::from_bytes(log.as_bytes()),
            records: vec!["record".into()],
            expected: None,
            cap,
            in_turn: false,
        }
    }

    fn trimmed(chores: &mut mpsc::Receiver<Chore>) -> u64 {
        std::iter::from_fn(|| chores.try_recv().ok()).filter(|chore| matches!(chore, Chore::Trim(_))).count() as u64
    }

    // By chance, any of these fails once in 10^17 times.

    #[test]
    fn a_log_is_trimmed_though_its_process_begins_anew_with_every_record() {
        let events = append("events", SLACK * 4);
        let trims = (0..SLACK * 40).map(|_| {
            let (maintenance, mut trims) = Maintenance::new();
            maintenance.appended(PARTITION, &events);
            trimmed(&mut trims)
        });
        assert!(trims.sum::<u64>() > 0);
    }

    #[test]
    fn a_log_is_trimmed_however_many_others_come_between() {
        let (maintenance, mut trims) = Maintenance::new();
        for _ in 0..40 {
            (1..SLACK).for_each(|_| maintenance.appended(PARTITION, &append("events", SLACK * 4)));
            // These are far from any cap.
            (0..10_000).for_each(|number| maintenance.appended(PARTITION, &append(&format!("{number}"), u64::MAX)));
        }
        assert!(trimmed(&mut trims) > 0);
    }

    #[test]
    fn a_log_is_trimmed_about_once_in_a_quarter_of_its_cap() {
        let (maintenance, mut trims) = Maintenance::new();
        let mut times = 0;
        for _ in 0..SLACK * 1_000 {
            maintenance.appended(PARTITION, &append("events", SLACK * 4));
            times += trimmed(&mut trims);
        }
        assert!((700..1_300).contains(&times), "{times} times");
    }
}
