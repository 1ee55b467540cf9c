//! A task in hand: the claimed execution, and everything that its holder may do with it.

mod ending;
mod exchanged;
mod frames;
mod holder;
mod lease;
mod spend;
mod suspend;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ff_core::journal::StepEntry;
use ff_core::lease::{ClaimKind, LeaseFence};
use ff_core::op::ParentLink;
use ff_core::op::parts::{Content, LeaseLoss, RenewalOutcome};
use ff_core::op::view::{Task, UpstreamView};
use ff_core::op::{
    CreatePendingWaitpoint, ListSteps, Progress, RecordSteps, RenewLeases, ReportUsage, create_pending_waitpoint,
    list_steps, progress, record_steps, renew_leases, report_usage,
};
use ff_core::policy::FallbackTier;
use ff_core::stream::{FrameBound, FrameId, StreamFrames};
use ff_core::text::Tags;
use ff_core::{AttemptIndex, Code, ExecutionId, FlowId, LeaseEpoch, LeaseId, ReportUsageResult, ResumeSignal};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use ending::{CancelOutcome, CompleteOutcome, DelayOutcome, WaitChildrenOutcome};
pub(crate) use ending::{RunAgain, shorten};
pub use frames::{Frame, FrameWriter};
pub(crate) use holder::{Exchanged, Holder};
pub(crate) use lease::{Lease, Leases};
pub use spend::Spent;
pub use suspend::{SuspendOutcome, SuspendRequest};

use crate::error::{Result, SdkError};
use crate::submit::{ChildNames, Submission};

/// A claimed task with its lease and its permit; only a [`FlowFabricWorker`](crate::FlowFabricWorker) makes one.
///
/// The lease is renewed in the background until the task ends or is dropped. Methods that end it consume it; their
/// answer is the right one even if an earlier answer was lost. A task that is dropped without an ending is not renewed
/// any more, and runs elsewhere when its lease has run out.
#[derive(Debug)]
pub struct ClaimedTask {
    core: Arc<Core>,
    /// Returned when the task is dropped, unless an exchange has passed it to the next task.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// A handler works with it. Its permit is in use until the handler has returned, even if the task has ended.
    lent: AtomicBool,
    /// An ending was acknowledged, so dropping the task is no surprise.
    ended: AtomicBool,
}

/// The parts that a task shares with the writers of its stream.
pub(crate) struct Core {
    holder: Arc<dyn Holder>,
    task: Task,
    lease: Arc<Lease>,
    /// The number of the next frame. Held while frames are appended: their order is that of their numbers.
    next_frame: tokio::sync::Mutex<u64>,
    /// Makes names for children that the handler did not name.
    children: Arc<ChildNames>,
    /// Counts the reservations, so that each has a key of its own under the lease.
    spends: AtomicU64,
    span: tracing::Span,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("task", &self.task).field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The claimed execution.
impl ClaimedTask {
    pub(crate) fn new(holder: Arc<dyn Holder>, task: Task, permit: OwnedSemaphorePermit) -> Self {
        let ttl = Duration::from_millis(u64::try_from(task.lease_ttl_ms).unwrap_or(0));
        let lease = Lease::new(task.execution_id, task.fence, ttl);
        holder.leases().add(lease.clone());
        let next_frame = tokio::sync::Mutex::new(task.next_frame_sequence);
        // A span without a parent, because the call that brought the task ends long before the task.
        let span = tracing::info_span!(
            parent: None,
            "task",
            execution = %task.execution_id,
            kind = task.kind,
            attempt = task.fence.attempt.0,
            epoch = task.fence.epoch.0,
            claim = %task.claim_kind,
        );
        Self {
            core: Arc::new(Core {
                holder,
                task,
                lease,
                next_frame,
                children: Arc::default(),
                spends: AtomicU64::new(0),
                span,
            }),
            permit: Mutex::new(Some(permit)),
            lent: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The execution.
    pub fn execution_id(&self) -> ExecutionId {
        self.core.task.execution_id
    }

    /// The attempt, from 0.
    pub fn attempt_index(&self) -> AttemptIndex {
        self.core.task.fence.attempt
    }

    /// The lease.
    pub fn lease_id(&self) -> LeaseId {
        self.core.task.fence.lease_id
    }

    /// Which lease of the execution it is.
    pub fn lease_epoch(&self) -> LeaseEpoch {
        self.core.task.fence.epoch
    }

    /// The proof that is shown with every call about this task.
    pub fn fence(&self) -> LeaseFence {
        self.core.task.fence
    }

    /// The kind of work.
    pub fn kind(&self) -> &str {
        &self.core.task.kind
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.core.task.namespace
    }

    /// Its lane.
    pub fn lane(&self) -> &str {
        &self.core.task.lane
    }

    /// Its tags.
    pub fn tags(&self) -> &Tags {
        &self.core.task.tags
    }

    /// The bytes that were submitted; none reads as no bytes.
    pub fn input(&self) -> Bytes {
        self.core.task.input.as_ref().map(|input| input.bytes.clone()).unwrap_or_default()
    }

    /// The input with its content type; `None` when nothing was submitted.
    pub fn input_content(&self) -> Option<&Content> {
        self.core.task.input.as_ref()
    }

    /// The input, read from JSON; none reads as null.
    pub fn input_json<T: DeserializeOwned>(&self) -> Result<T> {
        read("input", self.core.task.input.as_ref())
    }

    /// The kind of attempt that the claim got: a first attempt, a retry, a lost one, a replay, or an interrupted one
    /// that goes on.
    pub fn claim_kind(&self) -> ClaimKind {
        self.core.task.claim_kind
    }

    /// Retries so far.
    pub fn retry_count(&self) -> u32 {
        self.core.task.retry_count
    }

    /// The model to use in this attempt.
    pub fn fallback_tier(&self) -> Option<&FallbackTier> {
        self.core.task.fallback_tier.as_ref()
    }

    /// The signals that resumed it; empty when it was not a signal.
    pub fn resume_signals(&self) -> &[ResumeSignal] {
        &self.core.task.resume_signals
    }

    /// The continuation that its suspension left.
    pub fn continuation(&self) -> Option<&Content> {
        self.core.task.continuation.as_ref()
    }

    /// The continuation, read from JSON; `None` when it was not suspended with one.
    pub fn continuation_json<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.core.task.continuation.as_ref().map(|content| read("continuation", Some(content))).transpose()
    }

    /// The flow it is in.
    pub fn flow_id(&self) -> Option<FlowId> {
        self.core.task.flow_id
    }

    /// Its name in the flow's graph.
    pub fn node(&self) -> Option<&str> {
        self.core.task.node.as_deref()
    }

    /// The submitter's trace.
    pub fn trace_context(&self) -> Option<&str> {
        self.core.task.trace_context.as_deref()
    }

    /// Everything that was claimed.
    pub fn details(&self) -> &Task {
        &self.core.task
    }

    /// Appends entries to the journal of the task, from this number on. A repeat with the same numbers and entries has
    /// no second effect.
    pub async fn record_steps(&self, first_number: u64, entries: Vec<StepEntry>) -> Result<record_steps::Outcome> {
        let (execution_id, fence) = (self.execution_id(), self.fence());
        self.call::<RecordSteps>(record_steps::Args { execution_id, fence, first_number, entries }).await
    }

    /// A page of the task's journal after a number, for the rest of a journal that was too large for the claim.
    pub async fn list_steps(&self, after: u64) -> Result<list_steps::Outcome> {
        let execution_id = self.execution_id();
        let limit = Some(ff_core::limits::PAGE_MAX);
        let args = list_steps::Args { execution_id, generation: None, after: Some(after), limit };
        self.call::<ListSteps>(args).await
    }

    /// The client that its worker uses.
    pub(crate) fn client(&self) -> &crate::Client {
        self.core.holder.client()
    }

    /// A call under the lease.
    pub(crate) async fn call<O: ff_core::op::Operation>(&self, args: O::Args) -> Result<O::Outcome>
    where
        ff_engine::Engine: ff_engine::Serves<O>,
    {
        self.core.call::<O>(args).await
    }

    /// The executions it depends on, with outcomes and results.
    pub async fn upstreams(&self) -> Result<Vec<UpstreamView>> {
        self.client().execution(self.execution_id()).upstreams().await
    }
}

/// The lease.
impl ClaimedTask {
    /// Fires when the lease is lost or the execution cancelled: the result of the work would be refused from then on.
    pub fn cancellation(&self) -> &CancellationToken {
        self.core.lease.lost()
    }

    /// Why the lease is lost, if it is known to be.
    pub fn lease_loss(&self) -> Option<LeaseLoss> {
        self.core.lease.loss()
    }

    /// Whether the lease is not known to be lost, and fewer than three renewals in a row have failed.
    pub fn is_lease_healthy(&self) -> bool {
        self.core.lease.is_healthy()
    }

    /// Renewals that have failed since the last success.
    pub fn consecutive_renewal_failures(&self) -> u32 {
        self.core.lease.failures()
    }

    /// The span of this task: log lines inside of it carry the execution, attempt and lease.
    pub fn span(&self) -> &tracing::Span {
        &self.core.span
    }

    /// Renews the lease now, beside what happens in the background.
    #[tracing::instrument(level = "debug", parent = &self.core.span, skip_all)]
    pub async fn renew_lease(&self) -> Result<()> {
        let asked_at = Instant::now();
        let args = renew_leases::Args { leases: vec![self.core.lease.renewal()] };
        let answer = self.client().call::<RenewLeases>(args).await?;
        for outcome in answer.results {
            self.core.lease.note(&outcome, asked_at);
            if let RenewalOutcome::Lost { error, .. } | RenewalOutcome::Failed { error, .. } = outcome {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// Calls while the task runs.
impl ClaimedTask {
    /// Reports how far the work is.
    pub async fn update_progress(&self, pct: u8, message: impl Into<String>) -> Result<()> {
        let args = progress::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            pct: Some(pct),
            message: Some(message.into()).filter(|message| !message.is_empty()),
        };
        self.core.call::<Progress>(args).await.map(drop)
    }

    /// Charges spent amounts to the execution's budgets; returns the answer of each, by name. With a key, a report of
    /// this execution counts once however often it is repeated.
    pub async fn report_usage(
        &self,
        usage: impl IntoIterator<Item = (&str, i64)>,
        dedup_key: Option<String>,
    ) -> Result<BTreeMap<String, ReportUsageResult>> {
        let args = report_usage::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            usage: usage.into_iter().map(|(dimension, amount)| (dimension.to_owned(), amount)).collect(),
            budget: None,
            dedup_key,
        };
        Ok(self.core.call::<ReportUsage>(args).await?.budgets)
    }

    /// Charges spent amounts to one of the execution's budgets only, by its name.
    pub async fn report_usage_to(
        &self,
        budget: impl Into<String>,
        usage: impl IntoIterator<Item = (&str, i64)>,
        dedup_key: Option<String>,
    ) -> Result<ReportUsageResult> {
        let budget = budget.into();
        let args = report_usage::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            usage: usage.into_iter().map(|(dimension, amount)| (dimension.to_owned(), amount)).collect(),
            budget: Some(budget.clone()),
            dedup_key,
        };
        let mut answers = self.core.call::<ReportUsage>(args).await?.budgets;
        answers.remove(&budget).ok_or_else(|| SdkError::Unreadable(format!("no answer about budget {budget}")))
    }

    /// Frames of the attempt's own stream; see [`Execution::read_stream`](crate::Execution::read_stream).
    pub async fn read_stream(&self, from: FrameBound, to: FrameBound, count: usize) -> Result<StreamFrames> {
        self.client().execution(self.execution_id()).read_stream(self.attempt_index(), from, to, count).await
    }

    /// Frames of the attempt's own stream after a sequence number, waiting for the first of them; see
    /// [`Execution::tail_stream`](crate::Execution::tail_stream).
    pub async fn tail_stream(&self, after: u64, wait: Duration, count: usize) -> Result<StreamFrames> {
        let after = FrameId { attempt: self.attempt_index(), sequence: after };
        self.client().execution(self.execution_id()).tail_stream(after, wait, count).await
    }

    /// Opens a waitpoint before suspending; signals sent meanwhile are kept for it.
    pub async fn create_pending_waitpoint(
        &self,
        waitpoint_key: Option<String>,
        expires_in: Option<Duration>,
    ) -> Result<create_pending_waitpoint::Outcome> {
        let args = create_pending_waitpoint::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            waitpoint_id: None,
            waitpoint_key,
            expires_in_ms: expires_in.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            step: None,
        };
        self.core.call::<CreatePendingWaitpoint>(args).await
    }

    /// A child of this execution, in its flow or in a flow of its own; see
    /// [`move_to_waiting_children`](ClaimedTask::move_to_waiting_children).
    ///
    /// Work that runs again, after a crash, a failure or a parting, finds the children it spawned before: the n-th
    /// child with some content is the same child in every run, until the execution is replayed. Give a child that must
    /// be a new one in each run a key of its own, see [`child_key`](Submission::child_key).
    pub fn spawn_child(&self, kind: impl Into<String>) -> Submission {
        let parent = ParentLink {
            execution_id: self.execution_id(),
            fence: self.fence(),
            key: None,
            kind: None,
            data_ref: None,
            detached: false,
        };
        Submission::new(self.client().clone(), kind.into()).child_of(parent).named_by(self.core.children.clone())
    }
}

impl Core {
    /// A call under the lease.
    pub(crate) async fn call<O: ff_core::op::Operation>(&self, args: O::Args) -> Result<O::Outcome>
    where
        ff_engine::Engine: ff_engine::Serves<O>,
    {
        self.noted(self.holder.client().call::<O>(args).await)
    }

    /// Passes an answer on. A refusal that says the lease is lost makes the cancellation token fire.
    fn noted<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer
            && error.is_lease_lost()
        {
            self.lease.lose(match error.code() {
                Some(Code::LeaseExpired) => LeaseLoss::Expired,
                Some(Code::LeaseRevoked) => LeaseLoss::Revoked,
                Some(Code::ExecutionNotFound) => LeaseLoss::NotFound,
                _ => LeaseLoss::Stale,
            });
        }
        answer
    }
}

pub(crate) fn read<T: DeserializeOwned>(what: &'static str, content: Option<&Content>) -> Result<T> {
    let bytes: &[u8] = content.map_or(b"", |content| &content.bytes);
    serde_json::from_slice(if bytes.is_empty() { b"null" } else { bytes }).map_err(SdkError::payload(what))
}

impl Drop for ClaimedTask {
    fn drop(&mut self) {
        self.core.holder.leases().remove(&self.core.task.fence.lease_id);
        if !self.ended.load(Ordering::Relaxed) && self.core.lease.loss().is_none() {
            tracing::warn!(
                execution = %self.core.task.execution_id,
                "a task was dropped without an ending; it runs elsewhere when its lease has run out"
            );
        }
    }
}
