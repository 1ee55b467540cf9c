//! Executions, their attempts and leases, and the task a claim hands out.

use serde::{Deserialize, Serialize};

use crate::capability::CapabilitySet;
use crate::condition::Condition;
use crate::encoding::JsonText;
use crate::event::Event;
use crate::execution::LastWords;
use crate::id::{AttemptIndex, ExecutionId, FlowId, LeaseEpoch, LeaseId, SignalId, SuspensionId, WaitpointId};
use crate::journal::{Journal, StepIdentity};
use crate::lease::{AttemptKind, AttemptOutcome, ClaimKind, LeaseEnd, LeaseFence};
use crate::op::parts::Content;
use crate::op::view::{JoinView, QuestionView};
use crate::policy::{FallbackTier, Policy};
use crate::sharing::ConcurrencyLimit;
use crate::state::{EligibilityState, PublicState, StateVector};
use crate::suspension::{ResumeSignal, SuspendReason, TimeoutBehavior};
use crate::text::Tags;

/// Everything about an execution but its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecutionView {
    /// Its id.
    pub execution_id: ExecutionId,
    /// Its namespace.
    pub namespace: String,
    /// Its lane.
    pub lane: String,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Its priority; higher goes first.
    pub priority: i64,
    /// The creator that the submission names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// Its tags.
    pub tags: Tags,
    /// The one word people see.
    pub public_state: PublicState,
    /// The six dimensions behind it.
    pub state: StateVector,
    /// A detail of the wait, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_detail: Option<String>,
    /// Everything that holds it back, the one shown first.
    pub held_by: Vec<EligibilityState>,
    /// The number of its current or last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptIndex>,
    /// Retries since its creation or last replay.
    pub retry_count: u32,
    /// Leases it lost.
    pub reclaim_count: u32,
    /// Times it was replayed.
    pub replay_count: u32,
    /// The last progress that its worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// The flow it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The schedule that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The instant of that schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<i64>,
    /// How many of its upstreams it still waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinView>,
    /// Its policy: retries, timeouts, limits, routing.
    pub policy: Policy,
    /// The capabilities that a worker must have.
    pub required_capabilities: CapabilitySet,
    /// The budgets it is charged to.
    pub budget_ids: Vec<String>,
    /// The quota it runs under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_policy_id: Option<String>,
    /// The keys it holds while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<ConcurrencyLimit>,
    /// The key by which it takes turns in its lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// The singleton key it was created under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub singleton_key: Option<String>,
    /// The debounce key it was created under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce_key: Option<String>,
    /// The key it was created with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<i64>,
    /// When its delay or backoff ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<i64>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<i64>,
    /// Its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureView>,
    /// The source and the reason of its cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation: Option<CancellationView>,
    /// The lease that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseView>,
    /// Its suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<SuspensionView>,
    /// Questions for a person about its journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionView>,
    /// The last progress of the workers of its lost leases, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_words: Vec<LastWords>,
    /// Which of its journals is written to: a replay and a continuation begin one.
    #[serde(default)]
    pub generation: u32,
    /// The build that runs it to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_build: Option<String>,
    /// The execution that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ExecutionId>,
    /// Journal entries that the run which ended it never asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps_not_visited: Vec<StepIdentity>,
    /// Journal entries that stand although the program gave them another input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps_changed: Vec<StepIdentity>,
    /// The input that can be fetched, without its bytes; absent where it was submitted without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputView>,
    /// The result that can be fetched, without its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultView>,
}

/// The short form in lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecutionSummary {
    /// Its id.
    pub execution_id: ExecutionId,
    /// Its namespace.
    pub namespace: String,
    /// Its lane.
    pub lane: String,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Its state.
    pub public_state: PublicState,
    /// Its priority.
    pub priority: i64,
    /// When it was created.
    pub created_at: i64,
    /// The flow it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: Tags,
    /// The number of its current or last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptIndex>,
    /// When it last changed.
    #[serde(default)]
    pub updated_at: i64,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<i64>,
    /// When its delay or backoff ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<i64>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<i64>,
    /// The category of its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
    /// The last progress that its worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
}

/// A worker's report about its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressView {
    /// How far it is, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pct: Option<u8>,
    /// The worker's words for what it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it said so.
    pub reported_at: i64,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailureView {
    /// The reason of the failure.
    pub reason: String,
    /// The category of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// In which attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptIndex>,
    /// When it failed.
    pub failed_at: i64,
    /// The engine ended it (leases lost, a deadline, a timeout, a budget ...); no worker reported the failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_engine: bool,
}

/// A cancellation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancellationView {
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The source: operator, lease_holder, flow, timeout or superseded.
    pub source: String,
    /// When it was cancelled.
    pub cancelled_at: i64,
    /// The execution that took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<ExecutionId>,
}

/// An input without its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InputView {
    /// Its content type.
    pub content_type: String,
    /// How many bytes it has.
    pub size: u64,
}

/// A result without its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultView {
    /// Its content type.
    pub content_type: String,
    /// How many bytes it has.
    pub size: u64,
}

/// The suspension of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SuspensionView {
    /// The suspension.
    pub suspension_id: SuspensionId,
    /// Why it was suspended.
    pub reason: SuspendReason,
    /// The condition that resumes it.
    pub condition: Condition,
    /// Where its signals arrive.
    pub waitpoint_ids: Vec<WaitpointId>,
    /// The name that asked for it, as the worker says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Whether an operator may resume it.
    pub allow_operator_resume: bool,
    /// Since when.
    pub suspended_at: i64,
    /// When it gives up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<i64>,
    /// What happens when its time is up.
    pub timeout_behavior: TimeoutBehavior,
    /// The question for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The JSON schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<JsonText>,
    /// The people the question is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignees: Vec<String>,
    /// The signals that have counted so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signed: Vec<SignedView>,
}

/// A signal that counts for a suspension, and the name behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignedView {
    /// The signal.
    pub signal_id: SignalId,
    /// Its name.
    pub name: String,
    /// The name behind it: of an API token, of the person that such a token vouches for, or `waitpoint_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it was accepted.
    pub at: i64,
    /// Where it arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
}

/// A lease, present or past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseView {
    /// Its id, which is part of its holder's proof; shown to operators only.
    #[serde(default, skip_serializing_if = "LeaseId::is_nil")]
    pub lease_id: LeaseId,
    /// Which lease of the execution it is.
    pub epoch: LeaseEpoch,
    /// Which attempt it runs.
    pub attempt: AttemptIndex,
    /// The worker's logical name.
    pub worker_id: String,
    /// The very process.
    pub instance_id: String,
    /// When it was taken.
    pub acquired_at: i64,
    /// When it runs out, while it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<LeaseEnd>,
    /// The build of the worker's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

/// One attempt with its leases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttemptView {
    /// From 0, without gaps.
    pub index: AttemptIndex,
    /// Why it was started.
    pub kind: AttemptKind,
    /// The worker that held its last lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The build of the worker that held its last lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// When its first lease was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<AttemptOutcome>,
    /// The reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The category of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
    /// Its leases, oldest first.
    pub leases: Vec<LeaseView>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventView {
    /// Unique, and growing within a partition; a repeat has the same one.
    pub event_id: String,
    /// When it happened.
    pub happened_at: i64,
    /// The event.
    pub event: Event,
}

/// Work that a claim hands out, with everything the worker needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Task {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its namespace.
    pub namespace: String,
    /// Its lane.
    pub lane: String,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Its priority.
    pub priority: i64,
    /// Its tags.
    pub tags: Tags,
    /// The input as it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Content>,
    /// Whether the claim began an attempt or took one up.
    pub claim_kind: ClaimKind,
    /// To be shown with every call about this task.
    pub fence: LeaseFence,
    /// When the lease runs out, in the store's time.
    pub lease_expires_at: i64,
    /// How long the lease lasts without a renewal.
    pub lease_ttl_ms: i64,
    /// How much time under a lease the attempt has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_timeout_left_ms: Option<i64>,
    /// When the execution expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<i64>,
    /// Retries so far.
    pub retry_count: u32,
    /// The cause that let it go on, where the claim takes up an attempt that had parted from its worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_by: Option<crate::execution::ResumeCause>,
    /// The signals that resumed it.
    pub resume_signals: Vec<ResumeSignal>,
    /// The continuation that its suspension, or its wait for children, left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Content>,
    /// The number of the attempt's next stream frame.
    pub next_frame_sequence: u64,
    /// Which journal the attempt writes to: a replay begins a new one.
    #[serde(default)]
    pub generation: u32,
    /// The journal: steps that the function has already done; absent before its first lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journal>,
    /// The model to use in this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_tier: Option<FallbackTier>,
    /// The flow it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The submitter's trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<String>,
}
