//! Bulk jobs: one change, made to everything that a filter matches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bulk::{BulkAction, BulkChange, BulkCounts, BulkJob, BulkState};
use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::id::{BulkId, CommandId, ExecutionId, FlowId};
use crate::limits;
use crate::op::parts::{self, NamespacePage, one_or_several};
use crate::op::{Created, ListExecutionsArgs, ListOrder, Minting, operation};
use crate::state::PublicState;
use crate::text::{self, Tags};

operation! {
    /// Begins a bulk job: one change to everything that the filter matches and that last changed before the job began. It
    /// goes on in the background, survives the crash of any server, and changes each execution once.
    CreateBulk(CreateBulkArgs) -> BulkView,
    "create_bulk" Post "/v1/bulk" Operator administrative validated namespaced identified("command_id") creates
}

/// The arguments of `create_bulk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateBulkArgs {
    /// The namespace of the executions; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which executions; an empty filter matches all of the namespace.
    pub filter: BulkFilter,
    /// The action on each of them, as the operation of that name does it to one.
    pub action: BulkAction,
    /// Why; for `cancel` and `hold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The priority that they get, for `set_priority`; clamped to 0..=9000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The tags that they get in the place of theirs, for `set_tags`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// Nothing is changed: the counts say what would become of everything. False when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
    /// At most so many are changed, those that refuse it included; 1,000,000 when absent and at the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// At most so many are changed in a second; as many as the store takes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// The same id means the same job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl CreateBulkArgs {
    /// The change that is made.
    pub fn change(&self) -> BulkChange {
        BulkChange {
            action: self.action,
            reason: self.reason.clone().unwrap_or_default(),
            priority: self.priority.unwrap_or(0),
            tags: self.tags.clone().unwrap_or_default(),
            ..Default::default()
        }
    }

    /// Refuses a filter that can match nothing, and an action without what it needs or with what it does not take.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::object("filter", self.filter.validate())?;
        parts::optional(self.reason.as_deref(), "reason", text::text)?;
        if let Some(tags) = &self.tags {
            text::tags("tags", tags)?;
        }
        let takes_reason = matches!(self.action, BulkAction::Cancel | BulkAction::Hold);
        if self.reason.is_some() && !takes_reason {
            return Err(Error::invalid("reason", format!("is not taken by {}", self.action)));
        }
        for (field, given, action) in [
            ("priority", self.priority.is_some(), BulkAction::SetPriority),
            ("tags", self.tags.is_some(), BulkAction::SetTags),
        ] {
            if self.action == action && !given {
                return Err(Error::invalid(field, format!("is needed for {action}")));
            }
            if self.action != action && given {
                return Err(Error::invalid(field, format!("is not taken by {}", self.action)));
            }
        }
        if let Some(max) = self.max {
            text::within("max", max, 1..=limits::BULK_MAX)?;
        }
        if let Some(rate) = self.rate_per_second {
            text::within("rate_per_second", rate, 1..=limits::BULK_RATE_MAX)?;
        }
        Ok(())
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

/// Which executions a bulk job is about: the filters of a list. One that is given several times takes any of its values;
/// tags with different keys must all be there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct BulkFilter {
    /// Only executions in these lanes.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub lane: Vec<String>,
    /// Only executions of these kinds.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// Only executions in these states.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<PublicState>,
    /// Only executions in this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Only with these tags, each as `key=value`. Of several values of one key any will do.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub tag: Vec<String>,
    /// Only executions whose last failure was of one of these categories.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub failure_category: Vec<String>,
    /// Only runs of the schedule with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Only executions that this worker process holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Only executions that this execution spawned while it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExecutionId>,
    /// Only created at this instant or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<i64>,
    /// Only created before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_to: Option<i64>,
    /// Only ended at this instant or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_from: Option<i64>,
    /// Only ended before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_to: Option<i64>,
}
crate::newer::open_struct!(BulkFilter);

impl BulkFilter {
    /// The arguments of a list with these filters, in the order in which a job goes through it.
    pub fn as_list(&self) -> ListExecutionsArgs {
        ListExecutionsArgs {
            lane: self.lane.clone(),
            kind: self.kind.clone(),
            state: self.state.clone(),
            flow_id: self.flow_id,
            tag: self.tag.clone(),
            failure_category: self.failure_category.clone(),
            schedule: self.schedule.clone(),
            worker: self.worker.clone(),
            parent: self.parent,
            created_from: self.created_from,
            created_to: self.created_to,
            ended_from: self.ended_from,
            ended_to: self.ended_to,
            order: Some(ListOrder::Oldest),
            ..Default::default()
        }
    }

    /// Refuses what a list would refuse.
    pub fn validate(&self) -> Result<()> {
        self.as_list().validate()
    }

    /// The bytes that a job keeps of it.
    pub fn encode(&self) -> Blob {
        serde_json::to_vec(self).expect("a filter holds only types that JSON can express").into()
    }

    /// Reads what a job has kept. A newer version may have written filters that this one does not know, and going on
    /// without them would change more than was asked for.
    pub fn decode(stored: &[u8]) -> Result<Self> {
        let unreadable = |error| Error::new(Code::CorruptDocument, format!("the filter of a bulk job: {error}"));
        serde_json::from_slice(stored).map_err(unreadable)
    }
}

operation! {
    /// Lists the bulk jobs of a namespace, newest first, without their refusals.
    ListBulk(NamespacePage) -> ListBulkOutcome,
    "list_bulk" Get "/v1/bulk" Reader validated filtered namespaced
}

/// The answer to `list_bulk`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListBulkOutcome {
    /// The jobs.
    pub items: Vec<BulkView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Shows a bulk job: how far it is, and what it could not change.
    GetBulk(GetBulkArgs) -> BulkView,
    "get_bulk" Get "/v1/bulk/{bulk_id}" Reader
}

/// Which job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetBulkArgs {
    /// The job.
    pub bulk_id: BulkId,
}

operation! {
    /// Stops a bulk job: after the answer it changes nothing more. Changes that were made stay.
    CancelBulk(CancelBulkArgs) -> BulkView,
    "cancel_bulk" Post "/v1/bulk/{bulk_id}/cancel" Operator administrative
}

/// Which job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelBulkArgs {
    /// The job.
    pub bulk_id: BulkId,
}

/// A bulk job as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkView {
    /// The job.
    pub bulk_id: BulkId,
    /// The namespace of the executions.
    pub namespace: String,
    /// How far it is.
    pub state: BulkState,
    /// The action on each execution.
    pub action: BulkAction,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The priority that they get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The tags that they get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// Which executions.
    pub filter: BulkFilter,
    /// Nothing is changed, only counted.
    pub dry_run: bool,
    /// At most so many are changed.
    pub max: u64,
    /// At most so many a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u32>,
    /// The name of the caller that asked for it.
    pub created_by: String,
    /// When it began.
    pub created_at: i64,
    /// When it last made progress.
    pub updated_at: i64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// When it is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<i64>,
    /// Counts of the executions it has looked at, by what became of each.
    pub progress: BulkProgress,
    /// It has more matches than it may change.
    pub reached_max: bool,
    /// The first executions that could not be changed, 100 at the most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<BulkRefusalView>,
}

/// Counts of the executions that a job has looked at, by what became of each. `matched` is the sum of `done`,
/// `unchanged` and `refused`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkProgress {
    /// Executions that were looked at.
    pub examined: u64,
    /// Of these, those that the filter matches and that had not changed since the job began.
    pub matched: u64,
    /// Matches that were changed, or would be in a dry run.
    pub done: u64,
    /// Matches that were so before.
    pub unchanged: u64,
    /// Matches that could not be changed.
    pub refused: u64,
    /// How many were refused, for each code.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_by_code: BTreeMap<String, u64>,
    /// Executions that the filter matches and that were left alone: they had changed since the job began.
    pub changed_since: u64,
    /// Partitions that it is through with.
    pub partitions_done: u32,
    /// Partitions that it goes through.
    pub partitions: u32,
}

/// An execution that could not be changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkRefusalView {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The code with which it was refused.
    pub code: String,
}

impl BulkView {
    /// The view of a job.
    pub fn of(job: &BulkJob) -> Result<Self> {
        let change = &job.change;
        let counts = job.counts();
        let refusals = counts.refusals.iter();
        let refusals = refusals.map(|one| BulkRefusalView { execution_id: one.execution, code: one.code.clone() });
        Ok(Self {
            bulk_id: job.id,
            namespace: job.namespace.clone(),
            state: job.state,
            action: change.action,
            reason: Some(change.reason.clone()).filter(|reason| !reason.is_empty()),
            priority: (change.action == BulkAction::SetPriority).then_some(change.priority),
            tags: (change.action == BulkAction::SetTags).then(|| change.tags.clone()),
            filter: BulkFilter::decode(&job.filter)?,
            dry_run: job.dry_run,
            max: job.max,
            rate_per_second: Some(job.rate_per_second).filter(|rate| *rate != 0),
            created_by: job.created_by.clone(),
            created_at: job.created_at,
            updated_at: job.updated_at,
            ended_at: job.has_ended().then_some(job.ended_at),
            removed_at: job.has_ended().then_some(job.next_at),
            progress: BulkProgress::of(job, &counts),
            reached_max: job.reached_max,
            refusals: refusals.collect(),
        })
    }

    /// The job, which every call of this kind creates or has created.
    pub fn created(&self) -> Created {
        Created::Id(self.bulk_id.to_string())
    }
}

impl BulkProgress {
    fn of(job: &BulkJob, counts: &BulkCounts) -> Self {
        Self {
            examined: counts.examined,
            matched: counts.matched,
            done: counts.done,
            unchanged: counts.unchanged,
            refused: counts.refused_total(),
            refused_by_code: counts.refused.clone(),
            changed_since: counts.changed_since,
            partitions_done: job.partition.min(job.end_partition) - job.first_partition,
            partitions: job.end_partition - job.first_partition,
        }
    }
}
