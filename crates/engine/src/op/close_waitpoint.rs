//! Closes a pending waitpoint; it takes no more signals.

use ff_core::op::CloseWaitpoint;
use ff_core::op::close_waitpoint::{Args, Outcome};
use ff_core::waitpoint::{CloseReason, Waitpoint, WaitpointState};
use ff_core::{Code, Error, ExecutionId, Result, WaitpointId};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<CloseWaitpoint> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<CloseWaitpoint>(caller, &args, None);
        self.transact_once(partition, identity, &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let id = &self.args.waitpoint_id;
        let loaded = tx.load::<Waitpoint>(Waitpoint::key_of(id)).await?;
        let found = loaded.map(|loaded| loaded.document);
        let mut waitpoint = visible(self.caller, found, &self.args.execution_id, id)?;
        if waitpoint.state == WaitpointState::Active {
            // Its suspension would be left with nowhere to hear from.
            return Err(Error::of(Code::WaitpointNotPending).with("waitpoint_id", id));
        }
        let changed = waitpoint.close(CloseReason::Requested, tx.now);
        if changed {
            tx.save(&waitpoint);
        }
        Ok(Outcome { changed })
    }
}

/// The waitpoint, if it is one of this execution and the caller may see it.
pub(crate) fn visible(
    caller: &Caller,
    found: Option<Waitpoint>,
    execution: &ExecutionId,
    id: &WaitpointId,
) -> Result<Waitpoint> {
    found
        .filter(|found| found.id == *id && found.execution == *execution && caller.sees(&found.namespace))
        .ok_or_else(|| Error::of(Code::WaitpointNotFound).with("waitpoint_id", id))
}
