//! FlowFabric on PostgreSQL, 13 or later.
//!
//! A commit is one call of the function `ff_commit_2`, which takes its locks in a fixed order, reads the clock behind
//! them, checks every guard and then writes. Writers combine the commits of many callers that touch nothing in
//! common into one call. Nothing is read back but bodies; the other columns are for people.

mod answer;
mod clock;
mod commit;
mod connect;
mod describe;
mod drain;
mod error;
mod locks;
mod look;
mod maintain;
mod message;
mod migrate;
mod names;
mod options;
mod queue;
mod read;
mod rows;
mod tls;
mod touch;
mod watch;
mod writer;

pub use describe::{Columns, Describe, View};
pub use options::{Encryption, Options};

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use ff_core::{Partition, PartitionConfig};
use ff_store::{Answers, Batch, Hints, Look, Outcome, Query, Result, Store, StoreError, StoreInfo};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::connect::{Connector, Server};
use crate::locks::Locks;
use crate::maintain::Maintenance;
use crate::read::Reader;
use crate::watch::{Exchange, Notices};
use crate::writer::Writers;

/// The schema version this program works with.
pub fn schema_version() -> u32 {
    migrate::known()
}

/// A future that is compiled here, with the client of the database, and not again by everything that waits for it.
pub type Opening<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Looks at the database at an address, without changing anything there.
pub fn look(options: &Options) -> Opening<'_, Look> {
    Box::pin(look::look(options))
}

/// A store in one schema of a database. Other processes may use the same one at the same time.
pub struct PostgresStore {
    server: Server,
    writers: Arc<Writers>,
    reader: Reader,
    notices: Notices,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    /// End by themselves when the queue is closed.
    writers: Vec<JoinHandle<()>>,
    /// Run until they are aborted.
    others: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("server", &self.server).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and begins to listen for hints.
    pub fn open(options: Options) -> Opening<'static, Self> {
        Box::pin(Self::open_with(options))
    }

    async fn open_with(options: Options) -> Result<Self> {
        let server = prepare(&options).await?;
        let connector = connect::connector(&options)?;
        let locks = Locks::of_schema(&options.schema);
        let clock = Arc::new(Clock::default());
        let writing = writer_count(options.pool_size);
        let write_pool = connect::pool(&options, &connector, writing)?;
        let read_pool = connect::pool(&options, &connector, options.pool_size - writing)?;

        let (maintenance, chores) = Maintenance::new();
        let (exchange, waiting) = Exchange::new(connector, read_pool.clone(), &options, maintenance.clone());
        let notices = exchange.notices();
        let writers = Arc::new(Writers::new(write_pool, locks, &options, clock.clone(), notices.clone()));
        let reader = Reader::new(read_pool.clone(), locks, clock, options.answer_timeout(), maintenance);

        let (first, listening) = oneshot::channel();
        let others = vec![
            tokio::spawn(exchange.clone().listen(first)),
            tokio::spawn(exchange.notify(waiting)),
            tokio::spawn(maintain::run(read_pool, options.answer_timeout(), locks, chores)),
        ];
        let tasks = Tasks { writers: (0..writing).map(|_| tokio::spawn(writers.clone().run())).collect(), others };
        let store = Self { server, writers, reader, notices, tasks: Mutex::new(tasks) };
        match listening.await {
            Ok(Ok(())) => Ok(store),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::Unavailable("the listener ended".into())),
        }
    }
}

/// Looks at the server and migrates, on a connection that may take its time.
async fn prepare(options: &Options) -> Result<Server> {
    let (mut client, connection) = Connector::new(options, &[])?.connect().await?;
    let driver = tokio::spawn(connection);
    let server = async {
        let server = connect::inspect(&client).await?;
        migrate::migrate(&mut client, &options.schema).await?;
        Ok(server)
    }
    .await;
    drop(client);
    driver.abort();
    server
}

/// Few writers make large groups; more than one keeps the server busy while another waits for the disk.
fn writer_count(pool_size: usize) -> usize {
    (pool_size / 4).clamp(1, 4)
}

#[async_trait]
impl Store for PostgresStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "postgres",
            version: self.server.version.clone(),
            durability: self.server.durability.clone(),
            default_partitions: PartitionConfig::SINGLE,
        }
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        self.reader.read(partition, queries).await
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        self.writers.commit(partition, batches).await
    }

    fn watch(&self) -> Hints {
        self.notices.subscribe()
    }

    async fn close(&self) {
        self.writers.queue.close();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for writer in tasks.writers {
            if let Err(error) = writer.await {
                tracing::error!(%error, "a writer did not end well");
            }
        }
        tasks.others.iter().for_each(JoinHandle::abort);
        self.notices.end();
        self.writers.pool.close();
        self.reader.pool.close();
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.writers.queue.close();
        // Writers finish what was accepted; the other tasks have no caller left to serve.
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.others.iter().for_each(JoinHandle::abort);
        self.notices.end();
    }
}
