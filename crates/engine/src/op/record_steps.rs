//! Appends entries to the journal of the execution. A repeat with the same numbers is the same entries.

use ff_core::journal::NewEntries;
use ff_core::op::RecordSteps;
use ff_core::op::record_steps::{Args, Outcome};
use ff_core::{Indexed, Result};

use super::load_visible;
use crate::engine::{Caller, Engine, Handle};
use crate::journal;
use crate::transaction::{Command, Tx};

impl Handle<RecordSteps> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
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
        let Args { execution_id, fence, first_number, entries } = self.args;
        let execution = load_visible(tx, self.caller, execution_id).await?;
        execution.check_fence(fence)?;
        let new = NewEntries::of(Some(*first_number), entries)?;
        let next_number = journal::append(tx, &execution, fence, &new).await?;
        if tx.appends_something() {
            tx.require_holder(&execution.key(), fence);
        }
        Ok(Outcome { last_number: next_number - 1, next_number })
    }
}
