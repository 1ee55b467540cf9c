//! Suspending a task until signals, a timeout or an operator resume it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ff_core::newer::Variant;
use ff_core::op::parts::Secret;
use ff_core::op::{Suspend, suspend};
use ff_core::{
    Condition, ConditionMatcher, JsonText, ResumeSignal, SuspendReason, SuspensionId, TimeoutBehavior, WaitpointId,
};
use serde::Serialize;

use super::ClaimedTask;
use super::ending::milliseconds;
use crate::error::{Result, SdkError};

/// A request to suspend: the condition that the task waits for, and for how long.
///
/// ```
/// use std::time::Duration;
/// use flowfabric::{SuspendReason, SuspendRequest, TimeoutBehavior};
/// let request = SuspendRequest::for_signal("approve", SuspendReason::Approval)
///     .timeout(Duration::from_secs(3600), TimeoutBehavior::Fail);
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing by itself"]
pub struct SuspendRequest {
    condition: Condition,
    reason: SuspendReason,
    timeout: Option<(Duration, TimeoutBehavior)>,
    continuation: Option<JsonText>,
    waitpoint_ids: Vec<WaitpointId>,
    waitpoint_key: Option<String>,
    detail: Option<String>,
    requested_by: Option<String>,
    allow_operator_resume: Option<bool>,
    question: Option<String>,
    schema: Option<JsonText>,
    assignees: Vec<String>,
    broken: Option<SdkError>,
}

impl SuspendRequest {
    /// Waits until a condition holds.
    pub fn until(condition: Condition, reason: SuspendReason) -> Self {
        Self {
            condition,
            reason,
            timeout: None,
            continuation: None,
            waitpoint_ids: Vec::new(),
            waitpoint_key: None,
            detail: None,
            requested_by: None,
            allow_operator_resume: None,
            question: None,
            schema: None,
            assignees: Vec::new(),
            broken: None,
        }
    }

    /// Waits for one signal of this name.
    pub fn for_signal(name: impl Into<String>, reason: SuspendReason) -> Self {
        Self::until(Condition::Any(vec![ConditionMatcher::named(name)]), reason)
    }

    /// Asks people: waits for a signal `approve`, and a `reject` ends it as well. The execution is shown in the list of
    /// open questions.
    ///
    /// ```
    /// use flowfabric::SuspendRequest;
    /// let request = SuspendRequest::question("Refund 40 EUR to Ann?").assignee("support").schema(
    ///     &serde_json::json!({ "type": "object", "required": ["amount"], "properties": { "amount": { "type": "number" } } }),
    /// );
    /// ```
    pub fn question(question: impl Into<String>) -> Self {
        let request = Self::for_signal(ff_core::suspension::APPROVE, SuspendReason::Approval);
        Self { question: Some(question.into()), ..request }
    }

    /// The JSON schema of the answer; an answer that does not fit is refused.
    pub fn schema(mut self, schema: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(schema) {
            Ok(text) => self.schema = Some(JsonText(text)),
            Err(source) => self.broken = Some(SdkError::Payload { what: "schema", source }),
        }
        self
    }

    /// A person the question is for; may be called several times.
    pub fn assignee(mut self, who: impl Into<String>) -> Self {
        self.assignees.push(who.into());
        self
    }

    /// How long the task waits, and what happens then.
    pub fn timeout(mut self, time: Duration, behavior: TimeoutBehavior) -> Self {
        self.timeout = Some((time, behavior));
        self
    }

    /// Data for the next claim, as JSON.
    pub fn continuation(mut self, continuation: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(continuation) {
            Ok(text) => self.continuation = Some(JsonText(text)),
            Err(source) => self.broken = Some(SdkError::Payload { what: "continuation", source }),
        }
        self
    }

    /// Waits on a pending waitpoint instead of a fresh one; may be called several times.
    pub fn on_waitpoint(mut self, waitpoint_id: WaitpointId) -> Self {
        self.waitpoint_ids.push(waitpoint_id);
        self
    }

    /// The name of the fresh waitpoint.
    pub fn waitpoint_key(mut self, key: impl Into<String>) -> Self {
        self.waitpoint_key = Some(key.into());
        self
    }

    /// A detail of the wait, for people.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The name of the requester.
    pub fn requested_by(mut self, who: impl Into<String>) -> Self {
        self.requested_by = Some(who.into());
        self
    }

    /// Whether an operator may resume it; yes unless switched off.
    pub fn allow_operator_resume(mut self, allow: bool) -> Self {
        self.allow_operator_resume = Some(allow);
        self
    }
}

/// The outcome of a suspension.
#[derive(Debug)]
pub enum SuspendOutcome {
    /// The lease is released.
    Suspended {
        /// The suspension.
        suspension_id: SuspensionId,
        /// Where signals arrive.
        waitpoint_id: WaitpointId,
        /// The name of the waitpoint.
        waitpoint_key: String,
        /// The token, which is the right to send a signal.
        token: Secret,
        /// When it gives up.
        timeout_at: Option<i64>,
    },
    /// Signals that came earlier satisfy the condition: the task goes on under the same lease.
    AlreadySatisfied {
        /// The task.
        task: Box<ClaimedTask>,
        /// The suspension that was over before it began.
        suspension_id: SuspensionId,
        /// Where the signals had arrived.
        waitpoint_id: WaitpointId,
        /// The name of the waitpoint.
        waitpoint_key: String,
        /// Its token.
        token: Secret,
        /// The signals.
        resume_signals: Vec<ResumeSignal>,
    },
    /// A newer server answered otherwise. The task has let go of its lease.
    Unknown(Variant),
}

impl ClaimedTask {
    /// Releases the lease until the condition holds; the same attempt continues then. Where the condition holds
    /// already, the task comes back. A request that is refused for its content fails the attempt, as every other way
    /// out does.
    pub async fn suspend(self, request: SuspendRequest) -> Result<SuspendOutcome> {
        Ok(match self.or_fail(self.end_with_suspension(request).await).await? {
            suspend::Outcome::Suspended { suspension_id, waitpoint_id, waitpoint_key, token, timeout_at } => {
                SuspendOutcome::Suspended { suspension_id, waitpoint_id, waitpoint_key, token, timeout_at }
            }
            suspend::Outcome::AlreadySatisfied {
                suspension_id,
                waitpoint_id,
                waitpoint_key,
                token,
                resume_signals,
            } => SuspendOutcome::AlreadySatisfied {
                task: Box::new(self),
                suspension_id,
                waitpoint_id,
                waitpoint_key,
                token,
                resume_signals,
            },
            suspend::Outcome::Unknown(variant) => SuspendOutcome::Unknown(variant),
        })
    }

    pub(crate) async fn end_with_suspension(&self, request: SuspendRequest) -> Result<suspend::Outcome> {
        if let Some(broken) = request.broken {
            return Err(broken);
        }
        let args = suspend::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            condition: request.condition,
            reason: request.reason,
            timeout_ms: request.timeout.map(|(time, _)| milliseconds(time)),
            timeout_behavior: request.timeout.map(|(_, behavior)| behavior),
            continuation: request.continuation,
            continuation_base64: None,
            continuation_content_type: None,
            requested_by: request.requested_by,
            allow_operator_resume: request.allow_operator_resume,
            waitpoint_ids: request.waitpoint_ids,
            waitpoint_key: request.waitpoint_key,
            detail: request.detail,
            question: request.question,
            schema: request.schema,
            assignees: request.assignees,
            idempotency_key: None,
            entries: Vec::new(),
            first_number: None,
        };
        let outcome = self.end::<Suspend>(args).await?;
        if matches!(outcome, suspend::Outcome::AlreadySatisfied { .. }) {
            self.ended.store(false, Ordering::Relaxed);
        }
        Ok(outcome)
    }
}
