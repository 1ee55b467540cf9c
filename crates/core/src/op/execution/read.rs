//! Reading executions: one, many, what became of them, and why they are where they are.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::parts::Content;
use crate::op::view::{AttemptView, ExecutionView};
use crate::state::{PublicState, StateVector};
use crate::{limits, text, vocabulary};

operation! {
    /// Shows an execution.
    GetExecution(GetExecutionArgs) -> ExecutionView,
    "get_execution" Get "/v1/executions/{execution_id}" Reader
}

/// The arguments of `get_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

operation! {
    /// Shows the state of an execution.
    GetState(GetStateArgs) -> GetStateOutcome,
    "get_state" Get "/v1/executions/{execution_id}/state" Reader
}

/// The arguments of `get_state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetStateArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer to `get_state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetStateOutcome {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The one word people see.
    pub public_state: PublicState,
    /// The six dimensions behind it.
    pub state: StateVector,
}

operation! {
    /// Fetches the result of an execution: its bytes and their content type.
    GetResult(GetResultArgs) -> Content,
    "get_result" Get "/v1/executions/{execution_id}/result" Reader answers_bytes
}

/// The arguments of `get_result`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetResultArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

operation! {
    /// Fetches the input of an execution: its bytes and their content type. `no_input` when it was submitted without.
    GetInput(GetInputArgs) -> Content,
    "get_input" Get "/v1/executions/{execution_id}/input" Reader answers_bytes
}

/// The arguments of `get_input`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetInputArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

operation! {
    /// Waits until an execution has ended, or has changed where that is asked for, or the time is up.
    WaitExecution(WaitExecutionArgs) -> WaitExecutionOutcome,
    "wait_execution" Get "/v1/executions/{execution_id}/wait" Reader validated waits(wait_ms) watching
}

/// The arguments of `wait_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// How long; 30 seconds at the most and when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
    /// Not only for its end: until it has changed since this instant, its `updated_at` as the caller knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_after: Option<i64>,
}

/// The answer to `wait_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitExecutionOutcome {
    /// It has ended; otherwise the time was up, or it has changed.
    pub terminal: bool,
    /// The execution.
    pub execution: ExecutionView,
}

impl WaitExecutionArgs {
    /// Refuses waits that are too long.
    pub fn validate(&self) -> Result<()> {
        self.wait_ms.map_or(Ok(()), |wait_ms| text::within("wait_ms", wait_ms, 0..=limits::WAIT_MAX_MS))
    }
}

operation! {
    /// Says why an execution is not running.
    ExplainExecution(ExplainExecutionArgs) -> Explanation,
    "explain_execution" Get "/v1/executions/{execution_id}/explain" Reader
}

/// The arguments of `explain_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// Why an execution is not running, the nearest reason first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its state.
    pub public_state: PublicState,
    /// The reasons that hold it back; one that says it runs or has ended, otherwise.
    pub reasons: Vec<Reason>,
    /// When something changes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_change_at: Option<i64>,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reason {
    /// Which.
    pub code: ReasonCode,
    /// The reason in words, with names and numbers.
    pub message: String,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The names and numbers for programs.
    pub details: serde_json::Map<String, serde_json::Value>,
}

vocabulary! {
    /// Why an execution is not running.
    pub enum ReasonCode {
        /// It has ended.
        Terminal "terminal",
        /// It is running.
        Running "running",
        /// It waits for signals.
        Suspended "suspended",
        /// An operator holds it.
        HeldByOperator "held_by_operator",
        /// Its flow is being cancelled.
        FlowCancelled "flow_cancelled",
        /// An upstream has not ended.
        WaitingForUpstream "waiting_for_upstream",
        /// A child it spawned has not ended.
        WaitingForChild "waiting_for_child",
        /// Its delay has not passed.
        Delay "delay",
        /// The backoff before its retry has not passed.
        RetryBackoff "retry_backoff",
        /// The delay its resuming signal asked for has not passed.
        ResumeDelay "resume_delay",
        /// A budget is exhausted.
        BudgetExhausted "budget_exhausted",
        /// A budget has no room for its estimate now.
        EstimateTooLarge "estimate_too_large",
        /// A budget does not exist.
        BudgetNotFound "budget_not_found",
        /// A quota is full.
        QuotaFull "quota_full",
        /// A provider has no room before its turn.
        ProviderBusy "provider_busy",
        /// As many as allowed run under one of its concurrency keys.
        ConcurrencyKeyFull "concurrency_key_full",
        /// A quota does not exist.
        QuotaNotFound "quota_not_found",
        /// Its lane gives out no work.
        LaneNotActive "lane_not_active",
        /// No live worker serves its lane.
        NoWorker "no_worker",
        /// Workers live in its lane, and none of them serves its kind.
        KindNotServed "kind_not_served",
        /// No live worker can do what it requires.
        NoCapableWorker "no_capable_worker",
        /// It is pinned to a build that no live worker runs.
        PinnedToBuild "pinned_to_build",
        /// It is granted to a worker.
        Granted "granted",
        /// Nothing holds it back; it waits for its turn.
        Queued "queued",
        /// Its journal is being copied from the execution that it was forked from.
        CopyingJournal "copying_journal",
        /// A person must answer a question about its journal.
        DecisionNeeded "decision_needed",
    }
}

operation! {
    /// Lists the attempts of an execution with their leases, oldest first.
    ListAttempts(ListAttemptsArgs) -> ListAttemptsOutcome,
    "list_attempts" Get "/v1/executions/{execution_id}/attempts" Reader
}

/// The arguments of `list_attempts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListAttemptsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer to `list_attempts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListAttemptsOutcome {
    /// The attempts.
    pub items: Vec<AttemptView>,
}
