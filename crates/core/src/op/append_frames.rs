//! Appends frames to the attempt's stream. A repeat with the same numbers is the same frames.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::Content;
use crate::stream::FrameMode;
use crate::text;

operation! {
    /// Appends frames to the attempt's stream. A repeat with the same numbers is the same frames.
    AppendFrames "append_frames" Post "/v1/executions/{execution_id}/frames" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AppendFramesArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The number of the first frame; the others follow.
    pub first_sequence: u64,
    /// The frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FrameRequest>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AppendFramesOutcome")]
pub struct Outcome {
    /// The number of the last frame.
    pub last_sequence: u64,
    /// How many frames the stream has.
    pub count: u64,
}

/// A frame to append.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrameRequest {
    /// What kind of frame it is.
    #[serde(rename = "type")]
    pub frame_type: String,
    /// Its content; a merge patch in `summary` mode. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// The same as bytes; not both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Blob>,
    /// What the bytes are; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// What it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// How it is kept; `durable` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FrameMode>,
}

impl FrameRequest {
    /// The bytes of the frame, if any.
    pub fn payload(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "payload",
            json: self.payload.as_ref(),
            base64: self.payload_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::FRAME_MAX_BYTES,
        }
        .content()
    }
}

impl Args {
    /// Refuses no frames, too many, and frames that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("frames", self.frames.len(), limits::FRAMES_PER_APPEND_MAX)?;
        text::within("first_sequence", self.first_sequence, 1..=limits::SCORE_MAX.unsigned_abs())?;
        for frame in &self.frames {
            text::label("type", &frame.frame_type)?;
            parts::optional(frame.correlation_id.as_deref(), "correlation_id", text::label)?;
            frame.payload()?;
        }
        Ok(())
    }
}
