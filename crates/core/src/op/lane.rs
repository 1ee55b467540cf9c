//! Lanes, and whether they admit work.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::lane::{LaneState, LaneView};
use crate::op::operation;
use crate::op::parts::{self, LaneChange, NamespacePage, Removed};
use crate::{limits, text};

operation! {
    /// Lists lanes by name.
    ListLanes(NamespacePage) -> ListLanesOutcome,
    "list_lanes" Get "/v1/lanes" Reader validated filtered namespaced
}

/// The answer to `list_lanes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListLanesOutcome {
    /// The lanes.
    pub items: Vec<LaneView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Creates a lane or sets its state.
    ConfigureLane(ConfigureLaneArgs) -> LaneView,
    "configure_lane" Put "/v1/lanes/{lane}" Operator administrative validated namespaced
}

/// The arguments of `configure_lane`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfigureLaneArgs {
    /// The lane.
    pub lane: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its state from now on; as it is, or active, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LaneState>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From now on so many milliseconds of age are worth one step of priority, so that old work of a low priority is not
    /// passed over for ever. As it is when absent; 1000000000000, the default, lets priority decide before age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aging_ms: Option<i64>,
}

impl ConfigureLaneArgs {
    /// Refuses bad names and reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        text::name("lane", &self.lane)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.reason.as_deref(), "reason", text::text)?;
        let bounds = 1..=limits::AGING_DEFAULT_MS;
        self.aging_ms.map_or(Ok(()), |aging_ms| text::within("aging_ms", aging_ms, bounds))
    }
}

operation! {
    /// Pauses a lane: running work goes on, nothing new is claimed.
    PauseLane(LaneChange) -> LaneView,
    "pause_lane" Post "/v1/lanes/{lane}/pause" Operator administrative validated namespaced keyed
}

operation! {
    /// Makes a lane active again.
    ResumeLane(LaneChange) -> LaneView,
    "resume_lane" Post "/v1/lanes/{lane}/resume" Operator administrative validated namespaced keyed
}

operation! {
    /// Drains a lane: what is there is worked off, nothing new is taken.
    DrainLane(LaneChange) -> LaneView,
    "drain_lane" Post "/v1/lanes/{lane}/drain" Operator administrative validated namespaced keyed
}

operation! {
    /// Disables a lane: nothing is claimed, submissions are refused.
    DisableLane(LaneChange) -> LaneView,
    "disable_lane" Post "/v1/lanes/{lane}/disable" Operator administrative validated namespaced keyed
}

operation! {
    /// Forgets a lane, with its state and the name of its last changer. While executions that have not ended are in it,
    /// that takes `force`. A lane that is used again is active.
    DeleteLane(DeleteLaneArgs) -> Removed,
    "delete_lane" Delete "/v1/lanes/{lane}" Operator administrative validated namespaced keyed
}

/// A lane that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteLaneArgs {
    /// The lane.
    pub lane: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Also while executions that have not ended are in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl DeleteLaneArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("lane", &self.lane)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
