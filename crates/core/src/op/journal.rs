//! The journal of a function: recording steps, reading them, and waiting for several things at once.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::execution::Question;
use crate::id::{ExecutionId, WaitpointId};
use crate::journal::{NewEntries, StepEntry, StepIdentity, StepKind, StepView};
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts::{self, Secret};
use crate::state::PublicState;
use crate::suspension::SuspendReason;
use crate::{limits, text};

operation! {
    /// Appends entries to the journal of the execution. A repeat with the same numbers is the same entries.
    RecordSteps(RecordStepsArgs) -> RecordStepsOutcome,
    "record_steps" Post "/v1/executions/{execution_id}/steps" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// Entries for the journal, numbered by the lease holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordStepsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The number of the first entry; the others follow.
    pub first_number: u64,
    /// The entries, 1 to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
}

/// Where the journal is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordStepsOutcome {
    /// The number of the last entry that was recorded.
    pub last_number: u64,
    /// The number the next entry gets.
    pub next_number: u64,
    /// One of the entries was taken for a loop, as the policy `no_progress` says: the lease is released, and the execution
    /// waits for a person or has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loop_detected: bool,
}

impl RecordStepsArgs {
    /// Refuses no entries, too many, and entries that are malformed or too large.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("entries", self.entries.len(), limits::STEPS_PER_RECORD_MAX)?;
        NewEntries::of(Some(self.first_number), &self.entries).map(drop)
    }
}

operation! {
    /// Pages the journal of an execution, oldest record first. An entry may have several records; the last one holds.
    ListSteps(ListStepsArgs) -> ListStepsOutcome,
    "list_steps" Get "/v1/executions/{execution_id}/steps" Reader filtered validated
}

/// Which part of which journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListStepsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The generation; the present one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Only records behind this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How many, 1 to 1,000; 100 when absent. A page also ends when its results have 4 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListStepsOutcome {
    /// Which generation it is.
    pub generation: u32,
    /// The records, oldest first, with their results.
    pub items: Vec<StepView>,
    /// The number the next record will get.
    pub next_number: u64,
    /// Pass it as `after` for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

impl ListStepsArgs {
    /// Refuses a page that is empty or too large, and a number that no entry can have.
    pub fn validate(&self) -> Result<()> {
        let most = limits::SCORE_MAX.unsigned_abs();
        self.after.map_or(Ok(()), |after| text::within("after", after, 0..=most))?;
        parts::page(self.limit)
    }
}

operation! {
    /// Records entries and releases the lease until the first of several waits is over: an instant, a signal, a child's
    /// end or the answer to a question. The commit that ends a wait also ends its journal entry.
    Park(ParkArgs) -> ParkOutcome,
    "park" Post "/v1/executions/{execution_id}/park" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `park`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ParkArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the next journal entry.
    pub first_number: u64,
    /// Sleeps: each ends at its instant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sleeps: Vec<SleepWait>,
    /// Signals: each ends when its waitpoint gets one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waitpoints: Vec<SignalWait>,
    /// Children: each ends with its child.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildWait>,
    /// Questions about entries of the journal: each ends with a person's answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<StepQuestion>,
}
crate::newer::open_struct!(ParkArgs);

/// A wait for an instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "ParkSleep"))]
pub struct SleepWait {
    /// The journal entry that the wait ends.
    pub step: StepIdentity,
    /// The instant, as an earlier answer said it; this or `sleep_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The time from now; the engine computes the instant once and records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_ms: Option<i64>,
    /// The provider whose turn is waited for; `explain` shows its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}
crate::newer::open_struct!(SleepWait);

impl SleepWait {
    fn validate(&self) -> Result<()> {
        parts::object("step", self.step.validate())?;
        parts::optional(self.provider.as_deref(), "provider", text::name)?;
        match (self.until, self.sleep_ms) {
            (Some(until), None) => text::instant("until", until),
            (None, Some(sleep_ms)) => text::duration_ms("sleep_ms", sleep_ms),
            _ => Err(Error::invalid("until", "or sleep_ms must be given, not both")),
        }
    }
}

/// A wait for a signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "ParkSignal"))]
pub struct SignalWait {
    /// The journal entry that the wait ends. The waitpoint's id derives from it.
    pub step: StepIdentity,
    /// When the wait gives up, as an earlier answer said it; this or `timeout_ms`, or neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<i64>,
    /// How long it may take from now; the engine computes the instant once and records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
}
crate::newer::open_struct!(SignalWait);

impl SignalWait {
    fn validate(&self) -> Result<()> {
        parts::object("step", self.step.validate())?;
        match (self.timeout_at, self.timeout_ms) {
            (Some(_), Some(_)) => Err(Error::invalid("timeout_at", "and timeout_ms exclude each other")),
            (Some(at), None) => text::instant("timeout_at", at),
            (None, timeout_ms) => parts::optional_number(timeout_ms, "timeout_ms", text::duration_ms),
        }
    }
}

/// A wait for a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "ParkChild"))]
pub struct ChildWait {
    /// The journal entry that the wait ends.
    pub step: StepIdentity,
    /// The child, which this execution spawned.
    pub execution_id: ExecutionId,
}
crate::newer::open_struct!(ChildWait);

/// A question about an entry of the journal, which `decide_step` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StepQuestion {
    /// The entry.
    pub step: StepIdentity,
    /// `in_doubt`: it is not known whether the step happened. `journal_mismatch`: the program is not the one that
    /// recorded it.
    pub reason: SuspendReason,
    /// The reason in words, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The kind that the program takes the entry for now; `step` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<StepKind>,
    /// The digest of its input now. An answer that lets the entry stand records it, so that the question is not asked
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
}
crate::newer::open_struct!(StepQuestion);

impl StepQuestion {
    /// The question as the execution keeps it.
    pub fn question(&self) -> Question {
        Question {
            reason: self.reason,
            detail: self.detail.clone().unwrap_or_default(),
            kind: self.kind.unwrap_or_default(),
            input_hash: self.input_hash.clone().unwrap_or_default(),
            ..Default::default()
        }
    }

    fn validate(&self) -> Result<()> {
        parts::object("step", self.step.validate())?;
        if !matches!(self.reason, SuspendReason::InDoubt | SuspendReason::JournalMismatch) {
            return Err(Error::invalid("reason", "must be in_doubt or journal_mismatch"));
        }
        parts::optional(self.detail.as_deref(), "detail", text::text)?;
        crate::journal::input_hash(self.input_hash.as_deref())
    }
}

/// The answer to `park`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum ParkOutcome {
    /// The lease is released.
    Parked {
        /// The state people see meanwhile.
        public_state: PublicState,
        /// When the first wait ends by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wake_at: Option<i64>,
        /// Where the signals arrive.
        waitpoints: Vec<ParkedWaitpoint>,
    },
    /// Something that is waited for has happened already: the lease is kept, and the function goes on with these
    /// entries.
    AlreadySatisfied {
        /// The entries that the engine recorded: those that have ended, and those whose instants it has fixed.
        entries: Vec<StepView>,
        /// The number the next entry gets.
        next_number: u64,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ParkOutcome);

/// Where a signal for a parked execution arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ParkedWaitpoint {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The journal entry it is for.
    pub step: StepIdentity,
    /// Its token: the right to signal it.
    pub token: Secret,
}

impl ParkArgs {
    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(Some(self.first_number), &self.entries)
    }

    /// Refuses nothing to wait for, too much, and instants out of range.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        let waits = self.sleeps.len() + self.waitpoints.len() + self.children.len() + self.questions.len();
        if waits == 0 {
            return Err(Error::invalid("sleeps", "waitpoints, children or questions must say what is waited for"));
        }
        parts::at_most("questions", self.questions.len(), limits::WAITPOINTS_MAX)?;
        parts::items("questions", &self.questions, StepQuestion::validate)?;
        parts::at_most("waitpoints", self.waitpoints.len(), limits::WAITPOINTS_MAX)?;
        parts::at_most("children", waits, limits::WAITS_MAX)?;
        parts::items("sleeps", &self.sleeps, SleepWait::validate)?;
        parts::items("waitpoints", &self.waitpoints, SignalWait::validate)?;
        parts::items("children", &self.children, |child| parts::object("step", child.step.validate()))?;
        self.validate_steps()
    }

    /// Refuses an entry that several waits would end: only one of them could.
    fn validate_steps(&self) -> Result<()> {
        let sleeps = self.sleeps.iter().map(|wait| ("sleeps", &wait.step));
        let waitpoints = self.waitpoints.iter().map(|wait| ("waitpoints", &wait.step));
        let children = self.children.iter().map(|wait| ("children", &wait.step));
        let questions = self.questions.iter().map(|wait| ("questions", &wait.step));
        let mut seen = BTreeSet::new();
        for (field, step) in sleeps.chain(waitpoints).chain(children).chain(questions) {
            let place = step.key.is_none().then(|| step.occurrence.unwrap_or(0));
            if !seen.insert((&step.name, &step.key, place)) {
                return Err(Error::invalid(field, format!("name the step {} twice", step.label())));
            }
        }
        Ok(())
    }
}
