//! Reads the frames of an attempt's stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{AttemptIndex, ExecutionId};
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::pending::StreamFrames;
use crate::text;

operation! {
    /// Reads the frames of an attempt's stream.
    ReadStream "read_stream" Get "/v1/executions/{execution_id}/attempts/{attempt}/stream" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReadStreamArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt.
    pub attempt: AttemptIndex,
    /// The first frame, inclusive; `-`, the start, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The last frame, inclusive; `+`, the end, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// How many, 1 to 10,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

/// The answer.
pub type Outcome = StreamFrames;

impl Args {
    /// Refuses counts out of range.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.from.as_deref(), "from", text::label)?;
        parts::optional(self.to.as_deref(), "to", text::label)?;
        self.count.map_or(Ok(()), |count| text::within("count", count, 1..=limits::STREAM_READ_MAX))
    }
}
