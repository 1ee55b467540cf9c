//! Opens a waitpoint before suspending; signals sent meanwhile are buffered.

use ff_core::event::Effects;
use ff_core::op::CreatePendingWaitpoint;
use ff_core::op::create_pending_waitpoint::{Args, Outcome};
use ff_core::waitpoint::{NewWaitpoint, Waitpoint, WaitpointState};
use ff_core::{Code, Error, Indexed, Result, WaitpointId, index, limits};

use super::load_visible;
use crate::engine::{Caller, Engine, Handle};
use crate::env;
use crate::transaction::{Command, Tx};

impl Handle<CreatePendingWaitpoint> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let minted = || WaitpointId::in_partition(partition, &env::mint(self.env(), self.now()));
        let id = args.waitpoint_id.unwrap_or_else(minted);
        let verb = Verb { caller, args: &args, id };
        // The waitpoint's own id is identity enough, where the caller brought one.
        let identity = match args.waitpoint_id {
            Some(_) => None,
            None => self.callers_identity::<CreatePendingWaitpoint>(caller, &args, None),
        };
        let waitpoint = self.transact_once(partition, identity, &verb).await?;
        Ok(Outcome {
            token: self.sign(&waitpoint).await?,
            waitpoint_id: waitpoint.id,
            waitpoint_key: waitpoint.waitpoint_key,
            expires_at: waitpoint.expires_at.unwrap_or(waitpoint.created_at),
        })
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
    id: WaitpointId,
}

impl Command for Verb<'_> {
    type Outcome = Waitpoint;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Waitpoint> {
        let execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        execution.check_fence(&self.args.fence)?;
        let new = NewWaitpoint {
            id: self.id,
            execution: execution.id,
            namespace: execution.namespace.clone(),
            waitpoint_key: self.args.waitpoint_key.clone().unwrap_or_default(),
        };
        let waitpoint = Waitpoint::pending(new, self.args.expires_in_ms, tx.now)?;
        if let Some(existing) = tx.load::<Waitpoint>(waitpoint.key()).await? {
            return same(existing.document, &waitpoint);
        }
        let open = tx.count(index::pending_waitpoints(execution.id.uuid)).await?;
        if open >= limits::WAITPOINTS_MAX as u64 {
            return Err(Error::of(Code::WaitpointLimitExceeded).with("max", limits::WAITPOINTS_MAX));
        }
        tx.require_holder(&execution.key(), &self.args.fence);
        // The count holds only if nobody else counted meanwhile: each of these writes the execution anew.
        tx.save_execution(&execution, Effects::default());
        tx.save(&waitpoint);
        Ok(waitpoint)
    }
}

/// The waitpoint that a repeated call made, if it is the same one and still of use.
fn same(existing: Waitpoint, asked: &Waitpoint) -> Result<Waitpoint> {
    if existing.execution != asked.execution || existing.waitpoint_key != asked.waitpoint_key {
        return Err(Error::of(Code::IdempotencyConflict).with("waitpoint_id", asked.id));
    }
    if existing.state != WaitpointState::Pending {
        return Err(Error::of(Code::WaitpointNotPending).with("waitpoint_id", asked.id));
    }
    Ok(existing)
}
