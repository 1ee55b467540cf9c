//! The output of an execution while it runs.

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::{AttemptIndex, ExecutionId};
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts::{self, Content};
use crate::stream::{self, FrameBound, FrameId, FrameMode, StreamFrames};
use crate::{limits, text};

operation! {
    /// Appends frames to the attempt's stream. A repeat with the same numbers is the same frames.
    AppendFrames(AppendFramesArgs) -> AppendFramesOutcome,
    "append_frames" Post "/v1/executions/{execution_id}/frames" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `append_frames`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AppendFramesArgs {
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

/// The answer to `append_frames`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AppendFramesOutcome {
    /// The number of the last frame.
    pub last_sequence: u64,
    /// How many frames the stream has.
    pub count: u64,
}

/// A frame to append.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FrameRequest {
    /// The type of the frame, in the worker's own words.
    #[serde(rename = "type")]
    pub frame_type: String,
    /// Its content; a merge patch in `summary` mode. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// The payload as bytes; not beside `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The worker's own id for what the frame belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// How it is kept; `durable` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FrameMode>,
}
crate::newer::open_struct!(FrameRequest);

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

impl AppendFramesArgs {
    /// Refuses no frames, too many, and frames that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("frames", self.frames.len(), limits::FRAMES_PER_APPEND_MAX)?;
        text::within("first_sequence", self.first_sequence, 1..=limits::SCORE_MAX.unsigned_abs())?;
        parts::items("frames", &self.frames, |frame| {
            text::label("type", &frame.frame_type)?;
            parts::optional(frame.correlation_id.as_deref(), "correlation_id", text::label)?;
            frame.payload().map(drop)
        })
    }
}

operation! {
    /// Reads the frames of an attempt's stream.
    ReadStream(ReadStreamArgs) -> StreamFrames,
    "read_stream" Get "/v1/executions/{execution_id}/attempts/{attempt}/stream" Reader validated watching checked_remote
}

/// The arguments of `read_stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadStreamArgs {
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
    #[serde(default, alias = "count", skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl ReadStreamArgs {
    /// Both ends of the range.
    pub fn bounds(&self) -> Result<(FrameBound, FrameBound)> {
        let from = FrameBound::parse("from", self.from.as_deref().unwrap_or("-"))?;
        Ok((from, FrameBound::parse("to", self.to.as_deref().unwrap_or("+"))?))
    }

    /// Refuses ends that are no frames, and counts out of range.
    pub fn validate(&self) -> Result<()> {
        self.bounds()?;
        self.limit.map_or(Ok(()), stream::check_read_count)
    }

    /// A response over HTTP holds fewer frames than a program in process may read at once.
    pub fn check_remote(&self) -> Result<()> {
        self.limit.map_or(Ok(()), |limit| text::within("limit", limit, 1..=limits::PAGE_MAX))
    }
}

operation! {
    /// Reads the frames after a certain one, waiting for the first of them.
    TailStream(TailStreamArgs) -> StreamFrames,
    "tail_stream" Get "/v1/executions/{execution_id}/attempts/{attempt}/stream/tail" Reader validated waits(wait_ms) watching checked_remote
}

/// The arguments of `tail_stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TailStreamArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt.
    pub attempt: AttemptIndex,
    /// The last frame that is known, exclusive; `0-0`, the start, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FrameId>,
    /// How long to wait; 0, looking once, when absent.
    #[serde(default, alias = "block_ms", skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
    /// How many at the most; 100 when absent.
    #[serde(default, alias = "count", skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl TailStreamArgs {
    /// Refuses counts and waits out of range.
    pub fn validate(&self) -> Result<()> {
        self.wait_ms.map_or(Ok(()), stream::check_tail_wait)?;
        self.limit.map_or(Ok(()), stream::check_read_count)
    }

    /// A response over HTTP holds fewer frames than a program in process may read at once.
    pub fn check_remote(&self) -> Result<()> {
        self.limit.map_or(Ok(()), |limit| text::within("limit", limit, 1..=limits::PAGE_MAX))
    }
}

operation! {
    /// Reads the document that the `summary` frames of an attempt add up to.
    ReadSummary(ReadSummaryArgs) -> ReadSummaryOutcome,
    "read_summary" Get "/v1/executions/{execution_id}/attempts/{attempt}/summary" Reader
}

/// The arguments of `read_summary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadSummaryArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The attempt.
    pub attempt: AttemptIndex,
}

/// The answer to `read_summary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadSummaryOutcome {
    /// The merged document; an empty object when nothing was written.
    pub document: JsonText,
    /// The last frame that went into it; 0 for none.
    pub last_sequence: u64,
}
