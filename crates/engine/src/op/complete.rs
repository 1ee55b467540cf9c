//! Ends the attempt, and with it the execution, with a result.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::op::Complete;
use ff_core::op::complete::{Args, Outcome};
use ff_core::{Indexed, Result};

use super::{load_visible, payload};
use crate::engine::{Caller, Engine, Handle};
use crate::journal;
use crate::limits::bytes;
use crate::transaction::{Command, Tx};

impl Handle<Complete> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let size = args.result()?.map_or(0, |result| result.bytes.len());
        bytes("result", size, self.limits().result_max_bytes)?;
        let partition = args.execution_id.partition();
        self.transact(partition, self.fresh_command(), &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let was_terminal = execution.is_terminal();
        let (before, continuation) = (execution.result.clone(), execution.continuation.clone());
        let (result, blob) = payload::divide(self.args.result()?);
        let mut effects = Effects::default();
        execution.complete(&self.args.fence, result, tx.now, &mut effects)?;
        let outcome = Outcome { public_state: execution.public_state(), completed_at: execution.ended_at };
        if !was_terminal {
            tx.require_holder(&execution.key(), &self.args.fence);
            journal::append(tx, &execution, &self.args.fence, &self.args.new_entries()?).await?;
            payload::write(tx, payload::Which::Result, &execution.id, blob, before.as_ref());
            payload::write(tx, payload::Which::Continuation, &execution.id, None, continuation.as_ref());
            tx.relief();
            tx.save_shared(Arc::new(execution), effects);
        }
        Ok(outcome)
    }
}
