//! What nobody waits for: records past the cap of their log, and documents that have expired, are deleted here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Pool;
use ff_core::{Key, Partition};
use ff_store::{Append, Result};
use tokio::sync::mpsc;

use crate::connect;
use crate::error;

/// How often expired documents are looked for.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);
/// Expired documents deleted in one statement.
const EXPIRED_MAX: i64 = 1_000;
/// Logs that are watched for their cap.
const LOGS_MAX: usize = 10_000;
/// A log is trimmed when it got this much more than its cap, or a quarter of the cap if that is more.
const SLACK_MIN: u64 = 64;
/// Logs that wait to be trimmed.
const TRIMS_MAX: usize = 1_024;

/// Counts what is appended. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Maintenance {
    appended: Arc<Mutex<HashMap<(Partition, Key), u64>>>,
    trims: mpsc::Sender<Trim>,
}

/// A log that has grown past its cap.
pub(crate) struct Trim {
    partition: Partition,
    log: Key,
    cap: u64,
}

impl Maintenance {
    /// Also returns what there is to trim.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Trim>) {
        let (trims, waiting) = mpsc::channel(TRIMS_MAX);
        (Self { appended: Arc::default(), trims }, waiting)
    }

    /// Notes records, and has the log trimmed now and then.
    pub(crate) fn appended(&self, partition: Partition, append: &Append) {
        let mut appended = self.appended.lock().unwrap_or_else(PoisonError::into_inner);
        if appended.len() >= LOGS_MAX {
            // Counting anew costs nothing but a little room.
            appended.clear();
        }
        let count = appended.entry((partition, append.log.clone())).or_default();
        *count += append.records.len() as u64;
        if *count >= (append.cap / 4).max(SLACK_MIN) {
            *count = 0;
            drop(appended);
            // When the queue is full the log is trimmed another time.
            let _ = self.trims.try_send(Trim { partition, log: append.log.clone(), cap: append.cap });
        }
    }
}

/// Trims and expires until it is aborted.
pub(crate) async fn run(pool: Pool, mut trims: mpsc::Receiver<Trim>) {
    let mut next_expiry = tokio::time::Instant::now() + EXPIRY_PERIOD;
    loop {
        let done = match tokio::time::timeout_at(next_expiry, trims.recv()).await {
            Ok(Some(trim)) => keep_newest(&pool, &trim).await,
            Ok(None) => return,
            Err(_) => {
                next_expiry += EXPIRY_PERIOD;
                expire(&pool).await
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, "maintenance waits for the next time");
        }
    }
}

async fn keep_newest(pool: &Pool, trim: &Trim) -> Result<()> {
    let client = connect::take(pool).await?;
    let wrong = |error| error::reading(&error);
    let statement = client
        .prepare_cached(
            "DELETE FROM records WHERE partition = $1 AND log = $2 AND sequence <= (
               SELECT sequence FROM records WHERE partition = $1 AND log = $2
               ORDER BY sequence DESC OFFSET $3 LIMIT 1)",
        )
        .await
        .map_err(wrong)?;
    let partition = i32::try_from(trim.partition.ordinal()).expect("ordinals stay below four times 65,536");
    let cap = i64::try_from(trim.cap).unwrap_or(i64::MAX);
    client.execute(&statement, &[&partition, &trim.log.as_bytes(), &cap]).await.map_err(wrong)?;
    Ok(())
}

async fn expire(pool: &Pool) -> Result<()> {
    let client = connect::take(pool).await?;
    let wrong = |error| error::reading(&error);
    let statement = client
        .prepare_cached(
            "DELETE FROM documents WHERE ctid = ANY (ARRAY(
               SELECT ctid FROM documents WHERE expires_at <= (SELECT ff_now(0))
               ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))",
        )
        .await
        .map_err(wrong)?;
    loop {
        let deleted = client.execute(&statement, &[&EXPIRED_MAX]).await.map_err(wrong)?;
        if i64::try_from(deleted).is_ok_and(|deleted| deleted < EXPIRED_MAX) {
            return Ok(());
        }
    }
}
