//! Answers a question about a journal entry: the answer becomes the entry's next record, and the function runs again.

use ff_core::event::Effects;
use ff_core::execution::{Execution, StepAnswer, Wait};
use ff_core::journal::{StepEntry, StepRecord, StepState};
use ff_core::op::{DecideStep, DecideStepArgs, DecideStepOutcome};
use ff_core::suspension::SuspendReason;
use ff_core::{Blob, Error, Result};

use crate::caller::Caller;
use crate::journal;
use crate::mailbox::{self, Renumbered};
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::load_visible;

impl Handle<DecideStep> for Services {
    async fn handle(&self, caller: &Caller, args: DecideStepArgs) -> Result<DecideStepOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<DecideStep>(caller, &args, args.command_id);
        self.transactor.transact_once(partition, identity, &Request::<DecideStep> { caller, args: &args }).await
    }
}

impl Command for Request<'_, DecideStep> {
    type Outcome = DecideStepOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DecideStepOutcome> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let wait = execution.open_question(self.args.step.as_ref())?.clone();
        if let Some(question) = &wait.question {
            question.check_answer(self.args.answer)?;
        }
        if wait.question.as_ref().is_some_and(|question| question.reason == SuspendReason::NoProgress) {
            self.end_loop(tx, &mut execution, &wait).await?;
            return Ok(answer(&execution, &wait));
        }
        let step = wait.identity();
        let found = match self.args.answer {
            StepAnswer::Keep | StepAnswer::RunAgain => Some(journal::find(tx, &execution, &step).await?),
            _ => None,
        };
        let missing = || Error::invalid("step", format!("the journal has no entry {}", step.label()));
        let dropped_from = match (self.args.answer, &found) {
            (StepAnswer::RunAgain, Some(found)) => Some(found.first.ok_or_else(missing)?),
            _ => None,
        };
        let entry = match found.and_then(|found| found.last).filter(|_| self.args.answer == StepAnswer::Keep) {
            Some((record, generation, sequence)) => {
                let result = tx.transactor.step_result(&execution.id, generation, sequence, &record).await?;
                kept(&wait, record, result.map(|content| (Blob(content.bytes), content.content_type)))
            }
            None if self.args.answer == StepAnswer::Keep => return Err(missing()),
            None => self.entry(&wait, tx.now)?,
        };
        let before = execution.generation;
        let mut effects = Effects::default();
        execution.answer_question(&step, dropped_from, tx.now, &mut effects)?;
        match dropped_from {
            // A dropped entry needs no record: the function finds nothing and runs the step.
            Some(_) => mailbox::move_on(tx, &execution, before, Renumbered::No).await?,
            None => journal::append_decided(tx, &execution, &[entry]).await?,
        }
        tx.save_execution(&execution, effects);
        Ok(answer(&execution, &wait))
    }
}

impl Request<'_, DecideStep> {
    /// Lets an execution go on whose steps were taken for a loop, or fails it.
    async fn end_loop(&self, tx: &mut Tx<'_>, execution: &mut Execution, wait: &Wait) -> Result<()> {
        let mut effects = Effects::default();
        match self.args.answer {
            StepAnswer::GoOn => {
                let next_number = journal::next_number(tx, execution).await?;
                execution.go_on_looping(next_number, tx.now, &mut effects);
            }
            _ => {
                let detail = wait.question.as_ref().map(|question| question.detail.as_str()).unwrap_or_default();
                let said = self.args.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
                execution.fail_looping(&format!("{detail}{said}"), tx.now, &mut effects);
                tx.relief();
            }
        }
        tx.save_execution(execution, effects);
        Ok(())
    }

    fn entry(&self, wait: &Wait, now: i64) -> Result<StepEntry> {
        let said = self.args.reason.as_deref().unwrap_or_default();
        let entry = wait.answered(self.args.answer, said, now);
        Ok(match self.args.content()? {
            Some(content) => StepEntry {
                content_type: Some(content.content_type),
                result_base64: Some(Blob(content.bytes)),
                ..entry
            },
            None => entry,
        })
    }
}

/// The entry as it was recorded, with what the program takes it for now.
fn kept(wait: &Wait, record: StepRecord, result: Option<(Blob, String)>) -> StepEntry {
    let entry = wait.answered(StepAnswer::Keep, "", 0);
    let went_wrong = matches!(record.state, StepState::Failed | StepState::Retrying);
    let (result_base64, content_type) = result.unzip();
    StepEntry {
        state: record.state,
        result_base64,
        content_type,
        category: Some(record.category).filter(|text| went_wrong && !text.is_empty()),
        message: Some(record.message).filter(|text| went_wrong && !text.is_empty()),
        tries: Some(record.tries),
        next_at: Some(record.next_at).filter(|at| *at != 0),
        signal: record.signal,
        child: record.child,
        ..entry
    }
}

fn answer(execution: &Execution, wait: &Wait) -> DecideStepOutcome {
    DecideStepOutcome {
        step: wait.identity(),
        generation: execution.generation,
        public_state: execution.public_state(),
    }
}
