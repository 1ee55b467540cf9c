//! This engine's rank for each partition: how many live servers act there before it. The servers of a deployment agree
//! on ranks without asking each other, so each partition has one that comes first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::Partition;

/// The ranks, shared by all that act by them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranks(Arc<Mutex<BTreeMap<Partition, i64>>>);

impl Ranks {
    /// How many live servers act on a partition before this one.
    pub(crate) fn of(&self, partition: Partition) -> i64 {
        self.ranks().get(&partition).copied().unwrap_or(0)
    }

    /// Puts other ranks in the place of these; says whether they differ.
    pub(crate) fn replace(&self, ranks: BTreeMap<Partition, i64>) -> bool {
        let mut known = self.ranks();
        let differ = *known != ranks;
        *known = ranks;
        differ
    }

    fn ranks(&self) -> std::sync::MutexGuard<'_, BTreeMap<Partition, i64>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
