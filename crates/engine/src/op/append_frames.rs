//! Appends frames to the attempt's stream. A repeat with the same numbers is the same frames.

use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::op::AppendFrames;
use ff_core::op::append_frames::{Args, FrameRequest, Outcome};
use ff_core::planted::{Bug, planted};
use ff_core::stream::{Frame, FrameMode};
use ff_core::{Code, Document, Error, Indexed, Result, Summary};
use ff_store::{Answer, Append, LogStart, Query};

use super::load_visible;
use crate::engine::{Caller, Engine, Handle};
use crate::limits::bytes;
use crate::logs;
use crate::transaction::{Command, Tx};

impl Handle<AppendFrames> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        self.transact(partition, self.fresh_command(), &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let args = self.args;
        let execution = load_visible(tx, self.caller, &args.execution_id).await?;
        if !planted(Bug::FrameAfterClose) {
            execution.check_fence(&args.fence).map_err(closed)?;
        }
        let source = execution.lease.as_ref().map(|lease| lease.instance_id.as_str()).unwrap_or_default();
        let max = tx.engine.limits().frame_max_bytes;
        let frames = args.frames.iter().map(|frame| read_frame(frame, source, max)).collect::<Result<Vec<_>>>()?;
        let mut written = Written { count: 0, next: args.first_sequence };
        // The first try trusts the numbers; a conflict says that the log is elsewhere.
        if tx.is_repeat() {
            written = self.written(tx, &frames).await?;
        }
        let last_sequence = args.first_sequence + u64::try_from(frames.len()).unwrap_or(u64::MAX) - 1;
        let count = last_sequence.max(written.next - 1);
        let fresh = frames.get(written.count..).unwrap_or_default();
        if !fresh.is_empty() {
            if planted(Bug::FrameAfterClose) {
                tx.pin(&execution.key());
            } else {
                tx.require_holder(&execution.key(), &args.fence);
            }
            self.merge_summary(tx, &execution, fresh, written.next).await?;
            self.trim_old(tx, &execution).await?;
            tx.append(Append {
                log: logs::frames(&execution.id, args.fence.attempt),
                records: fresh.iter().map(|frame| Bytes::from(frame.encode())).collect(),
                expected: Some(written.next),
                cap: execution.policy.stream.retention_maxlen,
            });
        }
        Ok(Outcome { last_sequence, count })
    }
}

/// How many of the frames are in the log already, and the number the next one gets.
struct Written {
    count: usize,
    next: u64,
}

impl Verb<'_> {
    async fn written(&self, tx: &mut Tx<'_>, frames: &[Frame]) -> Result<Written> {
        let first = self.args.first_sequence;
        let log = logs::frames(&self.args.execution_id, self.args.fence.attempt);
        let query = Query::Log { log, start: LogStart::After(first - 1), limit: frames.len() };
        let page = tx.read(vec![query]).await?.pop().and_then(Answer::into_log).unwrap_or_default();
        let next = page.next.max(1);
        let wrong = |detail: String| Err(Error::invalid("first_sequence", detail).with("next_sequence", next));
        if first > next {
            return wrong(format!("is {first}, but the stream's next frame has number {next}"));
        }
        for record in &page.records {
            let place = usize::try_from(record.sequence - first).unwrap_or(usize::MAX);
            if frames.get(place).is_some_and(|frame| frame.encode() != record.record) {
                return wrong(format!("names frame {}, which is there with other content", record.sequence));
            }
        }
        let count = usize::try_from(next - first).unwrap_or(usize::MAX).min(frames.len());
        Ok(Written { count, next })
    }

    /// Removes the frames that are older than the policy keeps them. Nobody is shown them in the meantime.
    async fn trim_old(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<()> {
        let Some(kept_ms) = execution.policy.stream.retention_ttl_ms else { return Ok(()) };
        let log = logs::frames(&execution.id, self.args.fence.attempt);
        let query = Query::Log { log: log.clone(), start: LogStart::Since(tx.now - kept_ms + 1), limit: 1 };
        let page = tx.read(vec![query]).await?.pop().and_then(Answer::into_log).unwrap_or_default();
        let kept_from = page.records.first().map_or(page.next, |record| record.sequence);
        if kept_from > page.first {
            tx.trim(log, kept_from);
        }
        Ok(())
    }

    /// Merges the patches among the frames into the attempt's summary.
    async fn merge_summary(&self, tx: &mut Tx<'_>, execution: &Execution, frames: &[Frame], first: u64) -> Result<()> {
        if frames.iter().all(|frame| frame.mode != FrameMode::Summary) {
            return Ok(());
        }
        let attempt = self.args.fence.attempt;
        let known = tx.load::<Summary>(Summary::key_of(&execution.id, attempt)).await?;
        let mut summary = known.map_or_else(|| Summary::empty(execution.id, attempt), |known| known.document);
        for (sequence, frame) in (first..).zip(frames) {
            if frame.mode == FrameMode::Summary {
                summary.apply(sequence, &frame.payload, tx.now)?;
            }
        }
        tx.save(&summary);
        Ok(())
    }
}

/// To somebody who streams, an execution that is not active is a stream that has ended.
fn closed(error: Error) -> Error {
    if error.code != Code::ExecutionNotActive {
        return error;
    }
    Error { details: error.details, ..Error::of(Code::StreamClosed) }
}

fn read_frame(request: &FrameRequest, source: &str, max: usize) -> Result<Frame> {
    let content = request.payload()?;
    let (payload, content_type) = content.map(|content| (content.bytes, content.content_type)).unwrap_or_default();
    bytes("payload", payload.len(), max)?;
    let frame = Frame {
        frame_type: request.frame_type.clone(),
        payload: ff_core::Blob(payload),
        content_type,
        correlation_id: request.correlation_id.clone().unwrap_or_default(),
        source: source.to_owned(),
        mode: request.mode.unwrap_or(FrameMode::Durable),
        ..Default::default()
    };
    frame.validate()?;
    Ok(frame)
}
