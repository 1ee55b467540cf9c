//! The output of an execution while it runs.

use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::lease::{Attempt, ClaimKind, Lease};
use ff_core::op::{
    AppendFrames, AppendFramesArgs, AppendFramesOutcome, FrameRequest, ReadStream, ReadStreamArgs, ReadSummary,
    ReadSummaryArgs, ReadSummaryOutcome, TailStream, TailStreamArgs,
};
use ff_core::planted::{Bug, planted};
use ff_core::stream::{Frame, FrameId, FrameMode, StreamFrames};
use ff_core::{AttemptIndex, Code, Document, Error, Indexed, Result, Summary};
use ff_store::{Answer, Append, LogRecord, LogStart, Query};

use crate::caller::Caller;
use crate::limits::bytes;
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::load_visible;
use crate::{env, logs};

impl Handle<AppendFrames> for Services {
    async fn handle(&self, caller: &Caller, args: AppendFramesArgs) -> Result<AppendFramesOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        self.transactor
            .transact(partition, self.transactor.fresh_command(), &Request::<AppendFrames> { caller, args: &args })
            .await
    }
}

impl Command for Request<'_, AppendFrames> {
    type Outcome = AppendFramesOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<AppendFramesOutcome> {
        let args = self.args;
        let execution = load_visible(tx, self.caller, &args.execution_id).await?;
        if !planted(Bug::FrameAfterClose) {
            execution.check_fence(&args.fence).map_err(closed)?;
        }
        let source = execution.lease.as_ref().map(|lease| lease.instance_id.as_str()).unwrap_or_default();
        let max = tx.transactor.limits().frame_max_bytes;
        let frames = args.frames.iter().enumerate().map(|(place, frame)| {
            read_frame(frame, source, max).map_err(|error| error.inside(&format!("frames[{place}]")))
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
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
                in_turn: false,
            });
        }
        Ok(AppendFramesOutcome { last_sequence, count })
    }
}

/// How many of the frames are in the log already, and the number the next one gets.
struct Written {
    count: usize,
    next: u64,
}

impl Request<'_, AppendFrames> {
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

    /// Removes frames at the beginning of the stream that no reader is shown any more. While the attempt runs, a policy
    /// lets only frames of mode `best_effort` grow too old.
    async fn trim_old(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<()> {
        if execution.policy.stream.retention_ttl_ms.is_none() {
            return Ok(());
        }
        let log = logs::frames(&execution.id, self.args.fence.attempt);
        let query = Query::Log { log: log.clone(), start: LogStart::After(0), limit: TRIMMED_AT_ONCE };
        let page = tx.read(vec![query]).await?.pop().and_then(Answer::into_log).unwrap_or_default();
        let shown = Shown { execution, ended_at: None, now: tx.now };
        let is_old =
            |record: &&LogRecord| Frame::decode(&record.record).is_ok_and(|frame| !shown.is_kept(&frame, record.at));
        if let Some(last) = page.records.iter().take_while(is_old).last() {
            tx.trim(log, last.sequence + 1);
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
                let place = sequence - self.args.first_sequence;
                let within = |error: Error| error.inside(&format!("frames[{place}]"));
                summary.apply(sequence, &frame.payload, tx.now).map_err(within)?;
            }
        }
        tx.save(&summary);
        Ok(())
    }
}

/// To a worker that streams, an execution that is not active is a stream that has ended.
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

/// Frames of mode `best_effort` are for readers that watch now: they are shown for this long.
const BEST_EFFORT_MS: i64 = 60_000;
/// Frames that grew too old and are removed by one append.
const TRIMMED_AT_ONCE: usize = 100;

/// The frames of a stream that readers are shown. Stores remove what a policy does not keep when it suits them, and
/// some later than others, so that readers are held to the policy itself.
struct Shown<'a> {
    execution: &'a Execution,
    /// When the attempt ended, if it has.
    ended_at: Option<i64>,
    now: i64,
}

impl Shown<'_> {
    /// The number of the oldest frame that the policy keeps, where the next one has this number.
    fn oldest(&self, next: u64) -> u64 {
        next.saturating_sub(self.execution.policy.stream.retention_maxlen)
    }

    /// Whether a frame is young enough. A `best_effort` frame ages from when it was written, the others from the end of
    /// the attempt.
    fn is_kept(&self, frame: &Frame, written_at: i64) -> bool {
        let kept_ms = self.execution.policy.stream.retention_ttl_ms.unwrap_or(i64::MAX);
        let fades = frame.mode == FrameMode::BestEffort && self.now - written_at >= kept_ms.min(BEST_EFFORT_MS);
        !fades && self.ended_at.is_none_or(|ended_at| self.now - ended_at < kept_ms)
    }
}

impl Handle<ReadStream> for Services {
    async fn handle(&self, caller: &Caller, args: ReadStreamArgs) -> Result<StreamFrames> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let (from, to) = args.bounds()?;
        let range = from.to(to, args.attempt);
        let count = self.transactor.limits().frames(args.limit)?;
        let mut answer = self.read_frames(&execution, args.attempt, range.start() - 1, count).await?;
        answer.frames.retain(|frame| range.contains(&frame.id.sequence));
        Ok(answer)
    }
}

impl Services {
    /// Frames of an attempt after a number, and whether the stream has ended.
    pub(crate) async fn read_frames(
        &self,
        execution: &Execution,
        attempt: AttemptIndex,
        after: u64,
        count: usize,
    ) -> Result<StreamFrames> {
        check_attempt(execution, attempt)?;
        let ended = self.ended_attempt(execution, attempt).await?;
        let ended_at = ended.as_ref().map(|attempt| attempt.ended_at);
        let partition = execution.id.partition();
        let (mut after, mut frames) = (after, Vec::new());
        // Frames that no reader is shown any more may fill a page; frames behind them are not to be missed.
        while frames.is_empty() {
            let log = logs::frames(&execution.id, attempt);
            let answers = self
                .transactor
                .read(partition, vec![Query::Log { log: log.clone(), start: LogStart::After(after), limit: count }]);
            let answers = answers.await?;
            let shown = Shown { execution, ended_at, now: answers.at };
            let page = answers.into_only(ff_store::Answer::into_log)?;
            let full = page.records.len() == count;
            let oldest = shown.oldest(page.next);
            after = after.max(oldest.saturating_sub(1));
            for record in page.records.into_iter().filter(|record| record.sequence >= oldest) {
                after = record.sequence;
                let frame = match Frame::decode(&record.record) {
                    Ok(frame) => frame,
                    Err(error) => {
                        self.transactor.pass_over(&log, &error);
                        continue;
                    }
                };
                if shown.is_kept(&frame, record.at) {
                    frames.push(frame.view(FrameId { attempt, sequence: record.sequence }, record.at));
                }
            }
            if !full {
                break;
            }
        }
        Ok(StreamFrames {
            frames,
            closed_at: ended_at,
            closed_reason: ended.map(|attempt| attempt.outcome.as_str().to_owned()),
        })
    }

    /// The record of an attempt that has ended.
    async fn ended_attempt(&self, execution: &Execution, index: AttemptIndex) -> Result<Option<Attempt>> {
        let Some(current) = &execution.attempt else { return Ok(None) };
        if index >= current.index {
            return Ok(Some(current.clone()).filter(|current| current.index == index && current.ended_at != 0));
        }
        let past = self.history(execution).await?.into_iter().filter_map(|record| record.attempt);
        let found = past.into_iter().find(|attempt| attempt.index == index);
        // Its record may be gone, but what has a successor has ended.
        Ok(Some(found.unwrap_or(Attempt { index, ended_at: current.started_at, ..Default::default() })))
    }

    /// The number of the next frame of the attempt that was just claimed.
    pub(crate) async fn next_frame_sequence(&self, execution: &Execution, found: bool) -> Result<u64> {
        // Only an attempt that continues, or a lease that is handed out again or was handed back, can have written before.
        let again = found || execution.follows_returned_lease();
        let continued = |lease: &&Lease| again || lease.kind == ClaimKind::Resumed;
        let Some(lease) = execution.lease.as_ref().filter(continued) else { return Ok(1) };
        let log = logs::frames(&execution.id, lease.attempt);
        let page = self.transactor.store().log(execution.id.partition(), log, LogStart::Before(u64::MAX), 1).await?;
        Ok(page.next.max(1))
    }
}

/// Refuses an attempt that neither is nor comes next.
fn check_attempt(execution: &Execution, attempt: AttemptIndex) -> Result<()> {
    let last = match &execution.attempt {
        Some(current) if execution.is_terminal() => current.index,
        Some(current) => current.index.next(),
        None => AttemptIndex(0),
    };
    if attempt <= last { Ok(()) } else { Err(Error::of(Code::AttemptNotFound).with("attempt", attempt)) }
}

/// Reads the frames after a certain one, waiting for the first of them. While nothing is written this costs the store
/// nothing; the end of the stream wakes every tail.
impl Handle<TailStream> for Services {
    async fn handle(&self, caller: &Caller, args: TailStreamArgs) -> Result<StreamFrames> {
        let id = &args.execution_id;
        self.transactor.check_id(id)?;
        let after = args.after.unwrap_or(FrameId::START).after_in(args.attempt);
        let count = self.transactor.limits().frames(args.limit)?;
        let deadline = self.transactor.env().now_ms()
            + self.transactor.limits().tail_wait("wait_ms", args.wait_ms.unwrap_or(0))?;
        let mut listener = self.shared.board.listen(id.partition(), logs::frames(id, args.attempt));
        loop {
            self.transactor.refuse_if_closing()?;
            // The execution first: what was written before its end is in the log by then.
            let (execution, _) = self.transactor.visible_execution(caller, id).await?;
            let answer = self.read_frames(&execution, args.attempt, after, count).await?;
            let left = deadline - self.transactor.env().now_ms();
            if !answer.frames.is_empty() || answer.closed_at.is_some() || left <= 0 {
                return Ok(answer);
            }
            env::within(self.transactor.env_handle(), left, listener.changed()).await;
        }
    }
}

impl Handle<ReadSummary> for Services {
    async fn handle(&self, caller: &Caller, args: ReadSummaryArgs) -> Result<ReadSummaryOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let key = Summary::key_of(&execution.id, args.attempt);
        let found = self.transactor.store().documents(execution.id.partition(), vec![key]).await?;
        let summary = match found.into_iter().next().flatten() {
            Some(stored) => Summary::decode(&stored.body)?,
            None => Summary::empty(execution.id, args.attempt),
        };
        Ok(ReadSummaryOutcome { document: summary.value, last_sequence: summary.sequence })
    }
}
