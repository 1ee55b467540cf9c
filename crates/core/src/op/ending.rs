//! How a lease holder ends its turn: for good, until an instant, until children end, or until a signal.

use crate::op::Minting;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::encoding::{Blob, JsonText};
use crate::error::{Error, Result};
use crate::execution::FailOutcome;
use crate::id::{ExecutionId, SuspensionId, WaitpointId};
use crate::journal::{NewEntries, RunNotes, StepEntry, StepIdentity};
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts::{self, Content, Secret};
use crate::state::PublicState;
use crate::suspension::{Ask, ResumeSignal, SuspendReason, TimeoutBehavior};
use crate::{limits, text};

operation! {
    /// Ends the attempt, and with it the execution, with a result.
    Complete(CompleteArgs) -> CompleteOutcome,
    "complete" Post "/v1/executions/{execution_id}/complete" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CompleteArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The result. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// The result as bytes; not beside `result`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
    /// Findings of the holder about the journal while its function ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunNotes>,
}
crate::newer::open_struct!(CompleteArgs);

/// The answer to `complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompleteOutcome {
    /// `completed`.
    pub public_state: PublicState,
    /// When it ended.
    pub completed_at: i64,
}

impl CompleteArgs {
    /// The bytes of the result, if any.
    pub fn result(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "result",
            json: self.result.as_ref(),
            base64: self.result_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::RESULT_MAX_BYTES,
        }
        .content()
    }

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses a result that is too large, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.run.as_ref().map_or(Ok(()), |run| parts::object("run", run.validate()))?;
        self.result().map(drop)
    }
}

operation! {
    /// Ends the attempt in failure; the policy decides whether there is another.
    Fail(FailArgs) -> FailOutcome,
    "fail" Post "/v1/executions/{execution_id}/fail" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `fail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FailArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The reason of the failure.
    pub reason: String,
    /// The category of the failure; the policy names the categories that are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// How long to wait before a retry, instead of the policy's backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<i64>,
    /// The failed journal entry that ends the attempt: a retry runs it again, and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<StepIdentity>,
    /// Completed steps that a compensation has undone, and these compensations: a retry runs them again, too. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<StepIdentity>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
    /// Findings of the holder about the journal while its function ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunNotes>,
}
crate::newer::open_struct!(FailArgs);

impl FailArgs {
    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses texts and waits that are too long, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.run.as_ref().map_or(Ok(()), |run| parts::object("run", run.validate()))?;
        parts::at_most("undone", self.undone.len(), limits::STEPS_NAMED_MAX)?;
        self.cause.as_ref().map_or(Ok(()), |step| parts::object("cause", step.validate()))?;
        parts::items("undone", &self.undone, StepIdentity::validate)?;
        if (self.cause.is_some() || !self.undone.is_empty()) && self.first_number.is_none() {
            return Err(Error::invalid("first_number", "must say where the journal is when steps run again"));
        }
        text::text("reason", &self.reason)?;
        parts::optional(self.category.as_deref(), "category", text::label)?;
        parts::optional_number(self.retry_after_ms, "retry_after_ms", text::duration_ms)
    }
}

operation! {
    /// Releases the lease; the same attempt continues at or after an instant.
    Delay(DelayArgs) -> DelayOutcome,
    "delay" Post "/v1/executions/{execution_id}/delay" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `delay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DelayArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The instant; this or `delay_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The time from now; this or `until`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}
crate::newer::open_struct!(DelayArgs);

/// The answer to `delay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DelayOutcome {
    /// When it may be claimed again.
    pub at: i64,
}

impl DelayArgs {
    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses neither, both, and what is out of range.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        match (self.until, self.delay_ms) {
            (Some(until), None) => text::instant("until", until),
            (None, Some(delay_ms)) => text::duration_ms("delay_ms", delay_ms),
            _ => Err(Error::invalid("until", "or delay_ms must be given, not both")),
        }
    }
}

operation! {
    /// Releases the lease; the same attempt continues when the children it spawned have ended.
    WaitChildren(WaitChildrenArgs) -> WaitChildrenOutcome,
    "wait_children" Post "/v1/executions/{execution_id}/wait-children" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `wait_children`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct WaitChildrenArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// Handed to the next claim. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub continuation: Option<JsonText>,
    /// The continuation as bytes; not beside `continuation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_content_type: Option<String>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}
crate::newer::open_struct!(WaitChildrenArgs);

impl WaitChildrenArgs {
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

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses a continuation that is too large or given twice, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.continuation().map(drop)
    }
}

/// The answer to `wait_children`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitChildrenOutcome {
    /// How many it waits for; with none it is eligible at once.
    pub open_children: u32,
    /// Its state now.
    pub public_state: PublicState,
}

operation! {
    /// Releases the lease until signals, a timeout or an operator resume the attempt.
    Suspend(SuspendArgs) -> SuspendOutcome,
    "suspend" Post "/v1/executions/{execution_id}/suspend" Worker validated body(limits::BATCH_BODY_MAX_BYTES) identified("idempotency_key")
}

/// The arguments of `suspend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SuspendArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The condition that resumes it.
    pub condition: Condition,
    /// Why it is suspended.
    pub reason: SuspendReason,
    /// When it gives up; the policy's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// What happens when its time is up; the policy's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_behavior: Option<TimeoutBehavior>,
    /// Handed to the next claim. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub continuation: Option<JsonText>,
    /// The continuation as bytes; not beside `continuation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_content_type: Option<String>,
    /// The name that asked for it, as the worker says.
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
    /// A detail of the wait, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The question for people. With it the execution is in the list of approvals, as with the reason `approval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The JSON schema of the answer: a signal that counts must carry a payload that fits.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub schema: Option<JsonText>,
    /// The people the question is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assignees: Vec<String>,
    /// The same key means the same suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Journal entries that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}
crate::newer::open_struct!(SuspendArgs);

/// The answer to `suspend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum SuspendOutcome {
    /// The lease is released.
    Suspended {
        /// The suspension.
        suspension_id: SuspensionId,
        /// Where signals arrive.
        waitpoint_id: WaitpointId,
        /// The name of the waitpoint.
        waitpoint_key: String,
        /// A sender that has it may signal.
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
        /// The name of the waitpoint.
        waitpoint_key: String,
        /// Its token.
        token: Secret,
        /// The signals that satisfied it.
        resume_signals: Vec<ResumeSignal>,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(SuspendOutcome);

impl SuspendArgs {
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

    /// The question for people.
    pub fn ask(&self) -> Ask {
        Ask {
            question: self.question.clone().unwrap_or_default(),
            schema: self.schema.as_ref().map(|schema| schema.0.clone()).unwrap_or_default(),
            assignees: self.assignees.clone(),
        }
    }

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses what no suspension could keep, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.continuation()?;
        self.condition.validate()?;
        self.ask().validate()?;
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

    /// Names the suspension.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.idempotency_key.get_or_insert_with(|| minting.unique());
    }
}
