//! A task's stream: single frames, and a writer that sends many in one call.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::op::AppendFrames;
use ff_core::op::FrameRequest;
use ff_core::op::append_frames::{Args, Outcome};
use ff_core::{Blob, Code, FrameMode, JsonText, limits};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{ClaimedTask, Core};
use crate::error::{Result, SdkError};

/// Frames that wait to be sent; a writer that is faster than the deployment waits, too.
const BACKLOG: usize = 4_096;
/// Bytes in one call, well below the largest body even in base64.
const BATCH_MAX_BYTES: usize = 4 * 1024 * 1024;

/// A frame to append.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a frame is not appended by itself"]
pub struct Frame(FrameRequest);

impl Frame {
    /// A frame of text.
    pub fn text(frame_type: impl Into<String>, text: impl Into<String>) -> Self {
        Self::bytes(frame_type, text.into(), "text/plain; charset=utf-8")
    }

    /// A frame of bytes.
    pub fn bytes(frame_type: impl Into<String>, bytes: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        Self(FrameRequest {
            frame_type: frame_type.into(),
            payload_base64: Some(Blob(bytes.into())),
            content_type: Some(content_type.into()),
            ..FrameRequest::default()
        })
    }

    /// A frame of JSON.
    pub fn json(frame_type: impl Into<String>, value: &(impl Serialize + ?Sized)) -> Result<Self> {
        let text = serde_json::to_string(value).map_err(SdkError::payload("frame"))?;
        Ok(Self(FrameRequest {
            frame_type: frame_type.into(),
            payload: Some(JsonText(text)),
            ..FrameRequest::default()
        }))
    }

    /// A merge patch (RFC 7396) to the attempt's summary.
    pub fn summary(patch: &(impl Serialize + ?Sized)) -> Result<Self> {
        Ok(Self::json("summary", patch)?.mode(FrameMode::Summary))
    }

    /// Sets how the frame is kept.
    pub fn mode(mut self, mode: FrameMode) -> Self {
        self.0.mode = Some(mode);
        self
    }

    /// The worker's own id for what the frame belongs to.
    pub fn correlation_id(mut self, correlation_id: impl Into<String>) -> Self {
        self.0.correlation_id = Some(correlation_id.into());
        self
    }

    fn size(&self) -> usize {
        let json = self.0.payload.as_ref().map_or(0, |payload| payload.0.len());
        json + self.0.payload_base64.as_ref().map_or(0, |payload| payload.0.len())
    }
}

impl ClaimedTask {
    /// Appends one frame and waits until it is stored. For many, see [`frame_writer`](ClaimedTask::frame_writer).
    pub async fn append_frame(&self, frame: Frame) -> Result<Outcome> {
        self.core.append(vec![frame]).await
    }

    /// A writer for output that comes token by token.
    pub fn frame_writer(&self) -> FrameWriter {
        FrameWriter::new(self.core.clone())
    }
}

impl Core {
    pub(crate) async fn append(&self, frames: Vec<Frame>) -> Result<Outcome> {
        let mut next = self.next_frame.lock().await;
        let frames: Vec<FrameRequest> = frames.into_iter().map(|frame| frame.0).collect();
        let count = u64::try_from(frames.len()).unwrap_or(u64::MAX);
        let mut args =
            Args { execution_id: self.task.execution_id, fence: self.task.fence, first_sequence: *next, frames };
        let mut appended = self.call::<AppendFrames>(args.clone()).await;
        // An earlier append whose caller gave up may have been stored all the same, so these frames are numbered after
        // it.
        if let Err(SdkError::Refused(error)) = &appended
            && error.code == Code::Invalid
            && let Some(stored) = error.details.get("next_sequence").and_then(serde_json::Value::as_u64)
            && stored > *next
        {
            *next = stored;
            args.first_sequence = stored;
            appended = self.call::<AppendFrames>(args).await;
        }
        let appended = appended?;
        *next += count;
        Ok(appended)
    }
}

/// Appends frames in the background, in order. While one call is under way, further frames gather for the next: a
/// single token is on its way at once, and a flood costs few calls.
///
/// ```
/// # async fn example(task: flowfabric::ClaimedTask) -> flowfabric::Result<()> {
/// use flowfabric::Frame;
/// let writer = task.frame_writer();
/// for token in ["Once ", "upon ", "a ", "time"] {
///     writer.write(Frame::text("token", token)).await?;
/// }
/// writer.finish().await?;
/// task.complete("Once upon a time").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FrameWriter {
    frames: mpsc::Sender<Frame>,
    /// Ends when the sender is gone and everything is stored, or with the first error.
    sending: JoinHandle<Result<u64>>,
}

impl FrameWriter {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let (frames, waiting) = mpsc::channel(BACKLOG);
        Self { frames, sending: tokio::spawn(send_all(core, waiting)) }
    }

    /// Queues a frame to be stored soon. [`finish`](FrameWriter::finish) waits until all are stored, and reports
    /// errors.
    pub async fn write(&self, frame: Frame) -> Result<()> {
        let ended = |_| SdkError::Unreachable("the stream takes no more frames; finish says why".into());
        self.frames.send(frame).await.map_err(ended)
    }

    /// Waits until everything is stored; returns how many frames were.
    pub async fn finish(self) -> Result<u64> {
        drop(self.frames);
        match self.sending.await {
            Ok(sent) => sent,
            Err(error) => Err(SdkError::Unreachable(format!("the writer ended early: {error}"))),
        }
    }
}

async fn send_all(core: Arc<Core>, mut waiting: mpsc::Receiver<Frame>) -> Result<u64> {
    let mut written = 0;
    while let Some(first) = waiting.recv().await {
        let mut bytes = first.size();
        let mut batch = vec![first];
        while batch.len() < limits::FRAMES_PER_APPEND_MAX
            && bytes < BATCH_MAX_BYTES
            && let Ok(frame) = waiting.try_recv()
        {
            bytes += frame.size();
            batch.push(frame);
        }
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        core.append(batch).await?;
        written += count;
    }
    Ok(written)
}
