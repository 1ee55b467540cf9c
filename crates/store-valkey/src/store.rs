//! The store itself: the trait over the calls of the other modules.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use ff_core::{IndexName, Partition, PartitionConfig};
use ff_store::{Answers, Batch, Hints, Look, Outcome, Query, Result, Store, StoreError, StoreInfo};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::barrier::Barriers;
use crate::commit::{self, Part};
use crate::route::{self, Failure, Follow};
use crate::startup::{self, Findings};
use crate::topology::{Topology, slot_of};
use crate::transport::Dialer;
use crate::watch::Watcher;
use crate::{CommandCost, Options, apart, read, statistics};

/// Calls that may be under way at once.
const CALLS_MAX: u32 = 65_536;

/// FlowFabric's store on Valkey.
pub struct ValkeyStore {
    topology: Arc<Topology>,
    watcher: Watcher,
    findings: Findings,
    barriers: Arc<Barriers>,
    /// Each call holds a permit; closing waits for all of them.
    calls: Semaphore,
    refresher: AbortHandle,
}

impl Drop for ValkeyStore {
    fn drop(&mut self) {
        self.refresher.abort();
    }
}

impl ValkeyStore {
    /// Opens the store at an address; see [`Options`] for what an address may say.
    pub async fn open(url: &str) -> Result<Self> {
        Self::connect(Options::parse(url)?).await
    }

    /// Connects, checks the servers and loads the function library where it is missing. Boxed, so that callers do not
    /// compile all of it again.
    pub fn connect(options: Options) -> Pin<Box<dyn Future<Output = Result<Self>> + Send>> {
        Box::pin(Self::connect_to(options))
    }

    async fn connect_to(options: Options) -> Result<Self> {
        let topology = Arc::new(Topology::new(Arc::new(Dialer::new(Arc::new(options))?)));
        let findings = startup::check(&topology).await?;
        let refresher = tokio::spawn(topology.clone().keep_fresh()).abort_handle();
        let watcher = Watcher::start(topology.clone()).await?;
        let calls = Semaphore::new(usize::try_from(CALLS_MAX).unwrap_or(Semaphore::MAX_PERMITS));
        Ok(Self { topology, watcher, findings, barriers: Arc::default(), calls, refresher })
    }

    /// Inspects the deployment at an address without changing anything there.
    pub fn look(url: &str) -> Pin<Box<dyn Future<Output = Result<Look>> + Send + '_>> {
        Box::pin(async move {
            let topology = Topology::new(Arc::new(Dialer::new(Arc::new(Options::parse(url)?))?));
            startup::look(&topology.only_looking()).await
        })
    }

    /// Advice to the operator about the servers: eviction, persistence, missing replicas.
    pub fn warnings(&self) -> &[String] {
        &self.findings.warnings
    }

    /// The time that the servers have spent on each command since they started or their statistics were reset.
    pub async fn command_costs(&self) -> Result<BTreeMap<String, CommandCost>> {
        statistics::command_costs(&self.topology).await
    }

    /// Bytes of memory that the servers use.
    pub async fn used_memory(&self) -> Result<u64> {
        statistics::used_memory(&self.topology).await
    }

    /// Takes names of empty indexes off the list. Errors are ignored, because the next listing finds the names again.
    async fn tidy(&self, partition: Partition, indexes: &[IndexName]) {
        if indexes.is_empty() {
            return;
        }
        let bytes = commit::encode_tidying(partition, indexes);
        if route::read(&self.topology, slot_of(partition), &bytes, Follow::Keys).await.is_err() {
            tracing::debug!(%partition, "names of empty indexes stay listed for now");
        }
    }

    /// Whether another process hears the hints of a slot.
    fn has_other_listeners(&self, slot: u16) -> bool {
        self.topology.map().primary(slot).is_none_or(|node| self.watcher.has_other_listeners(&node.address))
    }

    fn options(&self) -> &Options {
        &self.topology.dialer.options
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store was closed".into())
}

#[async_trait]
impl Store for ValkeyStore {
    fn info(&self) -> StoreInfo {
        let options = self.options();
        StoreInfo {
            kind: "valkey",
            version: self.findings.version.clone(),
            durability: options.tier.promise(options.replicas),
            default_partitions: if options.cluster { PartitionConfig::CLUSTER } else { PartitionConfig::STANDALONE },
        }
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        let _call = self.calls.acquire().await.map_err(|_| closed())?;
        self.watcher.touch(partition);
        let bytes = read::encode(partition, &queries, read::Style::Whole);
        let follow = read::follow(&queries);
        match route::read(&self.topology, slot_of(partition), &bytes, follow).await {
            Ok(frame) => {
                let (answers, empty) = read::decode(queries, frame)?;
                self.tidy(partition, &empty).await;
                Ok(answers)
            }
            Err(Failure::Moving) => apart::read(&self.topology, partition, queries).await,
            Err(Failure::Store(error)) => Err(error),
        }
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        batches.iter().try_for_each(Batch::validate)?;
        let _call = self.calls.acquire().await.map_err(|_| closed())?;
        self.watcher.touch(partition);
        let hints = self.has_other_listeners(slot_of(partition));
        let mut outcomes = Vec::with_capacity(batches.len());
        for range in commit::split(&batches) {
            let part = Part::new(partition, batches.clone(), range, hints)?;
            // Earlier parts of the commit were applied, so the outcome of the whole call is unknown.
            let committed = route::commit(&self.topology, part).await.map_err(|error| match error {
                error if outcomes.is_empty() => error,
                error => StoreError::Unknown(format!("only a part of the commit was done: {error}")),
            })?;
            outcomes.extend(committed.outcomes);
            self.tidy(partition, &committed.left).await;
        }
        if !hints {
            let applied = batches.iter().zip(&outcomes).filter(|(_, one)| matches!(one, Outcome::Applied(_)));
            applied.flat_map(|(batch, _)| &batch.hints).for_each(|hint| self.watcher.tell(hint));
        }
        Ok(outcomes)
    }

    async fn barrier(&self, partition: Partition) -> Result<()> {
        if !self.options().confirms() {
            return Ok(());
        }
        let _call = self.calls.acquire().await.map_err(|_| closed())?;
        let topology = self.topology.clone();
        let carry_out = move || {
            let topology = topology.clone();
            async move {
                let nothing = Part::new(partition, Arc::default(), 0..0, false)?;
                route::commit(&topology, nothing).await.map(drop)
            }
        };
        self.barriers.wait(partition, carry_out).await
    }

    /// A sorted set knows how many members it has, and how many stand before a score.
    fn counts_for_free(&self) -> bool {
        true
    }

    fn clock_of(&self, partition: Partition) -> u64 {
        // Without a server there is no answer whose clock could matter.
        self.topology.map().primary(slot_of(partition)).map_or(0, |node| node.clock)
    }

    fn watch(&self) -> Hints {
        self.watcher.subscribe()
    }

    async fn close(&self) {
        if let Ok(all) = self.calls.acquire_many(CALLS_MAX).await {
            self.calls.close();
            drop(all);
        }
        self.refresher.abort();
        self.watcher.stop();
    }
}
