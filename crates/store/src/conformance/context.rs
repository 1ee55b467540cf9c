//! The context of a case: a store, a partition, names that no other case uses, and the calls that most cases make.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition, PartitionConfig};
use uuid::Uuid;

use crate::{
    Append, AppliedBatch, Batch, Conflict, EntryChange, Fence, Guard, IndexEntry, LeaseChange, LogPage, LogStart,
    Outcome, Put, Query, Scan, Store, StoredDocument, Version,
};

/// The longest wait for something that must come to pass.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A case's own corner of a store.
#[derive(Clone)]
pub struct Context {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// The partition of the case. Others may use it too, under other keys.
    pub partition: Partition,
    salt: Uuid,
}

impl Context {
    /// A corner of its own in the store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let salt = Uuid::now_v7();
        let last = salt.as_bytes()[15];
        // Within the counts that every deployment of more than one partition has.
        let partition = Partition::flow(u16::from(last) % 32);
        Self { store, partition, salt }
    }

    /// The same names in another flow partition.
    pub(super) fn elsewhere(&self) -> Self {
        let flow = u16::try_from(PartitionConfig::STANDALONE.flow).expect("the default count fits a partition number");
        self.within(Partition::flow((self.partition.number + 1) % flow))
    }

    /// The same names in a given partition.
    pub(super) fn within(&self, partition: Partition) -> Self {
        Self { partition, ..self.clone() }
    }

    /// A key that only this case uses.
    pub(super) fn key(&self, name: impl AsRef<[u8]>) -> Key {
        Key::new(b'k', &[self.salt.as_bytes(), name.as_ref()])
    }

    /// An index that only this case uses.
    pub(super) fn index(&self, name: impl AsRef<[u8]>) -> IndexName {
        IndexName::from_bytes([&self.prefix(), name.as_ref()].concat())
    }

    /// The beginning of the names of all indexes of this case.
    pub(super) fn prefix(&self) -> Vec<u8> {
        [b"i", self.salt.as_bytes().as_slice()].concat()
    }

    /// Sixteen bytes that only this case uses.
    pub(super) fn salt(&self) -> &[u8] {
        self.salt.as_bytes()
    }

    /// Commits one batch.
    pub(super) async fn commit(&self, batch: Batch) -> Outcome {
        let mut outcomes = self.commit_all(vec![batch]).await;
        assert_eq!(outcomes.len(), 1, "one batch has one outcome");
        outcomes.remove(0)
    }

    /// Commits several batches in one call.
    pub(super) async fn commit_all(&self, batches: Vec<Batch>) -> Vec<Outcome> {
        let count = batches.len();
        let outcomes = self.store.commit(self.partition, batches.into()).await.expect("the store takes a valid commit");
        assert_eq!(outcomes.len(), count, "each batch has its outcome");
        outcomes
    }

    /// Commits a batch that must be applied.
    pub(super) async fn apply(&self, batch: Batch) -> AppliedBatch {
        match self.commit(batch).await {
            Outcome::Applied(applied) => applied,
            Outcome::Conflict(conflict) => panic!("a batch whose guards hold met {conflict:?}"),
        }
    }

    /// Commits a batch that must meet a conflict.
    pub(super) async fn conflict(&self, batch: Batch) -> Conflict {
        match self.commit(batch).await {
            Outcome::Conflict(conflict) => conflict,
            Outcome::Applied(applied) => panic!("a batch whose guards do not all hold was applied: {applied:?}"),
        }
    }

    /// Creates a document and answers its version.
    pub(super) async fn create(&self, key: &Key, body: &str) -> Version {
        let batch = batch().guard(Guard::Absent(key.clone())).put(key, body);
        let version = batch.command;
        self.apply(batch).await;
        version
    }

    /// Creates a document with a lease, and answers what was written.
    pub(super) async fn create_leased(&self, key: &Key, index: &IndexName, ttl_ms: i64) -> StoredDocument {
        let mut batch = batch().guard(Guard::Absent(key.clone())).put(key, "leased").lease(key, index, Some(ttl_ms));
        batch.puts[0].fence = fence(1);
        let (version, fence) = (batch.command, batch.puts[0].fence);
        let lease_until = self.apply(batch).await.at + ttl_ms;
        StoredDocument { key: key.clone(), body: Bytes::from_static(b"leased"), version, fence, lease_until }
    }

    /// One document.
    pub(super) async fn document(&self, key: &Key) -> Option<StoredDocument> {
        self.documents(vec![key.clone()]).await.remove(0)
    }

    /// The body of a document as text.
    pub(super) async fn body(&self, key: &Key) -> Option<String> {
        let document = self.document(key).await?;
        Some(String::from_utf8(document.body.to_vec()).expect("the cases that ask write text"))
    }

    /// Documents.
    pub(super) async fn documents(&self, keys: Vec<Key>) -> Vec<Option<StoredDocument>> {
        let count = keys.len();
        let documents = self.store.documents(self.partition, keys).await.expect("the store reads documents");
        assert_eq!(documents.len(), count, "each key has its answer");
        documents
    }

    /// Blobs.
    pub(super) async fn blobs(&self, keys: Vec<Key>) -> Vec<Option<Bytes>> {
        self.store.blobs(self.partition, keys).await.expect("the store reads blobs")
    }

    /// The entries of a page.
    pub(super) async fn scan(&self, scan: Scan) -> Vec<IndexEntry> {
        self.store.scan(self.partition, scan).await.expect("the store scans").entries
    }

    /// All entries of an index as (score, member).
    pub(super) async fn entries(&self, index: &IndexName) -> Vec<(i64, Key)> {
        pairs(self.scan(Scan::first(index.clone(), 10_000)).await)
    }

    /// How many entries of an index have a score in the range.
    pub(super) async fn count(&self, index: &IndexName, min: i64, max: i64) -> u64 {
        self.store.count(self.partition, index.clone(), min, max).await.expect("the store counts")
    }

    /// A page of a log.
    pub(super) async fn log(&self, log: &Key, start: LogStart, limit: usize) -> LogPage {
        self.store.log(self.partition, log.clone(), start, limit).await.expect("the store reads logs")
    }

    /// The store's time.
    pub(super) async fn now(&self) -> i64 {
        let answers = self.store.read(self.partition, vec![Query::Documents(vec![self.key("clock")])]).await;
        answers.expect("the store reads documents").at
    }
}

/// Waits until a question is answered with something. The only place of the suite that lets time pass by itself: leases
/// end and watchers wake by the store's own time, which no case can turn.
pub(super) async fn until<T, F>(what: &str, mut question: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = question().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(TEST_TIMEOUT, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited {TEST_TIMEOUT:?} in vain until {what}"),
    }
}

/// Lets other tasks run. A store in memory answers without ever waiting, so an endless loop must do it for itself.
pub(super) async fn breathe() {
    tokio::task::yield_now().await;
}

/// A command id that was never used.
pub(super) fn command() -> CommandId {
    CommandId(Uuid::now_v7())
}

/// A fence with a lease id that was never used.
pub(super) fn fence(epoch: u64) -> Fence {
    Fence { epoch: LeaseEpoch(epoch), lease: LeaseId(Uuid::now_v7()) }
}

/// An empty batch of a new command.
pub(super) fn batch() -> Batch {
    Batch::new(command())
}

/// Entries as (score, member).
pub(super) fn pairs(entries: Vec<IndexEntry>) -> Vec<(i64, Key)> {
    entries.into_iter().map(|entry| (entry.score, entry.member)).collect()
}

/// Asserts that a batch was applied.
#[track_caller]
pub(super) fn applied(outcome: &Outcome) -> &AppliedBatch {
    match outcome {
        Outcome::Applied(applied) => applied,
        Outcome::Conflict(conflict) => panic!("not applied: {conflict:?}"),
    }
}

/// Asserts that a call was refused as invalid.
#[track_caller]
pub(super) fn refused<T: Debug>(result: crate::Result<T>) {
    assert!(matches!(result, Err(crate::StoreError::Invalid(_))), "not refused as invalid: {result:?}");
}

/// Batches, put together in one expression.
pub(super) trait Build {
    /// Under this guard too.
    fn guard(self, guard: Guard) -> Self;
    /// Writes a document without lease.
    fn put(self, key: &Key, body: &str) -> Self;
    /// Sets an entry.
    fn set(self, index: &IndexName, member: &Key, score: i64) -> Self;
    /// Removes an entry.
    fn unset(self, index: &IndexName, member: &Key) -> Self;
    /// Changes a lease whose member is the document's key.
    fn lease(self, key: &Key, index: &IndexName, ttl_ms: Option<i64>) -> Self;
    /// Appends records.
    fn append(self, log: &Key, expected: Option<u64>, records: &[&str]) -> Self;
}

impl Build for Batch {
    fn guard(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }

    fn put(mut self, key: &Key, body: &str) -> Self {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let put = Put { key: key.clone(), body, fence: Fence::default(), expires_at: None };
        self.puts.push(put);
        self
    }

    fn set(mut self, index: &IndexName, member: &Key, score: i64) -> Self {
        self.entries.push(EntryChange::Set { index: index.clone(), member: member.clone(), score });
        self
    }

    fn unset(mut self, index: &IndexName, member: &Key) -> Self {
        self.entries.push(EntryChange::Remove { index: index.clone(), member: member.clone() });
        self
    }

    fn lease(mut self, key: &Key, index: &IndexName, ttl_ms: Option<i64>) -> Self {
        let change = LeaseChange { key: key.clone(), ttl_ms, index: index.clone(), member: key.clone() };
        self.leases.push(change);
        self
    }

    fn append(mut self, log: &Key, expected: Option<u64>, records: &[&str]) -> Self {
        let records = records.iter().map(|record| Bytes::copy_from_slice(record.as_bytes())).collect();
        self.appends.push(Append { log: log.clone(), records, expected, cap: 0, in_turn: false });
        self
    }
}
