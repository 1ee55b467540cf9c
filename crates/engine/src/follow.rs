//! The next frames and states that a viewer of an execution's stream sees, across its attempts. It costs the store
//! nothing while nothing happens.

use ff_core::execution::Execution;
use ff_core::journal::StepView;
use ff_core::state::{AttemptState, BlockingReason, PublicState};
use ff_core::stream::{FrameId, StreamFrame};
use ff_core::{AttemptIndex, ExecutionId, Result, limits};
use ff_store::LogStart;

use crate::caller::Caller;
use crate::services::Services;
use crate::{env, logs, view};

/// How far a viewer has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The last frame; `n-0` when the viewer knows of attempt n and none of its frames.
    pub after: FrameId,
    /// That the attempt is paused.
    pub paused: bool,
}

/// How far a viewer has come in a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalSeen {
    /// Which generation; the present one when the viewer has seen none.
    pub generation: Option<u32>,
    /// The number of the last entry.
    pub after: u64,
}

/// The next thing that a viewer sees.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamUpdate {
    /// Frames of the attempt the viewer is at.
    Frames(Vec<StreamFrame>),
    /// Another attempt has begun; what the one before it wrote is void.
    Attempt(AttemptIndex),
    /// The holder let go of the attempt, which will go on.
    Paused {
        /// The attempt.
        attempt: AttemptIndex,
        /// The reason why it waits.
        reason: BlockingReason,
        /// A detail of the wait, for people.
        detail: String,
    },
    /// The execution has ended, and everything was seen.
    End(PublicState),
    /// The time is up.
    Nothing,
}

impl Services {
    /// The next thing a viewer sees, waiting for it if there is nothing yet.
    pub(crate) async fn follow(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        seen: Seen,
        count: usize,
        wait_ms: i64,
    ) -> Result<StreamUpdate> {
        self.transactor.check_id(id)?;
        let deadline = self.transactor.env().now_ms() + wait_ms;
        let at = seen.after.attempt;
        let mut whole = self.shared.board.listen(id.partition(), Execution::key_of(id));
        let mut present = self.shared.board.listen(id.partition(), logs::frames(id, at));
        let mut next = self.shared.board.listen(id.partition(), logs::frames(id, at.next()));
        loop {
            self.transactor.refuse_if_closing()?;
            // The execution first: what was written before its end is in the log by then.
            let (execution, _) = self.transactor.visible_execution(caller, id).await?;
            let page = self.read_frames(&execution, at, seen.after.sequence, count).await?;
            if !page.frames.is_empty() {
                return Ok(StreamUpdate::Frames(page.frames));
            }
            if let Some(sight) = beside_frames(&execution, seen) {
                return Ok(sight);
            }
            let left = deadline - self.transactor.env().now_ms();
            if left <= 0 {
                return Ok(StreamUpdate::Nothing);
            }
            let changes = futures_util::future::select_all([
                Box::pin(whole.changed()) as env::BoxFuture<'_, ()>,
                Box::pin(present.changed()),
                Box::pin(next.changed()),
            ]);
            env::within(self.transactor.env_handle(), left, changes).await;
        }
    }

    /// The entries of a journal behind those that a viewer has seen, waiting for them if there are none yet. Another
    /// generation is seen from its first own entry on: what it took over was seen before.
    pub(crate) async fn follow_journal(
        &self,
        caller: &Caller,
        id: &ExecutionId,
        seen: JournalSeen,
        count: usize,
        wait_ms: i64,
    ) -> Result<(JournalSeen, Vec<StepView>)> {
        self.transactor.check_id(id)?;
        let deadline = self.transactor.env().now_ms() + wait_ms;
        let mut whole = self.shared.board.listen(id.partition(), Execution::key_of(id));
        loop {
            self.transactor.refuse_if_closing()?;
            let (execution, _) = self.transactor.visible_execution(caller, id).await?;
            let generation = execution.generation;
            let mut present = self.shared.board.listen(id.partition(), logs::journal(id, generation));
            let mut next = self.shared.board.listen(id.partition(), logs::journal(id, generation + 1));
            let max_bytes = limits::JOURNAL_PER_TASK_MAX_BYTES;
            let after = match seen.generation {
                Some(known) if known != generation => {
                    // The commit that ended the known generation may have recorded entries of it.
                    let rest = self.transactor.read_journal(&execution, known, seen.after, count, max_bytes).await?;
                    if let Some(last) = rest.entries.last() {
                        let after = last.number;
                        return Ok((JournalSeen { generation: Some(known), after }, view::steps(caller, rest.entries)));
                    }
                    execution.journal_tail().first - 1
                }
                _ => seen.after,
            };
            let page = self.transactor.read_journal(&execution, generation, after, count, max_bytes).await?;
            let left = deadline - self.transactor.env().now_ms();
            if !page.entries.is_empty() || left <= 0 {
                let after = page.entries.last().map_or(after, |entry| entry.number);
                return Ok((JournalSeen { generation: Some(generation), after }, view::steps(caller, page.entries)));
            }
            let changes = futures_util::future::select_all([
                Box::pin(whole.changed()) as env::BoxFuture<'_, ()>,
                Box::pin(present.changed()),
                Box::pin(next.changed()),
            ]);
            env::within(self.transactor.env_handle(), left, changes).await;
        }
    }

    /// The last frame of the current attempt; `n-0` while it has none.
    pub(crate) async fn stream_end(&self, id: &ExecutionId) -> Result<FrameId> {
        let (execution, _) = self.transactor.visible_execution(&Caller::system(), id).await?;
        let attempt = execution.attempt.as_ref().map_or(AttemptIndex(0), |attempt| attempt.index);
        let page = self
            .transactor
            .store()
            .log(id.partition(), logs::frames(id, attempt), LogStart::Before(u64::MAX), 1)
            .await?;
        Ok(FrameId { attempt, sequence: page.next.saturating_sub(1) })
    }
}

/// The next thing to see when the viewer has every frame of the attempt it is at.
fn beside_frames(execution: &Execution, seen: Seen) -> Option<StreamUpdate> {
    let at = seen.after.attempt;
    let current = execution.attempt.as_ref();
    if current.is_some_and(|current| current.index > at) {
        return Some(StreamUpdate::Attempt(at.next()));
    }
    if execution.is_terminal() {
        return Some(StreamUpdate::End(execution.public_state()));
    }
    let paused = execution.state.attempt_state == AttemptState::AttemptInterrupted;
    (paused && !seen.paused).then(|| StreamUpdate::Paused {
        attempt: at,
        reason: execution.state.blocking_reason,
        detail: execution.blocking_detail.clone(),
    })
}
