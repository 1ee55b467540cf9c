//! Lists events after a cursor, waiting for the first of them. At least once: a repeat has the same id.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::event::EventKind;
use crate::id::FlowId;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::view::EventView;
use crate::text;

operation! {
    /// Lists events after a cursor, waiting for the first of them. At least once: a repeat has the same id.
    ListEvents "list_events" Get "/v1/events" Reader validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListEventsArgs")]
pub struct Args {
    /// Only in this namespace; all the caller may see when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only of these kinds; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<EventKind>,
    /// Only in this flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Where the last answer ended; the oldest events there are when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// How long to wait for the first; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListEventsOutcome")]
pub struct Outcome {
    /// The events, in order within each partition.
    pub items: Vec<EventView>,
    /// The log no longer reaches back to the cursor: events are missing before the first.
    pub gap: bool,
    /// Where to go on.
    pub next_cursor: String,
}

impl Args {
    /// Refuses bad filters, pages that are too large and waits that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::tag_filter(self.tag.as_deref())?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.wait_ms.map_or(Ok(()), |wait_ms| text::within("wait_ms", wait_ms, 0..=limits::WAIT_MAX_MS))?;
        parts::page(self.limit)
    }
}
