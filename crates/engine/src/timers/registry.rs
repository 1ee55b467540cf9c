//! The timers of registrations: workers and servers whose processes have not been heard of are removed.

use std::marker::PhantomData;

use ff_core::index::Due;
use ff_core::{Indexed, Key, Result};

use crate::transaction::{Command, Tx};

/// Removes a registration whose process has not been heard of, unless it was renewed in the meantime.
pub(super) struct ExpireRegistration<D> {
    key: Key,
    score: i64,
    kind: PhantomData<fn() -> D>,
}

impl<D> ExpireRegistration<D> {
    pub(super) fn new(key: Key, score: i64) -> Self {
        Self { key, score, kind: PhantomData }
    }
}

impl<D: Indexed> Command for ExpireRegistration<D> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let lease_until = tx.load::<D>(self.key.clone()).await?.map_or(0, |loaded| loaded.lease_until);
        if lease_until == 0 {
            return tx.remove_stray(&self.key, Due::Lease.entry(&self.key, self.score)).await;
        }
        if lease_until > tx.now {
            tx.transactor.due().note(tx.partition, lease_until);
            return Ok(());
        }
        tx.require_expired(&self.key);
        tx.delete(&self.key);
        Ok(())
    }
}
