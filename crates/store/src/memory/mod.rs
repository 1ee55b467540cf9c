//! The store in memory, for tests and the simulator.
//!
//! It reads no clock of its own and needs no runtime: time comes from a function, waits come from the [`Faults`] of
//! its owner, and everything inside is ordered. So a single-threaded executor with virtual time replays it exactly.

mod apply;
mod contents;
mod faults;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use ff_core::{CommandId, Partition, PartitionConfig};

pub use contents::{Contents, PartitionContents, RawDocument};
pub use faults::{Call, Fault, Faults, Pause, Plan};

use crate::{
    Answers, Batch, Guard, HintSender, Hints, Outcome, Query, Result, Store, StoreError, StoreInfo, WatchEvent,
};

/// Tells the time in milliseconds since the epoch.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Tells the time of each partition: the nodes of a store need not agree.
pub type PartitionClocks = Arc<dyn Fn(Partition) -> i64 + Send + Sync>;

/// A store that forgets everything with its last owner.
pub struct MemoryStore {
    clocks: PartitionClocks,
    faults: Option<Arc<dyn Faults>>,
    state: Mutex<State>,
    hints: HintSender,
}

#[derive(Default)]
struct State {
    contents: Contents,
    /// The latest time each partition gave out. A clock may step back; a partition's time does not.
    now: BTreeMap<Partition, i64>,
    /// All partitions share one clock, and so the latest time.
    one_clock: bool,
}

impl State {
    fn advance(&mut self, partition: Partition, clock: i64) -> i64 {
        let now = self.now.entry(if self.one_clock { Partition::SYSTEM } else { partition }).or_insert(clock);
        *now = (*now).max(clock);
        *now
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// A store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
        }))
    }

    /// A store on a clock of the owner's.
    pub fn with_clock(clock: Clock) -> Self {
        let store = Self::with_partition_clocks(Arc::new(move |_| clock()));
        store.lock().one_clock = true;
        store
    }

    /// A store whose partitions each have a clock of the owner's.
    pub fn with_partition_clocks(clocks: PartitionClocks) -> Self {
        Self { clocks, faults: None, state: Mutex::default(), hints: HintSender::default() }
    }

    /// The store with faults.
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<dyn Faults>) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Looks at everything that is stored. No call proceeds meanwhile.
    pub fn inspect<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.lock().contents)
    }

    /// Everything that is stored now.
    pub fn snapshot(&self) -> Contents {
        self.lock().contents.clone()
    }

    /// A failover to a replica that had got no further than this: everything after it is forgotten, time goes on.
    pub fn restore(&self, snapshot: Contents) {
        self.lock().contents = snapshot;
        self.hints.send(WatchEvent::Resync);
    }

    /// A failover of the node that holds one partition: only this partition forgets what came after the snapshot.
    pub fn restore_partition(&self, partition: Partition, snapshot: PartitionContents) {
        self.lock().contents.partitions.insert(partition, snapshot);
        self.hints.send(WatchEvent::Resync);
    }

    /// The store's time, as its system partition has it.
    pub fn now(&self) -> i64 {
        self.now_in(Partition::SYSTEM)
    }

    /// The time of one partition.
    pub fn now_in(&self, partition: Partition) -> i64 {
        self.lock().advance(partition, (self.clocks)(partition))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A reader or writer that panicked is a failed test already; the state is still whole between statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, call: Call<'_>) -> Plan {
        self.faults.as_ref().map(|faults| faults.plan(call)).unwrap_or_default()
    }

    fn apply(&self, partition: Partition, batches: &[Batch], overtaken_by: Option<CommandId>) -> Vec<Outcome> {
        let mut state = self.lock();
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            let now = state.advance(partition, (self.clocks)(partition));
            let contents = state.contents.partitions.entry(partition).or_default();
            if let Some(by) = overtaken_by {
                for guard in &batch.guards {
                    if let Guard::Version(key, expected) = guard {
                        contents.overtake(key, *expected, by, now);
                    }
                }
            }
            outcomes.push(contents.apply(batch, now));
        }
        outcomes
    }

    fn announce(&self, batches: &[Batch], outcomes: &[Outcome], lose_hints: bool) {
        let applied = batches.iter().zip(outcomes).filter(|(_, outcome)| matches!(outcome, Outcome::Applied(_)));
        let mut hints = applied.flat_map(|(batch, _)| &batch.hints);
        if lose_hints {
            if hints.next().is_some() {
                self.hints.send(WatchEvent::Resync);
            }
            return;
        }
        for hint in hints {
            self.hints.send(WatchEvent::Hint(hint.clone()));
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "memory",
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durability: "nothing: it ends with the process".to_owned(),
            default_partitions: PartitionConfig::SINGLE,
        }
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        let plan = self.plan(Call::Read { partition, queries: &queries });
        if let Some(before) = plan.before {
            before.await;
        }
        match plan.fault {
            Some(Fault::Unavailable) => return Err(StoreError::Unavailable("injected".into())),
            Some(Fault::LostReply | Fault::LostRequest) => return Err(StoreError::Unknown("injected".into())),
            Some(Fault::Full | Fault::Overtaken(_)) | None => {}
        }
        let answers = {
            let mut state = self.lock();
            let at = state.advance(partition, (self.clocks)(partition));
            let nothing = PartitionContents::default();
            let contents = state.contents.partition(partition).unwrap_or(&nothing);
            Answers { at, answers: queries.iter().map(|query| contents.answer(query, at)).collect() }
        };
        if let Some(after) = plan.after {
            after.await;
        }
        Ok(answers)
    }

    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        batches.iter().try_for_each(Batch::validate)?;
        let plan = self.plan(Call::Commit { partition, batches: &batches });
        if let Some(before) = plan.before {
            before.await;
        }
        let overtaken_by = match plan.fault {
            Some(Fault::Unavailable) => return Err(StoreError::Unavailable("injected".into())),
            Some(Fault::LostRequest) => return Err(StoreError::Unknown("injected".into())),
            Some(Fault::Full) if !batches.iter().all(|batch| batch.relief) => {
                return Err(StoreError::Full("injected".into()));
            }
            Some(Fault::Overtaken(by)) => Some(by),
            Some(Fault::Full | Fault::LostReply) | None => None,
        };
        let outcomes = self.apply(partition, &batches, overtaken_by);
        self.announce(&batches, &outcomes, plan.lose_hints);
        if let Some(after) = plan.after {
            after.await;
        }
        match plan.fault {
            Some(Fault::LostReply) => Err(StoreError::Unknown("injected".into())),
            _ => Ok(outcomes),
        }
    }

    fn clock_of(&self, partition: Partition) -> u64 {
        if self.lock().one_clock { 0 } else { partition.ordinal().cast_unsigned() }
    }

    fn watch(&self) -> Hints {
        self.hints.subscribe()
    }
}
