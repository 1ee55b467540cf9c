//! Reads the frames after a certain one, waiting for the first of them.

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
    /// Reads the frames after a certain one, waiting for the first of them.
    TailStream "tail_stream" Get "/v1/executions/{execution_id}/attempts/{attempt}/stream/tail" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TailStreamArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt.
    pub attempt: AttemptIndex,
    /// The last frame that is known, exclusive; `0-0`, the start, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How long to wait; 0, looking once, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_ms: Option<i64>,
    /// How many at the most; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

/// The answer.
pub type Outcome = StreamFrames;

impl Args {
    /// Refuses counts and waits out of range.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.after.as_deref(), "after", text::label)?;
        self.block_ms.map_or(Ok(()), |block_ms| text::within("block_ms", block_ms, 0..=limits::TAIL_WAIT_MAX_MS))?;
        self.count.map_or(Ok(()), |count| text::within("count", count, 1..=limits::STREAM_READ_MAX))
    }
}
