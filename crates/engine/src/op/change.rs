//! The shape most verbs have: one execution, one transition, one commit.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::idempotency::Identity;
use ff_core::lease::LeaseFence;
use ff_core::{ExecutionId, Indexed, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{close_waitpoints, load_visible, payload};
use crate::engine::{Caller, Engine};
use crate::transaction::{Command, Tx};

/// What a transition needs from outside its document.
pub(crate) struct Moment<'t> {
    /// The store's time.
    pub(crate) now: i64,
    /// Random bits.
    pub(crate) random: u32,
    /// Where it says what else is to be done.
    pub(crate) effects: &'t mut Effects,
}

impl Engine {
    /// Applies a transition to an execution that the caller may see. A holder's change counts only while its lease
    /// does. A transition that changes nothing (a repeated call) commits nothing.
    pub(crate) async fn change<T: Send>(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        holder: Option<&LeaseFence>,
        act: impl Fn(&mut Execution, &mut Moment<'_>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.check_id(id)?;
        self.transact(id.partition(), self.fresh_command(), &Change { caller, id, holder, act }).await
    }

    /// The same for a change that is not the same change by nature when it is repeated; see [`Engine::transact_once`].
    pub(crate) async fn change_once<T: Serialize + DeserializeOwned + Send + Sync>(
        &self,
        identity: Option<Identity>,
        caller: &Caller,
        id: &ExecutionId,
        holder: Option<&LeaseFence>,
        act: impl Fn(&mut Execution, &mut Moment<'_>) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        self.check_id(id)?;
        self.transact_once(id.partition(), identity, &Change { caller, id, holder, act }).await
    }
}

struct Change<'a, F> {
    caller: &'a Caller,
    id: &'a ExecutionId,
    holder: Option<&'a LeaseFence>,
    act: F,
}

impl<T: Send, F: Fn(&mut Execution, &mut Moment<'_>) -> Result<T> + Send + Sync> Command for Change<'_, F> {
    type Outcome = T;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<T> {
        let mut execution = load_visible(tx, self.caller, self.id).await?;
        let before = execution.clone();
        let mut effects = Effects::default();
        let mut moment = Moment { now: tx.now, random: tx.random(), effects: &mut effects };
        let outcome = (self.act)(&mut execution, &mut moment)?;
        if execution == before {
            return Ok(outcome);
        }
        if let Some(fence) = self.holder {
            tx.require_holder(&execution.key(), fence);
        }
        if execution.suspension.is_none()
            && let Some(suspension) = &before.suspension
        {
            close_waitpoints(tx, suspension, &execution).await?;
        }
        if execution.continuation != before.continuation {
            payload::write(tx, payload::Which::Continuation, self.id, None, before.continuation.as_ref());
        }
        if execution.is_terminal() {
            tx.relief();
        }
        tx.save_execution(&execution, effects);
        Ok(outcome)
    }
}
