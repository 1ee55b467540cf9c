//! Disables a lane: nothing is claimed, submissions are refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::lane::LaneView;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Disables a lane: nothing is claimed, submissions are refused.
    DisableLane "disable_lane" Post "/v1/lanes/{lane}/disable" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DisableLaneArgs")]
pub struct Args {
    /// The lane.
    pub lane: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer.
pub type Outcome = LaneView;

impl Args {
    /// Refuses bad names and reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        text::name("lane", &self.lane)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
