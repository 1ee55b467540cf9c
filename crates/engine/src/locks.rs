//! Locks by name, held across awaits: contenders for one hot document queue up inside the process instead of causing
//! conflicts. They only save work; correctness rests on the guards of commits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::planted::{Bug, planted};
use ff_core::{Key, Partition};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Name = (Partition, Key);

/// One lock for each document that a task works on now.
#[derive(Default)]
pub(crate) struct Locks(Mutex<BTreeMap<Name, Arc<AsyncMutex<()>>>>);

/// Holds the lock of one document.
pub(crate) struct Turn<'l> {
    locks: &'l Locks,
    name: Name,
    held: Option<OwnedMutexGuard<()>>,
}

impl Locks {
    /// Waits for its turn at a document.
    pub(crate) async fn take(&self, partition: Partition, key: Key) -> Turn<'_> {
        let name = (partition, key);
        // The turn exists before the wait, so that a wait that is cancelled leaves nothing behind.
        let mut turn = Turn { locks: self, name, held: None };
        let lock = Arc::clone(self.names().entry(turn.name.clone()).or_default());
        turn.held = Some(lock.lock_owned().await);
        turn
    }

    /// How many documents a task works on or waits for.
    pub(crate) fn len(&self) -> usize {
        self.names().len()
    }

    fn names(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Arc<AsyncMutex<()>>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut names = self.locks.names();
        let unused = names.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1);
        if unused && !planted(Bug::LocksLeaked) {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_for_each_document_and_nothing_is_left_behind() {
        let locks = Locks::default();
        let key = |number| Key::from_bytes([number]);
        let first = locks.take(Partition::SYSTEM, key(1)).await;
        let other = locks.take(Partition::SYSTEM, key(2)).await;
        let waiting = locks.take(Partition::SYSTEM, key(1));
        let mut waiting = Box::pin(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(first);
        drop(waiting.await);
        drop(other);
        assert!(locks.names().is_empty());
    }
}
