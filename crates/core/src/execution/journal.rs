//! The journals of an execution, as far as its document knows them: which generation is written to, which entries a
//! generation took over from an earlier one, questions about entries, and reports of holders that came after their
//! lease was lost.

use super::{Execution, Failure, Hold, ResumedBy, Wait};
use crate::error::{Code, Error, Result};
use crate::event::Effects;
use crate::id::{ExecutionId, LeaseId};
use crate::journal::{RunNotes, StepEntry, StepIdentity, StepKind, StepRecord, StepState};
use crate::lease::{LeaseEnd, LeaseEnding, LeaseFence};
use crate::payload::Payload;
use crate::state::{LifecyclePhase, TerminalOutcome};
use crate::suspension::SuspendReason;
use crate::{document, limits, text, vocabulary};

document! {
    /// Facts about the journals of an execution that most executions do not need.
    pub struct JournalNotes {
        /// Generations that begin with entries of an earlier one.
        "b" bases: Vec<Base>,
        /// Generations whose journals are no longer needed; they are removed in the background.
        "d" dropped: Vec<u32>,
        /// Reports of holders that had lost their lease, the newest last.
        "l" late_reports: Vec<LateReport>,
        /// Entries that the run which ended it never asked for.
        "v" not_visited: Vec<StepRef>,
        /// Entries that stand although the program gave them another input.
        "c" changed: Vec<StepRef>,
        /// Where its first journal was copied from.
        "f" fork: Option<Fork>,
        /// Records below this number do not count towards a loop: a person let the execution go on.
        "lf" loop_from: u64,
    }
}

document! {
    /// The origin of an execution's copied journal, and how far the copy is.
    pub struct Fork {
        /// The execution that was forked.
        "o" origin: ExecutionId,
        /// The generation of its journal.
        "g" generation: u32,
        /// Only entries below this number are copied.
        "b" below: u64,
        /// Entries of the origin up to this number have been processed.
        "c" copied: u64,
        /// The number of the next entry here.
        "n" next: u64,
        /// Everything is copied.
        "d" done: bool,
    }
}

document! {
    /// The beginning of a generation: the entries of an earlier one below a number.
    pub struct Base {
        /// The generation that begins so.
        "g" generation: u32,
        /// The generation whose entries it takes over.
        "f" from: u32,
        /// The number of its first own entry.
        "b" below: u64,
    }
}

document! {
    /// An entry by its name, as documents keep it.
    pub struct StepRef {
        /// Its name in the program.
        "n" name: String,
        /// The caller's key.
        "k" key: Option<String>,
        /// Which call of the name it is, when it has no key.
        "o" occurrence: u32,
    }
}

impl StepRef {
    /// The entry it names.
    pub fn identity(&self) -> StepIdentity {
        let occurrence = self.key.is_none().then_some(self.occurrence);
        StepIdentity { name: self.name.clone(), key: self.key.clone(), occurrence }
    }
}

impl From<&StepIdentity> for StepRef {
    fn from(identity: &StepIdentity) -> Self {
        Self {
            name: identity.name.clone(),
            key: identity.key.clone(),
            occurrence: identity.occurrence.unwrap_or(0),
            ..Default::default()
        }
    }
}

document! {
    /// How a step ended according to a holder that had lost its lease. It is no record of the journal: it is shown to
    /// the person who is asked about the step.
    pub struct LateReport {
        /// The entry.
        "e" step: StepRef,
        /// How it ended.
        "s" state: StepState,
        /// Its result, when it is small.
        "r" result: Option<Payload>,
        /// How many bytes the result has.
        "z" result_size: u64,
        /// The category of the failure.
        "c" category: String,
        /// The message of the failure.
        "m" message: String,
        /// The lease that was lost.
        "l" lease: LeaseId,
        /// When it was reported.
        "t" at: i64,
    }
}

document! {
    /// A question about an entry of the journal.
    pub struct Question {
        /// The reason for asking: `in_doubt`, `journal_mismatch` or `no_progress`.
        "r" reason: SuspendReason,
        /// The reason in words, for people.
        "d" detail: String,
        /// The kind that the program takes the entry for now.
        "t" kind: StepKind,
        /// The digest of its input now.
        "h" input_hash: String,
    }
}

vocabulary! {
    /// A person's answer to a question about a step.
    pub enum StepAnswer {
        /// It happened, with a result: the body does not run again. Answers `in_doubt`.
        Happened "happened",
        /// It did not happen: the body runs. Answers `in_doubt`.
        DidNotHappen "did_not_happen",
        /// The step fails. Where the question is `no_progress`, the execution does.
        Fail "fail",
        /// The recorded entry stands, although the program has changed. Answers `journal_mismatch`.
        Keep "keep",
        /// The recorded entries from this one on are dropped, and run again. Answers `journal_mismatch`.
        RunAgain "run_again",
        /// The execution goes on, and equal results are counted anew. Answers `no_progress`.
        GoOn "go_on",
    }
}

impl Question {
    /// The answers it takes.
    pub fn answers(&self) -> &'static [StepAnswer] {
        match self.reason {
            SuspendReason::JournalMismatch => &[StepAnswer::Keep, StepAnswer::RunAgain, StepAnswer::Fail],
            SuspendReason::NoProgress => &[StepAnswer::GoOn, StepAnswer::Fail],
            _ => &[StepAnswer::Happened, StepAnswer::DidNotHappen, StepAnswer::Fail],
        }
    }

    /// Refuses an answer to another question.
    pub fn check_answer(&self, answer: StepAnswer) -> Result<()> {
        if self.answers().contains(&answer) {
            return Ok(());
        }
        let known: Vec<&str> = self.answers().iter().map(|answer| answer.as_str()).collect();
        Err(Error::invalid(
            "answer",
            format!("must be one of {} where the question is {}", known.join(", "), self.reason),
        ))
    }
}

impl Wait {
    /// The entry that an answer leaves in the journal. The caller adds the result of `happened`; for `keep` and
    /// `run_again` it takes the recorded entries into account.
    pub fn answered(&self, answer: StepAnswer, said: &str, now: i64) -> StepEntry {
        let question = self.question.clone().unwrap_or_default();
        let entry = StepEntry {
            kind: Some(question.kind),
            input_hash: Some(question.input_hash).filter(|hash| !hash.is_empty()),
            ..self.ended(StepState::Completed)
        };
        let because = |what: &str| Some(if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") });
        match answer {
            StepAnswer::Happened | StepAnswer::Keep | StepAnswer::GoOn => entry,
            StepAnswer::DidNotHappen | StepAnswer::RunAgain => StepEntry {
                state: StepState::Retrying,
                message: because("a person let it run"),
                next_at: Some(now),
                ..entry
            },
            StepAnswer::Fail | StepAnswer::Unknown(_) => StepEntry {
                state: StepState::Failed,
                category: Some(question.reason.as_str().to_owned()),
                message: because("a person let it fail"),
                ..entry
            },
        }
    }
}

/// Consecutive entries of a journal that are stored in the log of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The generation whose log has them.
    pub generation: u32,
    /// The number that the first record of that log has in the journal.
    pub first: u64,
    /// The number of the first entry behind this segment.
    pub below: u64,
}

impl Segment {
    /// The number in the journal of a record of the log.
    pub fn number(&self, sequence: u64) -> u64 {
        (self.first - 1).saturating_add(sequence)
    }

    /// The position in the log of an entry of the journal.
    pub fn sequence(&self, number: u64) -> u64 {
        number.saturating_add(1).saturating_sub(self.first)
    }
}

impl Execution {
    /// The notes about its journals, made if there are none yet.
    pub(super) fn notes(&mut self) -> &mut JournalNotes {
        self.journal.get_or_insert_default()
    }

    /// Drops notes that are empty, so that they take no room in the document.
    fn tidy_notes(&mut self) {
        if self.journal.as_deref() == Some(&JournalNotes::default()) {
            self.journal = None;
        }
    }

    fn base_of(&self, generation: u32) -> Option<&Base> {
        self.journal.as_ref()?.bases.iter().find(|base| base.generation == generation)
    }

    /// Whether a journal may exist before the first lease of the present generation.
    pub fn begins_with_entries(&self) -> bool {
        self.base_of(self.generation).is_some() || (self.generation == 0 && self.fork().is_some())
    }

    /// Where its first journal was copied from.
    pub fn fork(&self) -> Option<&Fork> {
        self.journal.as_ref()?.fork.as_ref()
    }

    /// Refuses to read its journal as a whole before it is copied from its origin, or when it was never copied to the end.
    pub fn check_journal_copied(&self) -> Result<()> {
        let Some(fork) = self.fork().filter(|fork| !fork.done) else { return Ok(()) };
        let detail = if self.is_terminal() {
            format!(
                "it ended before its journal was copied from {}; replay it as a whole, or fork its origin",
                fork.origin
            )
        } else {
            format!("its journal is still being copied from {}; repeat the call when it is complete", fork.origin)
        };
        Err(Error::new(Code::ExecutionNotEligible, detail).with("origin_id", fork.origin))
    }

    /// The copy of its journal, while it is unfinished. The execution does not start before it is finished.
    pub fn unfinished_fork(&self) -> Option<&Fork> {
        self.fork().filter(|fork| !fork.done && !self.is_terminal())
    }

    /// Makes a new execution begin with the journal of another one; it is held until that journal is copied.
    pub fn fork_from(&mut self, mut fork: Fork) {
        fork.done = fork.below <= 1;
        if !fork.done {
            self.hold_for_copy(fork.origin);
        }
        self.notes().fork = Some(fork);
        self.settle();
    }

    fn hold_for_copy(&mut self, origin: ExecutionId) {
        self.holds.set(Hold::Copy);
        self.blocking_detail = format!("its journal is being copied from {origin}");
    }

    /// Holds it for the copy of its journal again, if the copy was unfinished when the execution ended.
    pub(super) fn hold_for_fork(&mut self) {
        if let Some(origin) = self.fork().filter(|fork| !fork.done).map(|fork| fork.origin) {
            self.hold_for_copy(origin);
        }
    }

    /// More of its journal is copied; with the last of it, it may start.
    pub fn fork_copied(&mut self, fork: Fork, done: bool, now: i64) {
        self.mark_updated(now);
        self.notes().fork = Some(Fork { done, ..fork });
        if done {
            self.holds.clear(Hold::Copy);
            if !self.holds.has(Hold::Operator) {
                self.blocking_detail.clear();
            }
            self.settle();
        }
    }

    /// A fork of it has all entries: journals that were kept for that may be removed now.
    pub fn fork_is_complete(&mut self, now: i64) {
        self.mark_updated(now);
    }

    /// The journal that was to be copied is gone.
    pub fn fork_failed(&mut self, reason: &str, now: i64, effects: &mut Effects) {
        let now = self.mark_updated(now);
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            category: "origin_removed".into(),
            by_engine: true,
            at: now,
            ..Default::default()
        });
        self.finish(TerminalOutcome::Failed, now, effects);
    }

    /// The logs that hold the entries of a generation, in the order of the numbers. The last segment is the
    /// generation's own log.
    pub fn journal_segments(&self, generation: u32) -> Vec<Segment> {
        let mut segments = Vec::with_capacity(1);
        let (mut generation, mut below) = (generation, u64::MAX);
        loop {
            let base = self.base_of(generation);
            let first = base.map_or(1, |base| base.below);
            if first < below {
                segments.push(Segment { generation, first, below });
            }
            let Some(base) = base else { break };
            below = below.min(base.below);
            generation = base.from;
        }
        segments.reverse();
        segments
    }

    /// The log that the present generation is written to.
    pub fn journal_tail(&self) -> Segment {
        let first = self.base_of(self.generation).map_or(1, |base| base.below);
        Segment { generation: self.generation, first, below: u64::MAX }
    }

    /// Refuses a generation that would build on too many earlier ones.
    pub(super) fn check_generations(&self, below: Option<u64>) -> Result<()> {
        let max = limits::GENERATIONS_KEPT;
        if below.is_some() && self.past_generations.len() >= max {
            let detail = format!("an execution keeps at most {max} journals");
            return Err(Error::new(Code::JournalFull, detail).with("max", max));
        }
        Ok(())
    }

    /// Begins a generation: with no entries, or with those of the present generation below a number. `keep` says how
    /// many earlier generations are kept, together with those that they build on; the others are removed in the
    /// background.
    pub(super) fn begin_generation(&mut self, below: Option<u64>, keep: usize) {
        let from = self.generation;
        self.past_generations.push(from);
        self.generation = from + 1;
        if let Some(below) = below.filter(|below| *below > 1) {
            let base = Base { generation: self.generation, from, below, ..Default::default() };
            self.notes().bases.push(base);
        }
        let surplus = self.past_generations.len().saturating_sub(keep);
        let kept = self.past_generations[surplus..].iter().copied().chain([self.generation]);
        let needed: Vec<u32> = kept.flat_map(|kept| self.journal_segments(kept)).map(|run| run.generation).collect();
        let past = std::mem::take(&mut self.past_generations);
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (place, generation) in past.into_iter().enumerate() {
            let stays = place >= surplus || needed.contains(&generation);
            if stays { kept.push(generation) } else { dropped.push(generation) }
        }
        self.past_generations = kept;
        if !dropped.is_empty() {
            self.notes().dropped.extend(dropped);
        }
        if let Some(notes) = self.journal.as_mut() {
            notes.late_reports.clear();
            notes.not_visited.clear();
            notes.changed.clear();
            notes.loop_from = notes.loop_from.min(below.unwrap_or(0));
        }
        self.tidy_notes();
    }

    /// Keeps the notes that an ending brings about its run: the entries that the run never asked for, and those that it
    /// let stand.
    pub fn note_run(&mut self, run: &RunNotes) {
        if run.steps_not_visited.is_empty() && run.steps_changed.is_empty() {
            return;
        }
        let notes = self.notes();
        notes.not_visited = run.steps_not_visited.iter().map(StepRef::from).collect();
        notes.changed = run.steps_changed.iter().map(StepRef::from).collect();
    }

    /// Entries that the run which ended it never asked for.
    pub fn steps_not_visited(&self) -> Vec<StepIdentity> {
        self.journal.iter().flat_map(|notes| &notes.not_visited).map(StepRef::identity).collect()
    }

    /// Entries that stand although the program gave them another input.
    pub fn steps_changed(&self) -> Vec<StepIdentity> {
        self.journal.iter().flat_map(|notes| &notes.changed).map(StepRef::identity).collect()
    }

    /// The holder begins its function anew: the same execution and attempt, another input, an empty journal. Everything
    /// that counts towards a limit counts from zero, so that a loop may run for months.
    pub fn continue_as_new(
        &mut self,
        fence: &LeaseFence,
        input: Option<Payload>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<LeaseEnding> {
        if let Some(ending) = self.check_holder(fence, LeaseEnd::Continued)? {
            return Ok(ending.clone());
        }
        if let Some(input) = &input {
            text::optional_content_type("content_type", &input.content_type)?;
        }
        let now = self.mark_updated(now);
        self.part(LeaseEnd::Continued, now, effects);
        self.begin_generation(None, limits::CONTINUED_GENERATIONS_KEPT);
        self.continuations += 1;
        if let Some(input) = input {
            self.input = input;
        }
        if let Some(attempt) = self.attempt.as_mut() {
            attempt.used_ms = 0;
        }
        (self.retries, self.reclaims, self.signals) = (0, 0, 0);
        self.settle();
        let generation = self.generation;
        Ok(self.remember_told(|ending| ending.generation = generation))
    }

    /// Generations whose journals are to be removed.
    pub fn dropped_generations(&self) -> &[u32] {
        self.journal.as_ref().map(|notes| notes.dropped.as_slice()).unwrap_or_default()
    }

    /// The journal of a dropped generation is gone.
    pub fn generation_removed(&mut self, generation: u32, now: i64) {
        self.mark_updated(now);
        if let Some(notes) = self.journal.as_mut() {
            notes.dropped.retain(|dropped| *dropped != generation);
            notes.bases.retain(|base| base.generation != generation);
        }
        self.tidy_notes();
    }

    /// The open question about this entry; without an entry, the only open question.
    pub fn open_question(&self, step: Option<&StepIdentity>) -> Result<&Wait> {
        if self.state.lifecycle_phase != LifecyclePhase::Suspended {
            return Err(Error::of(Code::ExecutionNotSuspended).with("public_state", self.public_state()));
        }
        let asked = |wait: &&Wait| wait.question.is_some();
        match step {
            Some(step) => {
                let meant = |wait: &&Wait| StepRef::from(step) == StepRef::from(&wait.identity());
                let found = self.waits.iter().filter(asked).find(meant);
                found.ok_or_else(|| Error::of(Code::QuestionNotOpen).with("step", step))
            }
            None => {
                let mut questions = self.waits.iter().filter(asked);
                match (questions.next(), questions.next()) {
                    (Some(only), None) => Ok(only),
                    (None, _) => Err(Error::of(Code::QuestionNotOpen)),
                    _ => Err(Error::invalid("step", "must be given where several questions are open")),
                }
            }
        }
    }

    /// A question was answered: the function may run again. The entries recorded from `dropped_from` on are dropped.
    pub fn answer_question(
        &mut self,
        step: &StepIdentity,
        dropped_from: Option<u64>,
        now: i64,
        effects: &mut Effects,
    ) -> Result<()> {
        if dropped_from.is_some() {
            self.check_generations(dropped_from)?;
            self.begin_generation(dropped_from, limits::GENERATIONS_KEPT);
        }
        self.wake(ResumedBy::Decision, now, effects);
        if let Some(notes) = self.journal.as_mut() {
            let step = StepRef::from(step);
            notes.late_reports.retain(|report| report.step != step);
        }
        self.tidy_notes();
        Ok(())
    }

    /// Keeps the report of a holder about a step after its lease was lost; returns whether it was new. The fence keeps
    /// the report out of the journal, but a person who is asked whether the step happened sees it.
    pub fn keep_late_report(&mut self, fence: &LeaseFence, entry: &StepEntry, now: i64) -> Result<bool> {
        let lost = self.check_fence(fence).is_err() && self.knows_fence(fence);
        if !lost || !entry.state.is_ended() || self.is_terminal() {
            return Ok(false);
        }
        let (record, _) = entry.record(fence)?;
        let StepRecord { name, key, occurrence, state, result, category, message, lease, .. } = record;
        let step = StepRef { name, key, occurrence, ..Default::default() };
        let reports = self.journal.as_ref().map(|notes| notes.late_reports.as_slice()).unwrap_or_default();
        if reports.iter().any(|report| report.step == step && report.lease == lease) {
            return Ok(false);
        }
        let at = self.mark_updated(now);
        let result_size = result.as_ref().map_or(0, |payload| payload.size);
        let result = result.filter(|payload| !payload.external);
        let report =
            LateReport { step, state, result, result_size, category, message, lease, at, ..Default::default() };
        let reports = &mut self.notes().late_reports;
        reports.push(report);
        let surplus = reports.len().saturating_sub(limits::LATE_REPORTS_KEPT);
        reports.drain(..surplus);
        Ok(true)
    }

    /// The reports of late holders about an entry.
    pub fn late_reports(&self, step: &StepIdentity) -> impl Iterator<Item = &LateReport> {
        let step = StepRef::from(step);
        let reports = self.journal.as_ref().map(|notes| notes.late_reports.as_slice()).unwrap_or_default();
        reports.iter().filter(move |report| report.step == step)
    }
}

#[cfg(test)]
mod tests;
