//! Resumes a suspended execution by an operator's decision.

use ff_core::event::Effects;
use ff_core::idempotency::AnswerRecord;
use ff_core::journal::StepState;
use ff_core::op::ResumeExecution;
use ff_core::op::resume_execution::{Args, Outcome};
use ff_core::{Code, Error, Result, SuspensionId, limits};
use uuid::Uuid;

use super::{close_waitpoints, load_visible};
use crate::engine::{Caller, Engine, Handle};
use crate::journal;
use crate::transaction::{Command, Tx};

const NAME: &str = "resume_execution";

impl Handle<ResumeExecution> for Engine {
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
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let identity = self.args.command_id.map(|command| [*execution.id.uuid.as_bytes(), *command.as_bytes()]);
        let parts = identity.as_ref().map(|parts| parts.each_ref().map(<[u8; 16]>::as_slice));
        if let Some(parts) = &parts
            && let Some(record) = tx.load::<AnswerRecord>(AnswerRecord::key_of(NAME, parts)).await?
        {
            let suspension_id = Uuid::from_slice(&record.document.answer).map(SuspensionId);
            let suspension_id = suspension_id.map_err(|_| Error::of(Code::CorruptDocument))?;
            return Ok(Outcome { suspension_id, public_state: execution.public_state() });
        }
        let suspension = execution.suspension.clone().unwrap_or_default();
        let waits = execution.waits.clone();
        execution.resume_by_operator(tx.now)?;
        // A parked function finds its signals ended without a payload.
        let signals = waits.iter().filter(|wait| wait.waitpoint.is_some());
        let entries: Vec<_> = signals.map(|wait| wait.ended(StepState::Completed)).collect();
        journal::append_decided(tx, &execution, &entries).await?;
        close_waitpoints(tx, &suspension, &execution).await?;
        if let Some(parts) = &parts {
            let record = AnswerRecord::new(NAME, parts, suspension.id.as_bytes().to_vec());
            tx.create_until(&record, tx.now + limits::DEDUP_WINDOW_MS);
        }
        tx.save_execution(&execution, Effects::default());
        Ok(Outcome { suspension_id: suspension.id, public_state: execution.public_state() })
    }
}
