//! The record of an instant, and the link from a run to its schedule.

use uuid::Uuid;

use super::Overlap;
use crate::error::Code;
use crate::id::{CommandId, ExecutionId, FlowId, Mint, ScheduleId};
use crate::partition::digest16;
use crate::state::PublicState;
use crate::{document, vocabulary};

vocabulary! {
    /// Why a run is made.
    #[derive(Default)]
    pub enum OriginKind {
        /// Its instant came.
        #[default]
        Regular "regular",
        /// A caller triggered it.
        Trigger "trigger",
        /// Its instant lies in a stretch that a caller wanted to run once more.
        Backfill "backfill",
    }
}

document! {
    /// Why a run is made; part of its identity.
    pub struct Origin {
        /// The reason for the run.
        "k" kind: OriginKind,
        /// By which trigger or backfill.
        "i" id: Option<CommandId>,
    }
}

impl Origin {
    /// Its instant came.
    pub fn regular() -> Self {
        Self::default()
    }

    /// A trigger or a backfill.
    pub fn of(kind: OriginKind, id: CommandId) -> Self {
        Self { kind, id: Some(id), ..Default::default() }
    }

    /// The id of a run: the same for the same schedule, instant and origin, ordered by the instant.
    pub fn run_id(&self, schedule: &ScheduleId, scheduled_for: i64) -> Uuid {
        let mut random = [0; 10];
        random.copy_from_slice(&self.digest(schedule, scheduled_for)[..10]);
        Mint { now_ms: scheduled_for, random }.uuid()
    }

    /// A number from 0 to `most_ms` that follows from the same.
    pub(super) fn jitter(&self, schedule: &ScheduleId, scheduled_for: i64, most_ms: i64) -> i64 {
        let digest = self.digest(schedule, scheduled_for);
        let number = digest[10..].iter().fold(0, |number, byte| (number << 8) | i64::from(*byte));
        number % most_ms.saturating_add(1).max(1)
    }

    fn digest(&self, schedule: &ScheduleId, scheduled_for: i64) -> [u8; 16] {
        let id = self.id.unwrap_or_default();
        let origin = [self.kind.as_str().as_bytes(), id.as_bytes()];
        digest16(&[b"schedule_run", schedule.as_bytes(), &scheduled_for.to_be_bytes(), origin[0], origin[1]])
    }
}

/// An instant that is to be decided.
#[derive(Debug, Clone, PartialEq)]
pub struct DueRun {
    /// The instant.
    pub scheduled_for: i64,
    /// Why it runs.
    pub origin: Origin,
    /// What happens while the latest run has not ended.
    pub overlap: Overlap,
}

vocabulary! {
    /// The outcome of an instant.
    #[derive(Default)]
    pub enum RunOutcome {
        /// An execution or a flow was created.
        #[default]
        Started "started",
        /// The latest run had not ended.
        Skipped "skipped",
        /// It starts when the latest run has ended.
        Buffered "buffered",
        /// Creating it was refused.
        Refused "refused",
        /// The engine did not see to it in time, nor to those after it up to the next run.
        Missed "missed",
    }
}

document! {
    /// The record of an instant.
    pub struct RunRecord {
        /// The instant.
        "f" scheduled_for: i64,
        /// Why it runs.
        "o" origin: Origin,
        /// The outcome of the instant.
        "s" outcome: RunOutcome,
        /// When that was decided.
        "a" at: i64,
        /// The execution that was created.
        "x" execution: Option<ExecutionId>,
        /// The flow that was created.
        "w" flow: Option<FlowId>,
        /// Why it was refused.
        "c" refused: String,
    }
}

/// The thing that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// An execution.
    Execution(ExecutionId),
    /// A flow.
    Flow(FlowId),
}

impl RunRecord {
    /// The record of a run that was not created.
    pub fn of(run: &DueRun, outcome: RunOutcome, at: i64) -> Self {
        Self { origin: run.origin.clone(), ..Self::passed(run.scheduled_for, outcome, at) }
    }

    /// The record of a regular instant.
    pub fn passed(scheduled_for: i64, outcome: RunOutcome, at: i64) -> Self {
        Self { scheduled_for, outcome, at, ..Default::default() }
    }

    /// A run that was created.
    pub fn started(run: &DueRun, started: Started, at: i64) -> Self {
        let record = Self::of(run, RunOutcome::Started, at);
        match started {
            Started::Execution(id) => Self { execution: Some(id), ..record },
            Started::Flow(id) => Self { flow: Some(id), ..record },
        }
    }

    /// A run whose creation was refused.
    pub fn refused(run: &DueRun, code: Code, at: i64) -> Self {
        Self { refused: code.as_str().to_owned(), ..Self::of(run, RunOutcome::Refused, at) }
    }
}

/// How a run ended, as far as its schedule is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// It did what it was to do.
    Succeeded,
    /// It failed or expired.
    Failed,
    /// It was cancelled or skipped, which says nothing about the next one.
    Other,
}

impl RunEnd {
    /// The end of an execution.
    pub fn of_execution(state: PublicState) -> Self {
        match state {
            PublicState::Completed => RunEnd::Succeeded,
            PublicState::Failed | PublicState::Expired => RunEnd::Failed,
            _ => RunEnd::Other,
        }
    }
}

document! {
    /// The schedule that made an execution or a flow, and the instant it stands for.
    pub struct ScheduledRun {
        /// The schedule.
        "i" schedule: ScheduleId,
        /// Its name.
        "n" name: String,
        /// The instant that it was made for.
        "f" scheduled_for: i64,
        /// Counts the runs of the schedule.
        "q" number: i64,
        /// Its end is still to be told to the schedule.
        "o" owes_end: bool,
    }
}
