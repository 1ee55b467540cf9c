//! The store itself: hands calls to its threads and waits for their answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use ff_core::{Partition, PartitionConfig};
use ff_store::{Answers, Batch, HintSender, Hints, Outcome, Query, Result, Store, StoreError, StoreInfo};
use rusqlite::Connection;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::lock::FileLock;
use crate::queue::Queue;
use crate::read::{self, Reader};
use crate::wal::{Quiet, Wal};
use crate::writer::{self, Writer, Writing};
use crate::{Options, Sync, connect, error};

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    sync: Sync,
    writes: Arc<Queue<writer::Job>>,
    reads: Arc<Queue<read::Job>>,
    /// `None` after closing, which ends the streams of all watchers.
    hints: Mutex<Option<HintSender>>,
    /// Never changes; its sender is dropped with the last thread, which tells `close` that all threads have ended.
    ended: watch::Receiver<()>,
}

/// Shared by the threads and dropped with the last of them. The lock is dropped before the sender, so that a caller
/// that saw the store closed can open the file again.
#[derive(Debug)]
struct Alive {
    _lock: FileLock,
    _ended: watch::Sender<()>,
}

/// Opens a file, creates it when missing, and brings an older one up to date.
///
/// Opening blocks for a moment; it is meant for the start of a program.
pub fn open(options: &Options) -> Result<Arc<SqliteStore>> {
    if !(1..=Options::READERS_MAX).contains(&options.readers) {
        let max = Options::READERS_MAX;
        return Err(StoreError::Config(format!("readers must be 1 to {max}, not {}", options.readers)));
    }
    let path = connect::locate(&options.path)?;
    let lock = FileLock::take(&path)?;
    let connection = connect::writer(&path, options)?;
    let last: i64 = connection
        .query_row("SELECT last FROM clock", [], |row| row.get(0))
        .map_err(|why| error::before_commit(&why))?;
    let clock = Arc::new(Clock::starting_at(last));
    let hints = HintSender::default();
    let (sender, ended) = watch::channel(());
    let alive = Arc::new(Alive { _lock: lock, _ended: sender });
    let store = SqliteStore {
        sync: options.sync,
        writes: Arc::new(Queue::new()),
        reads: Arc::new(Queue::new()),
        hints: Mutex::new(Some(hints.clone())),
        ended,
    };
    // From here on a failure drops the store, which closes the queues and so ends the threads already started.
    let quiet = Quiet::default();
    let wal = Wal::of(&path, options.wal_max_bytes, connect::BUSY_TIMEOUT, Arc::clone(&quiet));
    let writing = Writing { clock: Arc::clone(&clock), hints, wal };
    start_writer(&store, connection, writing, Arc::clone(&alive))?;
    for _ in 0..options.readers {
        start_reader(&store, &path, (Arc::clone(&clock), Arc::clone(&quiet)), Arc::clone(&alive))?;
    }
    Ok(Arc::new(store))
}

fn start_writer(store: &SqliteStore, connection: Connection, writing: Writing, alive: Arc<Alive>) -> Result<()> {
    let queue = Leaving(Arc::clone(&store.writes));
    spawn("ff-sqlite-write", move || {
        // Locals are dropped in reverse order: the connection before the queue, the lock last.
        let (_alive, queue, connection) = (alive, queue, connection);
        match Writer::prepare(&connection, writing) {
            Ok(writer) => writer.run(&queue.0),
            Err(why) => tracing::error!(%why, "the writer could not start"),
        }
    })
}

fn start_reader(
    store: &SqliteStore,
    path: &Path,
    (clock, quiet): (Arc<Clock>, Quiet),
    alive: Arc<Alive>,
) -> Result<()> {
    let queue = Leaving(Arc::clone(&store.reads));
    let connection = connect::reader(path)?;
    spawn("ff-sqlite-read", move || {
        let (_alive, queue, connection) = (alive, queue, connection);
        match Reader::prepare(&connection) {
            Ok(reader) => reader.run(&queue.0, &clock, &quiet),
            Err(why) => tracing::error!(%why, "a reader could not start"),
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(|_| ()).map_err(|why| StoreError::Unavailable(format!("a thread could not be started: {why}")))
}

/// Abandons the queue when its thread ends, for whatever reason, so that no caller waits for ever.
struct Leaving<T>(Arc<Queue<T>>);

impl<T> Drop for Leaving<T> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl SqliteStore {
    fn stop(&self) {
        self.writes.close();
        self.reads.close();
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.stop();
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn info(&self) -> StoreInfo {
        let durability = match self.sync {
            Sync::Full => "an acknowledged commit survives the death of the process and a power loss",
            Sync::Normal => {
                "an acknowledged commit survives the death of the process; a power loss may take the last moments"
            }
        };
        StoreInfo {
            kind: "sqlite",
            version: rusqlite::version().to_owned(),
            durability: durability.to_owned(),
            default_partitions: PartitionConfig::SINGLE,
        }
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        let (job, answered) = read::Job::new(partition, queries);
        self.reads.push(job)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the reading thread ended".into())))
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        batches.iter().try_for_each(Batch::validate)?;
        let (job, answered) = writer::Job::new(partition, batches);
        self.writes.push(job)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writing thread ended".into())))
    }

    fn watch(&self) -> Hints {
        let hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        // A closed store gives a watcher whose stream ends at once.
        hints.as_ref().map_or_else(|| HintSender::default().subscribe(), HintSender::subscribe)
    }

    async fn close(&self) {
        self.stop();
        let mut ended = self.ended.clone();
        // Nothing is ever sent: the wait ends when the last thread drops its share of the sender.
        while ended.changed().await.is_ok() {}
    }
}
