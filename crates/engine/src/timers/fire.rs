//! Firing a due entry: the document it leads to decides, under its version.

use ff_core::event::Effects;
use ff_core::execution::{Execution, Fired, Wait};
use ff_core::index::{Due, kind};
use ff_core::journal::StepEntry;
use ff_core::planted::{Bug, planted};
use ff_core::waitpoint::{CloseReason, Waitpoint, WaitpointState};
use ff_core::worker::{Server, Worker};
use ff_core::{ApiToken, Code, Error, Indexed, Key, Partition, Result, limits};

use super::Timers;
use super::registry::ExpireRegistration;
use crate::execution_data;
use crate::journal;
use crate::removal::Removal;
use crate::transaction::{Command, Tx};

impl Timers {
    /// Fires one entry of the `due` index.
    pub(crate) async fn fire(&self, partition: Partition, member: &Key, score: i64) -> Result<()> {
        let Some((key, due)) = Due::parse(member) else {
            return Err(Error::new(Code::CorruptDocument, format!("{member:?} is not a due entry")));
        };
        let command = self.transactor.fresh_command();
        match (key.kind(), due) {
            (kind::EXECUTION, Due::Lease) => {
                self.transactor.transact(partition, command, &ExpireLease { key, score }).await
            }
            (kind::EXECUTION, Due::Timer) => {
                self.transactor.transact(partition, command, &FireExecution { key, score }).await
            }
            (kind::WAITPOINT, _) => self.transactor.transact(partition, command, &ExpireWaitpoint { key, score }).await,
            (kind::FLOW, _) => self.resolver.fire_flow(partition, &key, score).await,
            (kind::WORKER, Due::Lease) => {
                self.transactor.transact(partition, command, &ExpireRegistration::<Worker>::new(key, score)).await
            }
            (kind::SERVER, Due::Lease) => {
                self.transactor.transact(partition, command, &ExpireRegistration::<Server>::new(key, score)).await
            }
            (kind::TOKEN, _) => self.transactor.transact(partition, command, &ForgetToken { key, score }).await,
            (kind::BUDGET, _) => self.fire_budget(partition, key, score).await,
            (kind::SCHEDULE, _) => self.submissions.fire_schedule(partition, key, score).await,
            (kind::BULK_PART, _) => self.bulk.fire_bulk_part(partition, key, score).await,
            (kind::BULK, _) => self.bulk.fire_bulk(key, score).await,
            (kind::SLOT, _) => self.fire_slot(partition, key, score).await,
            (kind::CONCURRENCY_KEY, _) => self.fire_key(partition, key, score).await,
            (kind::RESERVATION, _) => self.fire_reservation(partition, key, score).await,
            (kind::BOOKING, _) => self.fire_booking(partition, key, score).await,
            // A newer version wrote this entry, and knows what to do with it.
            _ => {
                if let Some(suppressed) = self.transactor.may_log("a timer of a kind that this version does not know") {
                    tracing::warn!(%partition, ?key, suppressed, "a timer of a kind that this version does not know; left alone");
                }
                Ok(())
            }
        }
    }
}

/// Expires a lease that ran out, unless it was renewed in the meantime.
struct ExpireLease {
    key: Key,
    score: i64,
}

impl Command for ExpireLease {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Execution>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Lease.entry(&self.key, self.score)).await?;
            return Ok(());
        };
        let mut execution = loaded.document;
        if execution.document_lease().ttl_ms.is_none() {
            tx.remove_stray(&self.key, Due::Lease.entry(&self.key, self.score)).await?;
            return Ok(());
        }
        if loaded.lease_until > tx.now && !planted(Bug::ExpiryIgnoresRenewal) {
            // The lease was renewed after the entry was read; the renewal has moved the entry.
            tx.transactor.due().note(tx.partition, loaded.lease_until);
            return Ok(());
        }
        let lost = journal::last_of_lease(tx, &execution).await?;
        let mut effects = Effects::default();
        if !planted(Bug::ExpiryIgnoresRenewal) {
            tx.require_expired(&self.key);
        }
        execution.expire_lease(&lost, tx.now, &mut effects)?;
        tracing::info!(execution = %execution.id, attempt = %execution.attempt.as_ref().map(|a| a.index).unwrap_or_default(), "a lease ran out");
        tx.save_execution(&execution, effects);
        Ok(())
    }
}

/// Fires the own timer of an execution: delay, backoff, grant, deadline, attempt timeout, suspension timeout, recheck
/// or retention.
struct FireExecution {
    key: Key,
    score: i64,
}

impl Command for FireExecution {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Execution>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(());
        };
        let mut execution = loaded.document;
        let suspension = execution.suspension.clone();
        let due_until = tx.due_until();
        let due = execution.due_waits(due_until);
        let parked = !execution.waits.is_empty();
        let mut effects = Effects::default();
        match execution.fire(due_until, tx.random(), &mut effects) {
            Fired::Nothing => tx.repair_due(&self.key, execution.next_timer(), self.score).await?,
            Fired::Changed => {
                if parked && execution.waits.is_empty() && !execution.is_terminal() {
                    end_due_waits(tx, &execution, &due).await?;
                } else if let Some(suspension) = suspension.filter(|_| execution.suspension.is_none()) {
                    execution_data::close_waitpoints(tx, &suspension, &execution).await?;
                }
                tx.save_execution(&execution, effects);
            }
            Fired::Remove => {
                let mut removal = Removal::of(tx.transactor.chunk(limits::RESOLVE_CHUNK));
                if !execution_data::remove_execution_data(tx, &execution, &mut removal).await? {
                    // The rest is removed in its next turn, after other entries that are due.
                    tx.transactor.due().note(tx.partition, tx.now);
                }
            }
        }
        Ok(())
    }
}

/// Ends waits whose time is up: their journal entries record it, and their waitpoints take no more signals.
async fn end_due_waits(tx: &mut Tx<'_>, execution: &Execution, due: &[Wait]) -> Result<()> {
    let entries: Vec<StepEntry> = due.iter().map(Wait::timed_out).collect();
    journal::append_decided(tx, execution, &entries).await?;
    let keys = due.iter().filter_map(|wait| wait.waitpoint.as_ref()).map(Waitpoint::key_of).collect();
    for loaded in tx.load_many::<Waitpoint>(keys).await?.into_iter().flatten() {
        let mut waitpoint = loaded.document;
        if waitpoint.close(CloseReason::TimedOut, tx.now) {
            tx.save(&waitpoint);
        }
    }
    Ok(())
}

/// Expires a waitpoint that no execution suspended on.
struct ExpireWaitpoint {
    key: Key,
    score: i64,
}

impl Command for ExpireWaitpoint {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Waitpoint>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(());
        };
        let mut waitpoint = loaded.document;
        if waitpoint.expire(tx.now) {
            tx.save(&waitpoint);
        } else {
            let pending = waitpoint.state == WaitpointState::Pending;
            tx.repair_due(&self.key, waitpoint.expires_at.filter(|_| pending), self.score).await?;
        }
        Ok(())
    }
}

/// Removes the record of a token that expired or was revoked a while ago.
struct ForgetToken {
    key: Key,
    score: i64,
}

impl Command for ForgetToken {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<ApiToken>(self.key.clone()).await? else {
            tx.remove_stray(&self.key, Due::Timer.entry(&self.key, self.score)).await?;
            return Ok(());
        };
        match loaded.document.forgotten_at() {
            Some(at) if at <= tx.now => tx.delete(&self.key),
            next => tx.repair_due(&self.key, next, self.score).await?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::op::{CreateExecution, create_execution};
    use ff_store::memory::MemoryStore;

    use super::*;
    use crate::env::TokioEnv;
    use crate::{Caller, Engine, Options};

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_came_too_early_is_looked_at_again() {
        let store = Arc::new(MemoryStore::with_clock(Arc::new(|| 1_800_000_000_000)));
        let options = Options { services: false, ..Options::default() };
        let engine = Engine::start(store, Arc::new(TokioEnv::current()), options).await.unwrap();
        let later = Some(engine.now() + 1_000);
        let args = create_execution::Args { kind: "test".into(), delay_until: later, ..Default::default() };
        let id = engine.call::<CreateExecution>(&Caller::system(), args).await.unwrap().execution_id;
        let timers = &engine.services.shared.timers;
        let idle = Default::default();
        let due = timers.transactor.due().earliest(&idle, |_| 0).unwrap();
        timers.transactor.due().take_due(due, &idle, |_| 0);
        timers.fire(id.partition(), &Due::Timer.member(&Execution::key_of(&id)), due).await.unwrap();
        assert_eq!(timers.transactor.due().earliest(&idle, |_| 0), Some(due));
    }
}
