//! Releases the lease until signals, a timeout or an operator resume the attempt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::encoding::{Blob, JsonText};
use crate::error::{Error, Result};
use crate::id::{ExecutionId, SuspensionId, WaitpointId};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::{Content, Secret};
use crate::suspension::{ResumeSignal, SuspendReason, TimeoutBehavior};
use crate::text;

operation! {
    /// Releases the lease until signals, a timeout or an operator resume the attempt.
    Suspend "suspend" Post "/v1/executions/{execution_id}/suspend" Worker validated body(crate::op::parts::body_for(limits::CONTINUATION_MAX_BYTES))
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SuspendArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// What resumes it.
    pub condition: Condition,
    /// Why it is suspended.
    pub reason: SuspendReason,
    /// When it gives up; the policy's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// What happens then; the policy's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_behavior: Option<TimeoutBehavior>,
    /// What the next claim gets back. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub continuation: Option<JsonText>,
    /// The same as bytes; not both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_base64: Option<Blob>,
    /// What the bytes are; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_content_type: Option<String>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Whether an operator may resume it; yes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_operator_resume: Option<bool>,
    /// Pending waitpoints to wait on; a fresh one when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waitpoint_ids: Vec<WaitpointId>,
    /// The name of the fresh waitpoint; `wpk:<id>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_key: Option<String>,
    /// What exactly is waited for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The same key means the same suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "SuspendOutcome")]
pub enum Outcome {
    /// The lease is released.
    Suspended {
        /// The suspension.
        suspension_id: SuspensionId,
        /// Where signals arrive.
        waitpoint_id: WaitpointId,
        /// The same by name.
        waitpoint_key: String,
        /// Who has it may signal.
        token: Secret,
        /// When it gives up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<i64>,
    },
    /// Buffered signals satisfy the condition: the lease is kept.
    AlreadySatisfied {
        /// The suspension that was over before it began.
        suspension_id: SuspensionId,
        /// The waitpoint.
        waitpoint_id: WaitpointId,
        /// The same by name.
        waitpoint_key: String,
        /// Its token.
        token: Secret,
        /// The signals that satisfied it.
        resume_signals: Vec<ResumeSignal>,
    },
}

impl Args {
    /// The bytes of the continuation, if any.
    pub fn continuation(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "continuation",
            json: self.continuation.as_ref(),
            base64: self.continuation_base64.as_ref(),
            content_type: self.continuation_content_type.as_deref(),
            max_bytes: limits::CONTINUATION_MAX_BYTES,
        }
        .content()
    }

    /// Refuses what no suspension could keep.
    pub fn validate(&self) -> Result<()> {
        self.continuation()?;
        self.condition.validate()?;
        parts::optional(self.requested_by.as_deref(), "requested_by", text::label)?;
        parts::optional(self.waitpoint_key.as_deref(), "waitpoint_key", text::label)?;
        parts::optional(self.detail.as_deref(), "detail", text::text)?;
        parts::optional(self.idempotency_key.as_deref(), "idempotency_key", text::label)?;
        parts::at_most("waitpoint_ids", self.waitpoint_ids.len(), limits::WAITPOINTS_MAX)?;
        if !self.waitpoint_ids.is_empty() && self.waitpoint_key.is_some() {
            return Err(Error::invalid("waitpoint_key", "names a fresh waitpoint, waitpoint_ids pending ones"));
        }
        let timeout = |timeout_ms| text::within("timeout_ms", timeout_ms, 1..=limits::DURATION_MAX_MS);
        self.timeout_ms.map_or(Ok(()), timeout)
    }
}
