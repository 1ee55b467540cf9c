//! Indexes from which much was taken. What was taken stays in the index, dead, until the next vacuum, and a scan from
//! the beginning steps over all of it. So it is noted now and then how far an index is drained, and scans begin there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use deadpool_postgres::Object;
use ff_core::{IndexName, Partition};
use ff_store::{Batch, EntryChange, Result};
use tokio_postgres::error::SqlState;

use crate::error;
use crate::locks::Locks;
use crate::names;

/// So many entries are taken from an index before it is noted how far it is drained. They fill some thirty pages.
const TAKEN_MAX: u32 = 2_000;
/// Indexes that are counted.
const INDEXES_MAX: usize = 10_000;

/// An index from which much was taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Drained {
    partition: Partition,
    index: IndexName,
}

/// Counts what is taken from the indexes that are scanned from their beginning.
#[derive(Default)]
pub(crate) struct Taken(Mutex<HashMap<(Partition, IndexName), u32>>);

impl Taken {
    /// Notes that an index is scanned from its beginning.
    pub(crate) fn scanned(&self, partition: Partition, index: &IndexName) {
        if index.is_listed() {
            let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if taken.len() >= INDEXES_MAX {
                taken.clear();
            }
            taken.entry((partition, index.clone())).or_default();
        }
    }

    /// Counts what a batch takes, and returns the indexes from which that is enough.
    pub(crate) fn take(&self, partition: Partition, batch: &Batch) -> Vec<Drained> {
        let entries = batch.entries.iter().filter_map(|entry| match entry {
            EntryChange::Remove { index, .. } => Some(index),
            EntryChange::Set { .. } => None,
        });
        let leases = batch.leases.iter().filter(|lease| lease.ttl_ms.is_none()).map(|lease| &lease.index);
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut drained = Vec::new();
        for index in entries.chain(leases).filter(|index| index.is_listed()) {
            let index = index.clone();
            let Some(count) = taken.get_mut(&(partition, index.clone())) else { continue };
            *count += 1;
            if *count >= TAKEN_MAX {
                *count = 0;
                drained.push(Drained { partition, index });
            }
        }
        drained
    }
}

/// Notes how far an index is drained. Where others keep it from that, it waits for the next time.
pub(crate) async fn note(client: &Object, locks: Locks, drained: &Drained) -> Result<()> {
    const NOTE: &str = "SELECT ff_drain($1, $2, $3)";
    let partition = i32::try_from(drained.partition.ordinal()).expect("ordinals stay below four times 65,536");
    let (name, whole) = (names::stored(&drained.index), locks.partition(drained.partition));
    let statement = client.prepare_cached(NOTE).await.map_err(|error| error::reading(&error))?;
    match client.execute(&statement, &[&partition, &name, &whole]).await {
        Err(error) if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) => Err(error::reading(&error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ff_core::Key;

    use super::*;

    const PARTITION: Partition = Partition::flow(0);

    fn index(name: &str) -> IndexName {
        IndexName::from_bytes(name.as_bytes())
    }

    fn removing(name: &str, entries: u32) -> Batch {
        let remove =
            |number: u32| EntryChange::Remove { index: index(name), member: Key::from_bytes(number.to_be_bytes()) };
        Batch { entries: (0..entries).map(remove).collect(), ..Batch::default() }
    }

    #[test]
    fn an_index_that_is_scanned_is_noted_whenever_so_much_was_taken() {
        let taken = Taken::default();
        assert_eq!(taken.take(PARTITION, &removing("queue", TAKEN_MAX)), [], "nobody scans it");
        taken.scanned(PARTITION, &index("queue"));
        assert_eq!(taken.take(PARTITION, &removing("queue", TAKEN_MAX - 1)), []);
        let drained = Drained { partition: PARTITION, index: index("queue") };
        assert_eq!(taken.take(PARTITION, &removing("queue", 1)), [drained]);
        assert_eq!(taken.take(PARTITION, &removing("queue", TAKEN_MAX - 1)), []);
    }

    #[test]
    fn an_index_that_is_not_listed_is_never_noted() {
        let taken = Taken::default();
        taken.scanned(PARTITION, &index("!due"));
        assert_eq!(taken.take(PARTITION, &removing("!due", TAKEN_MAX)), []);
    }
}
