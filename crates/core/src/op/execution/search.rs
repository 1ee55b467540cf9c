//! Finding executions: lists with filters, counts, and the namespaces there are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{ExecutionId, FlowId};
use crate::op::operation;
use crate::op::parts::{self, one_or_several};
use crate::op::view::ExecutionSummary;
use crate::state::PublicState;
use crate::{text, vocabulary};

operation! {
    /// Lists executions, newest first unless told otherwise. A filter that is given several times takes any of its values;
    /// tags with different keys must all be there. One call looks at 5,000 executions at the most: when few of them
    /// match, the page is short and has a cursor.
    ListExecutions(ListExecutionsArgs) -> ListExecutionsOutcome,
    "list_executions" Get "/v1/executions" Reader validated filtered namespaced
}

vocabulary! {
    /// In which order executions are listed.
    #[derive(Default)]
    pub closed enum ListOrder {
        /// The latest creation first.
        #[default]
        Newest "newest",
        /// The earliest creation first.
        Oldest "oldest",
    }
}

/// The arguments of `list_executions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListExecutionsArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only executions in these lanes.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub lane: Vec<String>,
    /// Only executions of these kinds.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// Only executions in these states.
    #[serde(default, deserialize_with = "one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<PublicState>,
    /// Only executions that have ended, or only executions that have not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<bool>,
    /// The opposite of `terminal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
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
    /// Newest or oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<ListOrder>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_executions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListExecutionsOutcome {
    /// The executions.
    pub items: Vec<ExecutionSummary>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListExecutionsArgs {
    /// The values that will do, for each key of a tag.
    pub fn tags(&self) -> Result<BTreeMap<&str, Vec<&str>>> {
        let mut tags: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for tag in &self.tag {
            if let Some((key, value)) = parts::tag_filter(Some(tag))? {
                tags.entry(key).or_default().push(value);
            }
        }
        Ok(tags)
    }

    /// The states that all filters allow.
    pub fn states(&self) -> Vec<PublicState> {
        let asked = if self.state.is_empty() { PublicState::ALL } else { &self.state };
        let agrees = |state: &PublicState| {
            self.terminal.is_none_or(|terminal| terminal == state.is_terminal())
                && self.open.is_none_or(|open| open != state.is_terminal())
        };
        let mut states: Vec<PublicState> = asked.iter().copied().filter(agrees).collect();
        states.sort_unstable();
        states.dedup();
        states
    }

    /// Refuses filters that can match nothing.
    pub fn validate(&self) -> Result<()> {
        self.tags()?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.worker.as_deref(), "worker", text::name)?;
        parts::optional(self.schedule.as_deref(), "schedule", text::name)?;
        parts::each("lane", &self.lane, text::name)?;
        parts::each("kind", &self.kind, text::kind)?;
        parts::each("tag", &self.tag, |_, _| Ok(()))?;
        parts::each("failure_category", &self.failure_category, text::label)?;
        for (field, instant) in [
            ("created_from", self.created_from),
            ("created_to", self.created_to),
            ("ended_from", self.ended_from),
            ("ended_to", self.ended_to),
        ] {
            parts::optional_number(instant, field, text::instant)?;
        }
        parts::page(self.limit)
    }
}

operation! {
    /// Counts the executions of a namespace by state, and those that may be claimed by lane and kind. All callers
    /// within two seconds share one reading. Where the store would have to walk through the entries, counting stops at
    /// 10,000 and `more` says so.
    GetCounts(GetCountsArgs) -> GetCountsOutcome,
    "get_counts" Get "/v1/counts" Reader validated filtered namespaced
}

/// The arguments of `get_counts`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetCountsArgs {
    /// The namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The answer to `get_counts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetCountsOutcome {
    /// The namespace.
    pub namespace: String,
    /// How many executions are in each state; every state is named.
    pub states: BTreeMap<PublicState, Count>,
    /// How many may be claimed in each lane, by kind; lanes in which nothing waits are left out.
    pub waiting: Vec<WaitingCount>,
    /// When they were counted, in the store's time.
    pub counted_at: i64,
}

/// A number that may be a lower bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Count {
    /// How many there are, or how far they were counted.
    pub value: u64,
    /// There are more than that.
    pub more: bool,
}

/// The number of executions of one kind that wait in one lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitingCount {
    /// The lane.
    pub lane: String,
    /// The kind; absent where queues hold several kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How many.
    #[serde(flatten)]
    pub count: Count,
    /// When the next in line was created; where there are several queues, the earliest of theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_created_at: Option<i64>,
}

impl Count {
    /// A count that stopped behind a limit says so.
    pub const fn capped(counted: u64, limit: u64) -> Self {
        if counted > limit { Self { value: limit, more: true } } else { Self { value: counted, more: false } }
    }

    /// Both together.
    pub const fn plus(self, other: Self) -> Self {
        Self { value: self.value.saturating_add(other.value), more: self.more || other.more }
    }
}

impl GetCountsArgs {
    /// Refuses a bad name.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Lists by name the namespaces that the caller may see and in which there is or was configured something.
    ListNamespaces(ListNamespacesArgs) -> ListNamespacesOutcome,
    "list_namespaces" Get "/v1/namespaces" Reader validated filtered
}

/// The arguments of `list_namespaces`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListNamespacesArgs {
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_namespaces`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListNamespacesOutcome {
    /// The namespaces.
    pub items: Vec<NamespaceView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamespaceView {
    /// Its name.
    pub name: String,
}

impl ListNamespacesArgs {
    /// Refuses a page that is empty or too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
