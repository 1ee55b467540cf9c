//! Reads the frames after a certain one, waiting for the first of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{AttemptIndex, ExecutionId};
use crate::op::operation;
use crate::stream;
use crate::stream::{FrameId, StreamFrames};

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
    pub after: Option<FrameId>,
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
        self.block_ms.map_or(Ok(()), stream::check_tail_wait)?;
        self.count.map_or(Ok(()), stream::check_read_count)
    }
}
