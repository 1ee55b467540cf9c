//! The background work on the journals of an execution: a fork's is copied, and those that are no longer needed go.

use ff_core::execution::Execution;
use ff_core::{Key, Result, index, limits};

use crate::removal::Removal;
use crate::transaction::{Command, Tx};
use crate::{fork, journal};

/// One commit's worth of what an execution's journals still need in the background. Says whether more is left.
pub(crate) struct TendJournals {
    pub(crate) key: Key,
}

impl Command for TendJournals {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(loaded) = tx.load::<Execution>(self.key.clone()).await? else { return Ok(false) };
        let mut execution = loaded.document;
        if let Some(fork) = execution.unfinished_fork().cloned() {
            return fork::copy_some(tx, execution, fork).await;
        }
        let Some(generation) = execution.dropped_generations().first().copied() else { return Ok(false) };
        // The last fork to be copied asks for the removal once more.
        if tx.count(index::open_forks(execution.id.uuid)).await? > 0 {
            return Ok(false);
        }
        let mut removal = Removal::of(tx.transactor.chunk(limits::RESOLVE_CHUNK));
        tx.relief();
        if !journal::remove_generation(tx, &execution, generation, &mut removal).await? {
            tx.pin(&self.key);
            return Ok(true);
        }
        execution.generation_removed(generation, tx.now);
        tx.save(&execution);
        Ok(execution.owes_journals())
    }
}
