//! A load of commits whose outcomes are remembered, for tests in which servers fail.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::{Batch, EntryChange, Fence, Guard, Outcome, Put, Query, Scan, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

/// No wait in a test is longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A caller that was refused does not ask again at once.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);

/// What became of the commits.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Acknowledged: must be there.
    pub(crate) acknowledged: Vec<(Partition, Key, CommandId)>,
    /// Outcome unknown: may be there.
    pub(crate) unknown: usize,
    /// Refused because a server was away for longer than it is waited for: nothing happened.
    pub(crate) unavailable: usize,
    /// Every other error.
    pub(crate) errors: Vec<StoreError>,
}

/// Committers that run until they are stopped.
pub(crate) struct Load {
    store: Arc<dyn Store>,
    tasks: JoinSet<Ledger>,
    stop: watch::Sender<bool>,
    acknowledged: watch::Sender<usize>,
}

/// The batch that makes one document and its index entry.
pub(crate) fn creation(key: &Key, command: CommandId) -> Batch {
    let body = Bytes::copy_from_slice(key.as_bytes());
    Batch {
        guards: vec![Guard::Absent(key.clone())],
        puts: vec![Put { key: key.clone(), body, fence: Fence::default(), expires_at: None }],
        entries: vec![EntryChange::Set { index: all(), member: key.clone(), score: 1 }],
        ..Batch::new(command)
    }
}

/// The index that holds every document of a load.
pub(crate) fn all() -> IndexName {
    IndexName::from_bytes(*b"all")
}

/// A key that nobody else uses.
pub(crate) fn new_key() -> Key {
    Key::new(b'x', &[Uuid::now_v7().as_bytes()])
}

impl Load {
    /// Starts one committer for each partition; each also reads what it wrote.
    pub(crate) fn start(store: &Arc<dyn Store>, partitions: &[Partition]) -> Self {
        let (stop, _) = watch::channel(false);
        let (acknowledged, _) = watch::channel(0);
        let mut tasks = JoinSet::new();
        for &partition in partitions {
            tasks.spawn(commit_until(store.clone(), partition, stop.subscribe(), acknowledged.clone()));
        }
        Self { store: store.clone(), tasks, stop, acknowledged }
    }

    /// Waits until so many more commits were acknowledged.
    pub(crate) async fn more(&self, count: usize) {
        let target = *self.acknowledged.borrow() + count;
        let mut acknowledged = self.acknowledged.subscribe();
        let reached = tokio::time::timeout(PATIENCE, acknowledged.wait_for(|now| *now >= target)).await;
        assert!(reached.is_ok(), "no {count} more commits within {PATIENCE:?}");
    }

    /// Ends the load and checks that everything acknowledged is there, document and index entry alike.
    pub(crate) async fn finish(mut self) -> Ledger {
        self.stop.send_replace(true);
        let mut whole = Ledger::default();
        while let Some(ledger) = self.tasks.join_next().await {
            let ledger = ledger.expect("a committer ends");
            whole.acknowledged.extend(ledger.acknowledged);
            whole.unknown += ledger.unknown;
            whole.unavailable += ledger.unavailable;
            whole.errors.extend(ledger.errors);
        }
        for (partition, key, command) in &whole.acknowledged {
            let documents = self.store.documents(*partition, vec![key.clone()]).await.expect("it reads");
            let document = documents[0].as_ref().unwrap_or_else(|| panic!("{key:?} was acknowledged and is lost"));
            assert_eq!(document.version, *command);
            assert_eq!(document.body, key.as_bytes());
        }
        for partition in
            whole.acknowledged.iter().map(|(partition, ..)| *partition).collect::<std::collections::BTreeSet<_>>()
        {
            let page =
                self.store.scan(partition, Scan::first(all(), usize::MAX).with_documents()).await.expect("it scans");
            assert!(page.entries.iter().all(|entry| entry.document.is_some()), "an entry has no document");
            let here = whole.acknowledged.iter().filter(|(there, ..)| *there == partition).count();
            assert!(page.entries.len() >= here, "{} entries of {here}", page.entries.len());
        }
        whole
    }
}

async fn commit_until(
    store: Arc<dyn Store>,
    partition: Partition,
    stop: watch::Receiver<bool>,
    acknowledged: watch::Sender<usize>,
) -> Ledger {
    let mut ledger = Ledger::default();
    while !*stop.borrow() {
        let (key, command) = (new_key(), CommandId(Uuid::now_v7()));
        match store.commit(partition, [creation(&key, command)].into()).await {
            Ok(outcomes) => {
                assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "{outcomes:?}");
                ledger.acknowledged.push((partition, key.clone(), command));
                acknowledged.send_modify(|count| *count += 1);
            }
            Err(StoreError::Unknown(_)) => ledger.unknown += 1,
            Err(StoreError::Unavailable(_)) => {
                ledger.unavailable += 1;
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            Err(error) => ledger.errors.push(error),
        }
        let queries = vec![Query::Documents(vec![key]), Query::Scan(Scan::last(all(), 3).with_documents())];
        match store.read(partition, queries).await {
            Err(StoreError::Unavailable(_)) => ledger.unavailable += 1,
            Err(error) => ledger.errors.push(error),
            Ok(_) => {}
        }
    }
    ledger
}
