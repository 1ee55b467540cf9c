//! Reads the frames of an attempt's stream. No lease is needed; a stream that was never written looks open.

use ff_core::execution::Execution;
use ff_core::lease::Attempt;
use ff_core::op::ReadStream;
use ff_core::op::read_stream::Args;
use ff_core::stream::{Frame, FrameId, FrameMode, StreamFrames};
use ff_core::{AttemptIndex, Code, Document, Error, Result};
use ff_store::{LogStart, Query};

use crate::engine::{Caller, Engine, Handle};
use crate::logs;

/// Frames of mode `best_effort` are for who watches now: readers see them this long.
const BEST_EFFORT_MS: i64 = 60_000;

impl Handle<ReadStream> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<StreamFrames> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let (from, to) = args.bounds()?;
        let range = from.to(to, args.attempt);
        let count = self.limits().frames(args.count)?;
        let mut answer = self.read_frames(&execution, args.attempt, range.start() - 1, count).await?;
        answer.frames.retain(|frame| range.contains(&frame.id.sequence));
        Ok(answer)
    }
}

impl Engine {
    /// Frames of an attempt after a number, and whether the stream has ended.
    pub(crate) async fn read_frames(
        &self,
        execution: &Execution,
        attempt: AttemptIndex,
        after: u64,
        count: usize,
    ) -> Result<StreamFrames> {
        check_attempt(execution, attempt)?;
        let partition = execution.id.partition();
        let (mut after, mut frames) = (after, Vec::new());
        // Frames that are for nobody any more may fill a page; what is behind them is not to be missed.
        while frames.is_empty() {
            let log = logs::frames(&execution.id, attempt);
            let answers = self
                .read(partition, vec![Query::Log { log: log.clone(), start: LogStart::After(after), limit: count }]);
            let answers = answers.await?;
            let now = answers.at;
            let page = answers.into_only(ff_store::Answer::into_log)?;
            let full = page.records.len() == count;
            for record in page.records {
                after = record.sequence;
                let frame = match Frame::decode(&record.record) {
                    Ok(frame) => frame,
                    Err(error) => {
                        self.pass_over(&log, &error);
                        continue;
                    }
                };
                let kept_ms = execution.policy.stream.retention_ttl_ms.unwrap_or(i64::MAX);
                let kept_ms = if frame.mode == FrameMode::BestEffort { kept_ms.min(BEST_EFFORT_MS) } else { kept_ms };
                if now - record.at < kept_ms {
                    frames.push(frame.view(FrameId { attempt, sequence: record.sequence }, record.at));
                }
            }
            if !full {
                break;
            }
        }
        let ended = self.ended_attempt(execution, attempt).await?;
        Ok(StreamFrames {
            frames,
            closed_at: ended.as_ref().map(|attempt| attempt.ended_at),
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
    pub(crate) async fn next_frame_sequence(&self, execution: &Execution) -> Result<u64> {
        // Only an attempt that continues can have written before.
        let resumed = execution.lease.as_ref().filter(|lease| lease.kind == ff_core::lease::ClaimKind::Resumed);
        let Some(lease) = resumed else { return Ok(1) };
        let log = logs::frames(&execution.id, lease.attempt);
        let page = self.store().log(execution.id.partition(), log, LogStart::Before(u64::MAX), 1).await?;
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
