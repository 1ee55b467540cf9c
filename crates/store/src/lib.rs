//! The store: partitioned documents with ordered indexes, append-only logs, blobs and wake-up hints.
//!
//! A store knows nothing about flows or signals, and of leases only an instant beside a document. It has four methods:
//! [`Store::read`] answers several questions about one partition in one round trip, [`Store::commit`] applies
//! independent guarded batches, [`Store::barrier`] returns when everything that was read will last, and
//! [`Store::watch`] delivers hints. All rules about what may happen when are decided above this trait, in `ff-core`;
//! every implementation of the trait is checked by one conformance suite.

mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod hints;
mod look;
pub mod memory;
mod query;
mod validate;

pub use batch::{
    Append, AppliedBatch, Batch, BlobChange, Conflict, ConflictReason, Effect, EntryChange, Fence, Guard, LeaseChange,
    Outcome, Put, Trim, Version,
};
pub use error::StoreError;
pub use hints::{Hint, HintSender, Hints, WatchEvent};
pub use look::{Layout, Look};
pub use query::{Answer, Answers, IndexEntry, LogPage, LogRecord, LogStart, Query, Scan, ScanPage, StoredDocument};

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::{IndexName, Key, Partition, PartitionConfig};

/// The result of talking to a store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// The description of a store, for logs and the doctor.
#[derive(Debug, Clone)]
pub struct StoreInfo {
    /// `memory`, `sqlite`, `valkey` or `postgres`.
    pub kind: &'static str,
    /// The version of the database behind it.
    pub version: String,
    /// What an acknowledged commit survives, in words.
    pub durability: String,
    /// The partition counts a new deployment on this store gets when none are configured.
    pub default_partitions: PartitionConfig,
}

/// A partitioned transactional document store.
///
/// Time is the store's own and never goes back: every answer carries it, guards are judged by it, and leases are
/// computed from it inside the commit.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The description of this store.
    fn info(&self) -> StoreInfo;

    /// Answers the queries, in order, in one round trip. Each answer is consistent in itself; a change may fall
    /// between two answers of one call.
    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers>;

    /// Applies each batch entirely or not at all, in one round trip. Batches are independent: one that meets a
    /// conflict harms no other. They are applied in order, each seeing what the ones before it wrote.
    ///
    /// An `Err` speaks of the whole call; [`StoreError::outcome_unknown`] says whether some batches may have been
    /// applied all the same. Repeating the call is then safe: a batch that was applied meets its own command id.
    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>>;

    /// Returns when everything that earlier reads of the partition have shown is as lasting as an acknowledged commit.
    /// An answer from a read alone ("it was done before") must wait for it: the commit that the answer speaks of may
    /// not have reached the replicas or the disk yet. It costs nothing on a store whose reads show only data that
    /// lasts.
    async fn barrier(&self, partition: Partition) -> Result<()> {
        let _ = partition;
        Ok(())
    }

    /// Which clock tells the time of a partition. Partitions of one node share one; instants of two clocks must not be
    /// compared, because the nodes of a cluster need not agree.
    fn clock_of(&self, _partition: Partition) -> u64 {
        0
    }

    /// Whether a count costs the same however many entries there are. If not, a caller that needs only a rough number
    /// limits how far the store counts.
    fn counts_for_free(&self) -> bool {
        false
    }

    /// A receiver of the hints of all processes on this store. Hints may be lost; [`WatchEvent::Resync`] says when they
    /// were.
    fn watch(&self) -> Hints;

    /// Stops background work and closes files and connections. Returns after every accepted call was answered.
    async fn close(&self) {}
}

/// The most common queries as calls of their own.
impl dyn Store {
    /// The documents under these keys, in order; absent or expired ones are `None`.
    pub async fn documents(&self, partition: Partition, keys: Vec<Key>) -> Result<Vec<Option<StoredDocument>>> {
        self.read(partition, vec![Query::Documents(keys)]).await?.into_only(Answer::into_documents)
    }

    /// The blobs under these keys, in order.
    pub async fn blobs(&self, partition: Partition, keys: Vec<Key>) -> Result<Vec<Option<bytes::Bytes>>> {
        self.read(partition, vec![Query::Blobs(keys)]).await?.into_only(Answer::into_blobs)
    }

    /// A page of an index.
    pub async fn scan(&self, partition: Partition, scan: Scan) -> Result<ScanPage> {
        self.read(partition, vec![Query::Scan(scan)]).await?.into_only(Answer::into_scan)
    }

    /// How many entries of an index have a score in the range, both ends included.
    pub async fn count(&self, partition: Partition, index: IndexName, min: i64, max: i64) -> Result<u64> {
        self.read(partition, vec![Query::Count { index, min, max, at_most: u64::MAX }])
            .await?
            .into_only(Answer::into_count)
    }

    /// The names of the non-empty indexes that begin with a prefix.
    pub async fn indexes(&self, partition: Partition, prefix: Vec<u8>, limit: usize) -> Result<Vec<IndexName>> {
        let query = Query::Indexes { prefix, after: None, limit };
        self.read(partition, vec![query]).await?.into_only(Answer::into_indexes)
    }

    /// The names of the non-empty indexes that begin with a prefix and come after a name.
    pub async fn indexes_after(
        &self,
        partition: Partition,
        prefix: Vec<u8>,
        after: Option<IndexName>,
        limit: usize,
    ) -> Result<Vec<IndexName>> {
        self.read(partition, vec![Query::Indexes { prefix, after, limit }]).await?.into_only(Answer::into_indexes)
    }

    /// A page of a log.
    pub async fn log(&self, partition: Partition, log: Key, start: LogStart, limit: usize) -> Result<LogPage> {
        self.read(partition, vec![Query::Log { log, start, limit }]).await?.into_only(Answer::into_log)
    }
}
