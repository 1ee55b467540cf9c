//! The journal of a task whose program is run: which steps are done, and under which number the next one is recorded.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::journal::{StepEntry, StepIdentity, StepState, StepView};
use flowfabric::{ClaimedTask, SdkError};

use crate::span;
use crate::task::{Answer, OnDoubt, StepCall, StepEnd, StepTurn, content_type};

/// The code of a step of which it is not known whether it happened.
const IN_DOUBT: &str = "in_doubt";

/// The journal as the worker knows it while one program runs.
pub(super) struct Notebook {
    /// The last record of each entry.
    entries: BTreeMap<StepIdentity, StepView>,
    next_number: u64,
    /// Calls so far of each name without a key.
    counts: BTreeMap<String, u32>,
    /// Entries this program has asked for.
    visited: BTreeSet<StepIdentity>,
    /// Names without a key whose command still runs.
    unfinished: BTreeSet<String>,
    /// Steps about which a person is asked if their command fails.
    asked_about: BTreeSet<StepIdentity>,
}

/// The reaction to a program's call about a step.
pub(super) enum Turn {
    /// The program hears this.
    Answer(Answer),
    /// It is not known whether the step happened, and a person is asked; the journal goes on with this number.
    Ask { step: StepIdentity, first_number: u64 },
}

impl Notebook {
    /// Reads what earlier runs of the program have recorded.
    pub(super) async fn open(task: &ClaimedTask) -> Result<Self, SdkError> {
        let journal = task.details().journal.clone();
        let mut book = Self {
            entries: BTreeMap::new(),
            next_number: journal.as_ref().map_or(1, |journal| journal.next_number.max(1)),
            counts: BTreeMap::new(),
            visited: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            asked_about: BTreeSet::new(),
        };
        let Some(journal) = journal else { return Ok(book) };
        let mut after = journal.entries.last().map_or(0, |entry| entry.number);
        let mut complete = journal.complete;
        book.note(journal.entries);
        while !complete {
            let page = task.list_steps(after).await?;
            complete = page.next_after.is_none();
            after = page.next_after.unwrap_or(after);
            book.note(page.items);
        }
        Ok(book)
    }

    fn note(&mut self, entries: Vec<StepView>) {
        self.entries.extend(entries.into_iter().map(|entry| (entry.identity(), entry)));
    }

    /// Says whether the command of a step is to run, or what it printed before.
    pub(super) async fn turn(&mut self, task: &ClaimedTask, call: StepCall) -> Result<Turn, SdkError> {
        let StepCall { name, key, once, on_doubt } = call;
        let refused = |code: &str, message: String| Ok(Turn::Answer(Answer::refused_as(code, message)));
        let occurrence = match &key {
            Some(_) => None,
            None if self.unfinished.contains(&name) => {
                let message = format!("another command of step {name:?} still runs; give each a --key");
                return refused("step_key_required", message);
            }
            None => Some(self.counts.get(&name).copied().unwrap_or(0)),
        };
        let step = StepIdentity { name, key, occurrence };
        if let Err(error) = step.validate() {
            return refused(error.code.as_str(), error.detail);
        }
        if !self.visited.insert(step.clone()) {
            return refused("duplicate_step", format!("step {} was run by this program before", step.label()));
        }
        if let Some(occurrence) = occurrence {
            self.counts.insert(step.name.clone(), occurrence + 1);
        }
        match self.entries.get(&step) {
            Some(known) if known.state == StepState::Completed => {
                let bytes = known.result.as_ref().map(|content| content.bytes.clone()).unwrap_or_default();
                return Ok(Turn::Answer(Answer::json(&StepTurn::Done(ff_core::Blob(bytes)))));
            }
            // A person has said so: commands that fail are not recorded.
            Some(known) if known.state == StepState::Failed => {
                let message = known.message.clone().unwrap_or_else(|| format!("step {} failed", step.label()));
                return refused(known.category.as_deref().unwrap_or(IN_DOUBT), message);
            }
            Some(known) if known.state == StepState::Begun && once => match on_doubt {
                OnDoubt::RunAgain => {}
                OnDoubt::Ask => return Ok(Turn::Ask { step, first_number: self.next_number }),
                OnDoubt::Fail => {
                    let message = format!("nobody knows whether step {} happened; it is not run again", step.label());
                    return refused(IN_DOUBT, message);
                }
            },
            _ => {}
        }
        if once {
            self.record(task, &step, StepState::Begun, |_| {}).await?;
        }
        if once && on_doubt == OnDoubt::Ask {
            self.asked_about.insert(step.clone());
        }
        if step.key.is_none() {
            self.unfinished.insert(step.name.clone());
        }
        Ok(Turn::Answer(Answer::json(&StepTurn::Run(step))))
    }

    /// The command of a step has ended.
    pub(super) async fn ended(
        &mut self,
        task: &ClaimedTask,
        step: StepIdentity,
        end: StepEnd,
    ) -> Result<Turn, SdkError> {
        if step.key.is_none() {
            self.unfinished.remove(&step.name);
        }
        match end {
            StepEnd::Printed { output, took_ms } => {
                let json = serde_json::from_slice::<serde::de::IgnoredAny>(&output.0).is_ok();
                let content_type = if json { "application/json" } else { content_type(&output.0) };
                self.record(task, &step, StepState::Completed, |entry| {
                    entry.result_base64 = Some(output);
                    entry.content_type = Some(content_type.to_owned());
                    entry.took_ms = Some(took_ms);
                })
                .await?;
            }
            StepEnd::NotDone => {
                self.record(task, &step, StepState::Retrying, |entry| entry.next_at = Some(span::now_ms())).await?;
            }
            StepEnd::Failed if self.asked_about.contains(&step) => {
                return Ok(Turn::Ask { step, first_number: self.next_number });
            }
            StepEnd::Failed => {}
        }
        Ok(Turn::Answer(Answer::done()))
    }

    async fn record(
        &mut self,
        task: &ClaimedTask,
        step: &StepIdentity,
        state: StepState,
        more: impl FnOnce(&mut StepEntry),
    ) -> Result<(), SdkError> {
        let StepIdentity { name, key, occurrence } = step.clone();
        let mut entry = StepEntry { name, key, occurrence, state, ..Default::default() };
        more(&mut entry);
        self.next_number = task.record_steps(self.next_number, vec![entry]).await?.next_number;
        Ok(())
    }
}
