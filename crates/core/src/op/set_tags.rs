//! Replaces the tags of an execution.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::op::operation;
use crate::text;
use crate::text::Tags;

operation! {
    /// Replaces the tags of an execution.
    SetTags "set_tags" Put "/v1/executions/{execution_id}/tags" Submitter validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SetTagsArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The tags it has from now on.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SetTagsOutcome")]
pub struct Outcome {
    /// The tags it has now.
    pub tags: Tags,
}

impl Args {
    /// Refuses bad tags.
    pub fn validate(&self) -> Result<()> {
        text::tags("tags", &self.tags)
    }
}
