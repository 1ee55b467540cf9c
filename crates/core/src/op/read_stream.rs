//! Reads the frames of an attempt's stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::{AttemptIndex, ExecutionId};
use crate::op::operation;
use crate::stream;
use crate::stream::{FrameBound, StreamFrames};

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
    /// Both ends of the range.
    pub fn bounds(&self) -> Result<(FrameBound, FrameBound)> {
        let from = FrameBound::parse("from", self.from.as_deref().unwrap_or("-"))?;
        Ok((from, FrameBound::parse("to", self.to.as_deref().unwrap_or("+"))?))
    }

    /// Refuses ends that are no frames, and counts out of range.
    pub fn validate(&self) -> Result<()> {
        self.bounds()?;
        self.count.map_or(Ok(()), stream::check_read_count)
    }
}
