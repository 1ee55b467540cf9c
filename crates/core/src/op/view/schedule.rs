//! Schedules.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::flow::FlowState;
use crate::id::{CommandId, ExecutionId, FlowId, ScheduleId};
use crate::limits;
use crate::op::ScheduleTemplate;
use crate::schedule::{
    CatchUp, Note, OriginKind, Overlap, RunOutcome, RunRecord, Schedule, ScheduleSpec, ScheduleState,
};
use crate::state::PublicState;

/// Everything about a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleView {
    /// Its id, which is part of the ids of its runs.
    pub schedule_id: ScheduleId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: ScheduleState,
    /// Grows with every change that people make.
    pub revision: u64,
    /// When it runs.
    pub spec: ScheduleSpec,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<i64>,
    /// Not after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<i64>,
    /// Each run starts up to so much later.
    pub jitter_ms: i64,
    /// What happens while the latest run has not ended.
    pub overlap: Overlap,
    /// What becomes of instants that were not seen to in time.
    pub catch_up: CatchUp,
    /// After so many failed runs in a row it pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after_failures: Option<u32>,
    /// The template of what it creates.
    pub template: ScheduleTemplate,
    /// The note of the last pause or resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<NoteView>,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
    /// The next instants, as they are known now; none while it is paused.
    pub next: Vec<i64>,
    /// Records of the last instants, the newest first.
    pub runs: Vec<ScheduleRunView>,
    /// How many runs it has started.
    pub run_count: i64,
    /// Failed runs in a row.
    pub failures: u32,
    /// The instant of a run that waits for the latest one to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<i64>,
    /// Stretches that are being run once more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backfills: Vec<BackfillView>,
}

/// The short form in lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleSummary {
    /// Its id.
    pub schedule_id: ScheduleId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: ScheduleState,
    /// Grows with every change that people make.
    pub revision: u64,
    /// When it runs.
    pub spec: ScheduleSpec,
    /// The next instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<i64>,
    /// The record of the last instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<ScheduleRunView>,
    /// How many runs it has started.
    pub run_count: i64,
    /// Failed runs in a row.
    pub failures: u32,
    /// The note of the last pause or resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<NoteView>,
    /// When it was created.
    pub created_at: i64,
}

/// The note of the last pause or resumption of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoteView {
    /// The words of the note.
    pub text: String,
    /// The name of the caller that said it; `schedule` where it paused by itself.
    pub by: String,
    /// When it was said.
    pub at: i64,
}

/// The record of an instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleRunView {
    /// The instant.
    pub scheduled_for: i64,
    /// Why it runs.
    pub origin: OriginKind,
    /// The outcome of the instant.
    pub outcome: RunOutcome,
    /// When that was decided.
    pub at: i64,
    /// The execution that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// The flow that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// The state of the execution now; absent where it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_state: Option<PublicState>,
    /// The state of the flow now; absent where it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_state: Option<FlowState>,
    /// The code with which its creation was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A stretch that is being run once more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackfillView {
    /// Its id.
    pub backfill_id: CommandId,
    /// Instants up to this one have been decided.
    pub done_until: i64,
    /// The last instant.
    pub to: i64,
    /// What happens while the latest run has not ended.
    pub overlap: Overlap,
}

impl ScheduleRunView {
    fn of(record: &RunRecord) -> Self {
        Self {
            scheduled_for: record.scheduled_for,
            origin: record.origin.kind,
            outcome: record.outcome,
            at: record.at,
            execution_id: record.execution,
            flow_id: record.flow,
            public_state: None,
            flow_state: None,
            refused: (!record.refused.is_empty()).then(|| record.refused.clone()),
        }
    }
}

impl ScheduleView {
    /// The view of a schedule. The engine, which can read them, adds the states of its runs.
    pub fn of(schedule: &Schedule) -> Result<Self> {
        let definition = schedule.definition.clone();
        let shown = if schedule.paused { 0 } else { limits::SCHEDULE_NEXT_SHOWN };
        Ok(Self {
            schedule_id: schedule.id,
            namespace: schedule.namespace.clone(),
            name: schedule.name.clone(),
            state: schedule.state(),
            revision: schedule.revision,
            spec: definition.spec,
            starts_at: definition.starts_at,
            ends_at: definition.ends_at,
            jitter_ms: definition.jitter_ms,
            overlap: definition.overlap,
            catch_up: definition.catch_up,
            pause_after_failures: Some(definition.pause_after_failures).filter(|most| *most != 0),
            template: ScheduleTemplate::decode(&schedule.template)?,
            note: schedule.note.as_ref().map(NoteView::from),
            created_at: schedule.created_at,
            updated_at: schedule.updated_at,
            next: schedule.instants()?.within(schedule.cursor, i64::MAX, shown),
            runs: schedule.runs.iter().rev().map(ScheduleRunView::of).collect(),
            run_count: schedule.run_count,
            failures: schedule.failures,
            buffered: schedule.buffered.as_ref().map(|buffered| buffered.scheduled_for),
            backfills: schedule
                .backfills
                .iter()
                .map(|backfill| BackfillView {
                    backfill_id: backfill.id,
                    done_until: backfill.cursor,
                    to: backfill.to,
                    overlap: backfill.overlap,
                })
                .collect(),
        })
    }
}

impl ScheduleSummary {
    /// The short form of a schedule.
    pub fn of(schedule: &Schedule) -> Self {
        Self {
            schedule_id: schedule.id,
            namespace: schedule.namespace.clone(),
            name: schedule.name.clone(),
            state: schedule.state(),
            revision: schedule.revision,
            spec: schedule.definition.spec.clone(),
            next_at: Some(schedule.next_at).filter(|at| *at != 0 && !schedule.paused),
            last_run: schedule.runs.last().map(ScheduleRunView::of),
            run_count: schedule.run_count,
            failures: schedule.failures,
            note: schedule.note.as_ref().map(NoteView::from),
            created_at: schedule.created_at,
        }
    }
}

impl From<&Note> for NoteView {
    fn from(note: &Note) -> Self {
        Self { text: note.text.clone(), by: note.by.clone(), at: note.at }
    }
}
