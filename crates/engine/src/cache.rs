//! Executions whose leases were taken through this engine, so that their holders' calls commit without a read.
//!
//! A cached copy is never trusted: whatever is decided from it is guarded by its version, and a refusal is decided
//! again from the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use ff_core::Key;
use ff_core::execution::Execution;
use ff_store::{Fence, Version};

/// How many executions are kept; past it the oldest goes.
const CAPACITY: usize = 20_000;

/// An execution as the last commit of this engine left it.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    pub(crate) execution: Arc<Execution>,
    pub(crate) version: Version,
    pub(crate) fence: Fence,
    pub(crate) lease_until: i64,
}

#[derive(Default)]
pub(crate) struct Cache(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    by_key: BTreeMap<Key, (u64, Cached)>,
    by_age: VecDeque<(u64, Key)>,
    next: u64,
}

impl Cache {
    pub(crate) fn get(&self, key: &Key) -> Option<Cached> {
        self.contents().by_key.get(key).map(|(_, cached)| cached.clone())
    }

    pub(crate) fn put(&self, key: Key, cached: Cached) {
        let mut contents = self.contents();
        let number = contents.next;
        contents.next += 1;
        contents.by_key.insert(key.clone(), (number, cached));
        contents.by_age.push_back((number, key));
        while contents.by_age.len() > CAPACITY {
            let Some((number, key)) = contents.by_age.pop_front() else { break };
            // A key that was put again since has a younger place in the line.
            if contents.by_key.get(&key).is_some_and(|(current, _)| *current == number) {
                contents.by_key.remove(&key);
            }
        }
    }

    /// The same lease, a newer document.
    pub(crate) fn update(&self, key: &Key, execution: Arc<Execution>, version: Version) {
        if let Some((_, cached)) = self.contents().by_key.get_mut(key) {
            cached.execution = execution;
            cached.version = version;
        }
    }

    /// The same document, a later end of its lease. A renewal never moves the end back, and neither does its answer,
    /// however late it comes. Answers the end as far as it is known.
    pub(crate) fn renewed(&self, key: &Key, fence: Fence, lease_until: i64) -> i64 {
        match self.contents().by_key.get_mut(key) {
            Some((_, cached)) if cached.fence == fence => {
                cached.lease_until = cached.lease_until.max(lease_until);
                cached.lease_until
            }
            _ => lease_until,
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.contents().by_key.remove(key);
    }

    pub(crate) fn clear(&self) {
        *self.contents() = Contents::default();
    }

    fn contents(&self) -> std::sync::MutexGuard<'_, Contents> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
