//! Begins the function of an execution anew with another input and an empty journal.

use bytes::Bytes;
use ff_core::event::Effects;
use ff_core::op::{ContinueAsNew, ContinueAsNewArgs, ContinueAsNewOutcome};
use ff_core::payload::Payload;
use ff_core::{Indexed, Result};

use crate::caller::Caller;
use crate::limits::bytes;
use crate::mailbox::{self, Renumbered};
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::transition::stop_instead;
use crate::visibility::load_visible;
use crate::{journal, payload};

impl Handle<ContinueAsNew> for Services {
    async fn handle(&self, caller: &Caller, args: ContinueAsNewArgs) -> Result<ContinueAsNewOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let content = args.input()?;
        bytes(
            "input",
            content.as_ref().map_or(0, |content| content.bytes.len()),
            self.transactor.limits().input_max_bytes,
        )?;
        let (input, blob) = match content {
            Some(content) => {
                let (input, blob) = payload::divide(Some(content));
                (Some(input), blob)
            }
            None => (None, None),
        };
        let verb = Continue { caller, args: &args, input, blob };
        let continued = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &continued).await;
        continued?
    }
}

struct Continue<'a> {
    caller: &'a Caller,
    args: &'a ContinueAsNewArgs,
    input: Option<Payload>,
    blob: Option<Bytes>,
}

impl Command for Continue<'_> {
    /// The refusal of a holder that was stopped instead, which is committed.
    type Outcome = Result<ContinueAsNewOutcome>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Result<ContinueAsNewOutcome>> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let before = execution.clone();
        let mut effects = Effects::default();
        let fence = &self.args.fence;
        let told = execution.continue_as_new(fence, self.input.clone(), tx.now, &mut effects)?;
        let brought = self.args.new_entries()?;
        if execution != before {
            if let Some(stopped) = stop_instead(tx, &before, fence, &brought).await? {
                return Ok(Err(stopped));
            }
            tx.require_holder(&execution.key(), fence);
            journal::append(tx, &before, fence, &brought).await?;
            if self.input.is_some() {
                payload::write(tx, payload::Which::Input, &execution.id, self.blob.clone(), Some(&before.input));
            }
            payload::write(tx, payload::Which::Continuation, &execution.id, None, before.continuation.as_deref());
            mailbox::move_on(tx, &execution, before.generation, Renumbered::Yes).await?;
            tx.save_execution(&execution, effects);
        }
        let public_state = told.public_state.unwrap_or_else(|| execution.public_state());
        Ok(Ok(ContinueAsNewOutcome { generation: told.generation, public_state }))
    }
}
