//! Schedules: what is created again and again, and when.

use serde::{Deserialize, Serialize};

use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::id::{CommandId, ExecutionId, FlowId, ScheduleId};
use crate::limits;
use crate::op::parts::{self, NamespacePage};
use crate::op::view::{ScheduleSummary, ScheduleView};
use crate::op::{Created, Minting, create_execution, create_flow, operation};
use crate::schedule::{CatchUp, Overlap, RunOutcome, ScheduleDefinition, ScheduleSpec};
use crate::text;

operation! {
    /// Creates a schedule. The same definition again is the same schedule, another one a conflict.
    CreateSchedule(CreateScheduleArgs) -> CreateScheduleOutcome,
    "create_schedule" Post "/v1/schedules" Operator administrative validated namespaced creates body(parts::body_for(limits::SCHEDULE_TEMPLATE_MAX_BYTES))
}

/// The arguments of `create_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateScheduleArgs {
    /// Its name, unique in its namespace; it decides where the schedule and its runs live.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// When it runs.
    pub spec: ScheduleSpec,
    /// Not before this instant; one in the past lets `catch_up` decide about the instants since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<i64>,
    /// Not after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<i64>,
    /// Each run starts up to so much later, and never after the next instant; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<i64>,
    /// What happens while the latest run has not ended; `allow` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// What becomes of instants that were not seen to within a minute; `none` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    /// After so many failed runs in a row it pauses; never when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after_failures: Option<u32>,
    /// The template of what it creates.
    pub template: ScheduleTemplate,
}

/// The answer to `create_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateScheduleOutcome {
    /// It was created.
    Created {
        /// The schedule.
        schedule_id: ScheduleId,
        /// Its next instant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_at: Option<i64>,
    },
    /// It existed before, with the same definition.
    AlreadyExists {
        /// The schedule.
        schedule_id: ScheduleId,
        /// Its next instant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_at: Option<i64>,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateScheduleOutcome);

impl CreateScheduleOutcome {
    /// The schedule, if this call created it.
    pub fn created(&self) -> Created {
        if matches!(self, Self::Created { .. }) { Created::AsNamed } else { Created::Nothing }
    }
}

impl CreateScheduleArgs {
    /// When it will run.
    pub fn definition(&self) -> ScheduleDefinition {
        ScheduleDefinition {
            spec: self.spec.clone(),
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            jitter_ms: self.jitter_ms.unwrap_or(0),
            overlap: self.overlap.unwrap_or_default(),
            catch_up: self.catch_up.clone().unwrap_or_default(),
            pause_after_failures: self.pause_after_failures.unwrap_or(0),
            ..Default::default()
        }
    }

    /// Refuses bad names, specs that cannot be read, and templates that no run could be made from.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.definition().validate()?;
        self.template.validate()
    }
}

operation! {
    /// Shows a schedule with its next instants and what became of the last ones.
    GetSchedule(GetScheduleArgs) -> ScheduleView,
    "get_schedule" Get "/v1/schedules/{name}" Reader validated namespaced
}

/// The arguments of `get_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetScheduleArgs {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl GetScheduleArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }
}

operation! {
    /// Lists schedules by name.
    ListSchedules(NamespacePage) -> ListSchedulesOutcome,
    "list_schedules" Get "/v1/schedules" Reader validated filtered namespaced
}

/// The answer to `list_schedules`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListSchedulesOutcome {
    /// The schedules.
    pub items: Vec<ScheduleSummary>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Replaces the definition and the template of a schedule. It goes on from now by the new one.
    UpdateSchedule(UpdateScheduleArgs) -> ScheduleSummary,
    "update_schedule" Put "/v1/schedules/{name}" Operator administrative validated namespaced keyed body(parts::body_for(limits::SCHEDULE_TEMPLATE_MAX_BYTES))
}

/// The arguments of `update_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateScheduleArgs {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only if it still has this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<u64>,
    /// When it runs.
    pub spec: ScheduleSpec,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<i64>,
    /// Not after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<i64>,
    /// Each run starts up to so much later, and never after the next instant; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<i64>,
    /// What happens while the latest run has not ended; `allow` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// What becomes of instants that were not seen to within a minute; `none` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    /// After so many failed runs in a row it pauses; never when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after_failures: Option<u32>,
    /// The template of what it creates.
    pub template: ScheduleTemplate,
}

impl UpdateScheduleArgs {
    /// The arguments that create such a schedule.
    pub fn as_new(&self) -> CreateScheduleArgs {
        CreateScheduleArgs {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            spec: self.spec.clone(),
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            jitter_ms: self.jitter_ms,
            overlap: self.overlap,
            catch_up: self.catch_up.clone(),
            pause_after_failures: self.pause_after_failures,
            template: self.template.clone(),
        }
    }

    /// Refuses what would be refused of a new schedule.
    pub fn validate(&self) -> Result<()> {
        self.as_new().validate()
    }
}

operation! {
    /// Pauses a schedule: instants that pass meanwhile are passed over, running work goes on.
    PauseSchedule(ScheduleNote) -> ScheduleSummary,
    "pause_schedule" Post "/v1/schedules/{name}/pause" Operator administrative validated namespaced keyed
}

operation! {
    /// Lets a paused schedule go on from now.
    ResumeSchedule(ScheduleNote) -> ScheduleSummary,
    "resume_schedule" Post "/v1/schedules/{name}/resume" Operator administrative validated namespaced keyed
}

/// The arguments of `resume_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleNote {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Why; kept and shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl ScheduleNote {
    /// Refuses bad names and notes that are too long.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())?;
        parts::optional(self.note.as_deref(), "note", text::text)
    }
}

operation! {
    /// Runs a schedule once, now, whether it is paused or not.
    TriggerSchedule(TriggerScheduleArgs) -> TriggerScheduleOutcome,
    "trigger_schedule" Post "/v1/schedules/{name}/trigger" Operator administrative validated namespaced identified("command_id")
}

/// The arguments of `trigger_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TriggerScheduleArgs {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What happens while the latest run has not ended; `allow` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// The same id means the same trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl TriggerScheduleArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

/// The answer to `trigger_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerScheduleOutcome {
    /// The outcome of the instant.
    pub outcome: RunOutcome,
    /// The instant that the run is for.
    pub scheduled_for: i64,
    /// The execution that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// The flow that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// The code with which its creation was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

operation! {
    /// Runs the instants of a stretch once more, from the first up to and with the last of them.
    BackfillSchedule(BackfillScheduleArgs) -> BackfillScheduleOutcome,
    "backfill_schedule" Post "/v1/schedules/{name}/backfill" Operator administrative validated namespaced identified("command_id")
}

/// The arguments of `backfill_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BackfillScheduleArgs {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The first instant that counts.
    pub from: i64,
    /// The last instant that counts.
    pub to: i64,
    /// What happens while the latest run has not ended; `allow` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// The same id means the same backfill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl BackfillScheduleArgs {
    /// Refuses bad names, and a stretch that ends before it begins.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())?;
        text::instant("from", self.from)?;
        text::instant("to", self.to)?;
        if self.to < self.from {
            return Err(Error::invalid("to", "must not be before from"));
        }
        Ok(())
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

/// The answer to `backfill_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackfillScheduleOutcome {
    /// The backfill; part of the ids of its runs.
    pub backfill_id: CommandId,
    /// How many instants lie in the stretch.
    pub instants: usize,
}

operation! {
    /// Removes a schedule. Its runs stay and go on.
    DeleteSchedule(DeleteScheduleArgs) -> DeleteScheduleOutcome,
    "delete_schedule" Delete "/v1/schedules/{name}" Operator administrative validated namespaced keyed
}

/// The arguments of `delete_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteScheduleArgs {
    /// The schedule.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl DeleteScheduleArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }
}

/// The answer to `delete_schedule`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteScheduleOutcome {
    /// The schedule that is gone.
    pub schedule_id: ScheduleId,
}

fn named(name: &str, namespace: Option<&str>) -> Result<()> {
    text::name("name", name)?;
    parts::optional(namespace, "namespace", text::name)
}

/// The template of what a schedule creates at each of its instants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleTemplate {
    /// An execution.
    Execution(Box<create_execution::Args>),
    /// A flow with its whole graph.
    Flow(Box<create_flow::Args>),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ScheduleTemplate);

impl ScheduleTemplate {
    /// Refuses what no run could be made from: every run has an id and a time of its own, and the schedule's namespace.
    pub fn validate(&self) -> Result<()> {
        match self {
            ScheduleTemplate::Execution(request) => {
                check_template("template.execution", request)?;
                request.validate().map_err(|error| error.inside("template.execution"))
            }
            ScheduleTemplate::Flow(request) => check_flow_template("template.flow", request),
            ScheduleTemplate::Unknown(variant) => Err(variant.refused("template")),
        }
    }

    /// How many executions one run has.
    pub fn executions(&self) -> usize {
        match self {
            ScheduleTemplate::Execution(_) => 1,
            ScheduleTemplate::Flow(request) => request.nodes.len(),
            ScheduleTemplate::Unknown(_) => 0,
        }
    }

    /// The lanes of its executions.
    pub fn lanes(&self) -> impl Iterator<Item = &str> {
        let requests: Vec<&create_execution::Args> = match self {
            ScheduleTemplate::Execution(request) => vec![request],
            ScheduleTemplate::Flow(request) => request.nodes.iter().map(|node| &node.request).collect(),
            ScheduleTemplate::Unknown(_) => Vec::new(),
        };
        requests.into_iter().map(|request| request.lane.as_deref().unwrap_or(parts::DEFAULT_LANE))
    }

    /// The bytes that a schedule keeps of it.
    pub fn encode(&self) -> Result<Blob> {
        let bytes = serde_json::to_vec(self).expect("requests hold only types that JSON can express");
        if bytes.len() > limits::SCHEDULE_TEMPLATE_MAX_BYTES {
            return Err(Error::too_large("template", bytes.len(), limits::SCHEDULE_TEMPLATE_MAX_BYTES));
        }
        Ok(bytes.into())
    }

    /// Reads the bytes that a schedule keeps.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| Error::new(Code::CorruptDocument, format!("the template of a schedule: {error}")))
    }
}

/// Refuses the template of an execution that says what only one execution can have.
pub(crate) fn check_template(field: &str, request: &create_execution::Args) -> Result<()> {
    check_execution(field, request)?;
    let decided = request.flow_id.is_some()
        || request.node.is_some()
        || request.parent.is_some()
        || request.join.is_some()
        || !request.dependencies.is_empty();
    if decided {
        let detail = "must not have flow_id, node, parent, join or dependencies: each run stands alone";
        return Err(Error::invalid(field, detail));
    }
    Ok(())
}

/// Refuses the template of a flow that says what only one flow can have, or that nothing could be made from.
pub(crate) fn check_flow_template(field: &str, request: &create_flow::Args) -> Result<()> {
    if request.flow_id.is_some() || request.idempotency_key.is_some() || request.namespace.is_some() {
        let detail = "must not have flow_id, idempotency_key or namespace: each run has its own";
        return Err(Error::invalid(field, detail));
    }
    if request.nodes.is_empty() {
        return Err(Error::invalid(&format!("{field}.nodes"), "must not be empty: the flow would never end"));
    }
    for (place, node) in request.nodes.iter().enumerate() {
        check_execution(&format!("{field}.nodes[{place}].request"), &node.request)
            .map_err(|error| error.with("node", &node.name))?;
    }
    let fits = request.validate().and_then(|()| request.graph().map(drop));
    fits.map_err(|error| error.inside(field))
}

fn check_execution(field: &str, request: &create_execution::Args) -> Result<()> {
    let decided = request.execution_id.is_some()
        || request.namespace.is_some()
        || request.idempotency_key.is_some()
        || request.dedup_window_ms.is_some()
        || request.delay_until.is_some()
        || request.deadline_at.is_some()
        || request.single_key().is_some();
    if decided {
        let detail = "must not have execution_id, namespace, idempotency_key, dedup_window_ms, delay_until, deadline_at, \
                      singleton or debounce: each run has its own";
        return Err(Error::invalid(field, detail));
    }
    Ok(())
}
