//! Says why an execution is not running.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::state::PublicState;
use crate::vocabulary;

operation! {
    /// Says why an execution is not running.
    ExplainExecution "explain_execution" Get "/v1/executions/{execution_id}/explain" Reader
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ExplainExecutionArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer.
pub type Outcome = Explanation;

/// Why an execution is not running, the nearest reason first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its state.
    pub public_state: PublicState,
    /// What holds it back; one that says it runs or has ended, otherwise.
    pub reasons: Vec<Reason>,
    /// When something changes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_change_at: Option<i64>,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Which.
    pub code: ReasonCode,
    /// The same for people, with names and numbers.
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
        /// A budget does not exist.
        BudgetNotFound "budget_not_found",
        /// A quota is full.
        QuotaFull "quota_full",
        /// A quota does not exist.
        QuotaNotFound "quota_not_found",
        /// Its lane gives out no work.
        LaneNotActive "lane_not_active",
        /// No live worker serves its lane.
        NoWorker "no_worker",
        /// No live worker can do what it requires.
        NoCapableWorker "no_capable_worker",
        /// It is granted to a worker.
        Granted "granted",
        /// Nothing holds it back; it waits for its turn.
        Queued "queued",
    }
}
