//! The form that most verbs have: one execution, one transition, one commit.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::idempotency::Identity;
use ff_core::journal::{NewEntries, StepEntry};
use ff_core::lease::LeaseFence;
use ff_core::{Error, ExecutionId, Indexed, Result, SuspensionId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caller::Caller;
use crate::execution_data::close_waitpoints;
use crate::transaction::{Command, Transactor, Tx};
use crate::visibility::share_visible;
use crate::{env, journal, payload};

/// The inputs of a transition from outside its document.
pub(crate) struct TransitionContext<'t> {
    /// The store's time.
    pub(crate) now: i64,
    /// Random bits.
    pub(crate) random: u32,
    /// Collects what else is to be done.
    pub(crate) effects: &'t mut Effects,
    /// Journal entries that follow from the transition, behind those the caller brought.
    pub(crate) entries: &'t mut Vec<StepEntry>,
}

impl Transactor {
    /// Applies a transition to an execution that the caller may see. A holder's change counts only while its lease
    /// does. A transition that changes nothing (a repeated call) commits nothing.
    pub(crate) async fn change<T: Send>(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        holder: Option<&LeaseFence>,
        act: impl Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.check_id(id)?;
        let entries = NewEntries::NONE;
        self.transact(id.partition(), self.fresh_command(), &Change { caller, id, holder, entries, act }).await
    }

    /// Changes an execution by a lease holder that records journal entries in the same commit.
    pub(crate) async fn change_and_record<T: Send>(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        (fence, entries): (&LeaseFence, NewEntries<'_>),
        act: impl Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.check_id(id)?;
        let brought = entries.entries;
        let change = Recording(Change { caller, id, holder: Some(fence), entries, act });
        let changed = self.transact(id.partition(), self.fresh_command(), &change).await;
        self.keep_late_reports(caller, id, fence, brought, &changed).await;
        changed?
    }

    /// Makes a change whose repeat would have a second effect, once; see [`Transactor::transact_once`].
    pub(crate) async fn change_once<T: Serialize + DeserializeOwned + Send + Sync>(
        &self,
        identity: Option<Identity>,
        caller: &Caller,
        id: &ExecutionId,
        holder: Option<&LeaseFence>,
        act: impl Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.check_id(id)?;
        let entries = NewEntries::NONE;
        self.transact_once(id.partition(), identity, &Change { caller, id, holder, entries, act }).await
    }
}

struct Change<'a, F> {
    caller: &'a Caller,
    id: &'a ExecutionId,
    holder: Option<&'a LeaseFence>,
    entries: NewEntries<'a>,
    act: F,
}

impl<T: Send, F: Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync> Command for Change<'_, F> {
    type Outcome = T;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<T> {
        // Only entries are taken for a loop, and this change has none.
        self.apply(tx).await?
    }
}

/// A change of a lease holder that brings entries.
struct Recording<'a, F>(Change<'a, F>);

impl<T: Send, F: Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync> Command
    for Recording<'_, F>
{
    /// The refusal of a holder that was stopped instead, which is committed.
    type Outcome = Result<T>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Result<T>> {
        self.0.apply(tx).await
    }
}

impl<T: Send, F: Fn(&mut Execution, &mut TransitionContext<'_>) -> Result<T> + Send + Sync> Change<'_, F> {
    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Result<T>> {
        let before = share_visible(tx, self.caller, self.id).await?;
        let mut after = Arc::clone(&before);
        let execution = Arc::make_mut(&mut after);
        let mut effects = Effects::default();
        let mut following = Vec::new();
        let mut context =
            TransitionContext { now: tx.now, random: tx.random(), effects: &mut effects, entries: &mut following };
        let outcome = (self.act)(execution, &mut context)?;
        if *execution == *before {
            return Ok(Ok(outcome));
        }
        if let Some(fence) = self.holder {
            if !after.is_terminal()
                && let Some(stopped) = stop_instead(tx, &before, fence, &self.entries).await?
            {
                return Ok(Err(stopped));
            }
            tx.require_holder(&after.key(), fence);
            let entries: Vec<StepEntry> = self.entries.entries.iter().cloned().chain(following).collect();
            let new = NewEntries { first_number: self.entries.first_number, entries: &entries };
            journal::append(tx, &before, fence, &new).await?;
        }
        save_changed(tx, &before, after, effects).await?;
        Ok(Ok(outcome))
    }
}

/// Stops a holder whose entries are taken for a loop, instead of the delay, wait or similar that it asked for: its
/// lease ends, and nothing else happens. Returns the refusal of the call, which its repeats get, too. The caller
/// commits, so that the refusal is an outcome and no error of the command.
pub(crate) async fn stop_instead(
    tx: &mut Tx<'_>,
    before: &Execution,
    fence: &LeaseFence,
    brought: &NewEntries<'_>,
) -> Result<Option<Error>> {
    if brought.is_empty() {
        return Ok(None);
    }
    let mut stopped = before.clone();
    let suspension = SuspensionId::mint(&env::mint(tx.transactor.env(), tx.now));
    if !journal::stop_loop(tx, &mut stopped, fence, brought, suspension).await? {
        return Ok(None);
    }
    journal::append(tx, before, fence, brought).await?;
    Ok(Some(stopped.stopped_as_loop()))
}

/// Saves an execution that a transition changed, together with the changes of its waitpoints and its continuation.
pub(crate) async fn save_changed(
    tx: &mut Tx<'_>,
    before: &Execution,
    execution: Arc<Execution>,
    effects: Effects,
) -> Result<()> {
    if execution.suspension.is_none()
        && let Some(suspension) = &before.suspension
    {
        close_waitpoints(tx, suspension, &execution).await?;
    }
    if execution.continuation != before.continuation {
        payload::write(tx, payload::Which::Continuation, &execution.id, None, before.continuation.as_deref());
    }
    if execution.is_terminal() {
        tx.relief();
    }
    tx.save_shared(execution, effects);
    Ok(())
}
