//! Resumes a suspended execution by an operator's decision.

use ff_core::Result;
use ff_core::event::Effects;
use ff_core::journal::StepState;
use ff_core::op::ResumeExecution;
use ff_core::op::resume_execution::{Args, Outcome};

use super::{close_waitpoints, load_visible};
use crate::engine::{Caller, Engine, Handle};
use crate::journal;
use crate::transaction::{Command, Tx};

impl Handle<ResumeExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.identity::<ResumeExecution>(caller, &args, args.command_id);
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
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let suspension = execution.suspension.clone().unwrap_or_default();
        let waits = execution.waits.clone();
        execution.resume_by_operator(tx.now)?;
        // A parked function finds its signals ended without a payload.
        let signals = waits.iter().filter(|wait| wait.waitpoint.is_some());
        let entries: Vec<_> = signals.map(|wait| wait.ended(StepState::Completed)).collect();
        journal::append_decided(tx, &execution, &entries).await?;
        close_waitpoints(tx, &suspension, &execution).await?;
        tx.save_execution(&execution, Effects::default());
        Ok(Outcome { suspension_id: suspension.id, public_state: execution.public_state() })
    }
}
