//! The clocks of the store's nodes: they need not agree with each other, and they step, forwards and backwards.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::Partition;

use crate::executor::Executor;
use crate::world::START;

/// One clock for each partition, all driven by the executor's virtual time.
pub(crate) struct Clocks {
    executor: Executor,
    offsets: Mutex<Offsets>,
}

#[derive(Default)]
struct Offsets {
    /// Of every partition.
    all_ms: i64,
    /// Of single partitions, on top of that.
    own_ms: BTreeMap<Partition, i64>,
}

impl Clocks {
    /// Clocks that agree.
    pub(crate) fn new(executor: &Executor) -> Self {
        Self { executor: executor.clone(), offsets: Mutex::default() }
    }

    /// What the clock of a partition shows. The store never lets a partition's time run backwards.
    pub(crate) fn read(&self, partition: Partition) -> i64 {
        let offsets = self.offsets();
        let own_ms = offsets.own_ms.get(&partition).copied().unwrap_or(0);
        START + self.executor.now_ms() + offsets.all_ms + own_ms
    }

    /// Every clock steps by the same amount.
    pub(crate) fn step_all(&self, by_ms: i64) {
        self.offsets().all_ms += by_ms;
    }

    /// One clock is set, this far from the others.
    pub(crate) fn set(&self, partition: Partition, offset_ms: i64) {
        self.offsets().own_ms.insert(partition, offset_ms);
    }

    fn offsets(&self) -> MutexGuard<'_, Offsets> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
