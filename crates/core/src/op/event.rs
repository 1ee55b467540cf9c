//! The feed of events, of everything and of one execution.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::event::EventKind;
use crate::id::{ExecutionId, FlowId};
use crate::op::view::EventView;
use crate::op::{operation, parts};
use crate::{limits, text};

operation! {
    /// Lists events after a cursor, waiting for the first of them. At least once: a repeat has the same id.
    ListEvents(ListEventsArgs) -> ListEventsOutcome,
    "list_events" Get "/v1/events" Reader validated filtered namespaced waits(wait_ms) watching event_stream
}

/// The cursor of a subscriber that wants what comes, and nothing of what was.
pub const EVENTS_FROM_NOW: &str = "now";

/// The arguments of `list_events`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListEventsArgs {
    /// Only events in this namespace; in all the caller may see when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only events of these kinds; of all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<EventKind>,
    /// Only executions in this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Where the last answer ended; the oldest events there are when absent, and about the present when it is `now`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// How long to wait for the first; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
}

/// The answer to `list_events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListEventsOutcome {
    /// The events, in order within each partition.
    pub items: Vec<EventView>,
    /// The log no longer reaches back to the cursor: events are missing before the first.
    pub gap: bool,
    /// Where to go on.
    pub next_cursor: String,
}

impl ListEventsArgs {
    /// Refuses bad filters, pages that are too large and waits that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::tag_filter(self.tag.as_deref())?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.wait_ms.map_or(Ok(()), |wait_ms| text::within("wait_ms", wait_ms, 0..=limits::WAIT_MAX_MS))?;
        parts::page(self.limit)
    }
}

operation! {
    /// Lists what happened to an execution, as far as the log reaches back.
    ListExecutionEvents(ListExecutionEventsArgs) -> ListExecutionEventsOutcome,
    "list_execution_events" Get "/v1/executions/{execution_id}/events" Reader validated
}

/// The arguments of `list_execution_events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListExecutionEventsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_execution_events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListExecutionEventsOutcome {
    /// The events, oldest first.
    pub items: Vec<EventView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListExecutionEventsArgs {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
