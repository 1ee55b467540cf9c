//! Waitpoints, their tokens, and the signals that arrive at them.

use crate::op::Minting;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::encoding::{Blob, JsonText};
use crate::error::{Error, Result};
use crate::id::{ExecutionId, SignalId, WaitpointId};
use crate::journal::StepIdentity;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts::{self, Content, Secret};
use crate::signal::SignalOutcome;
use crate::suspension::ResumeSignal;
use crate::token::RotateWaitpointSecretResult;
use crate::waitpoint::PendingWaitpointInfo;
use crate::{limits, text};

operation! {
    /// Opens a waitpoint before suspending; signals sent meanwhile are buffered.
    CreatePendingWaitpoint(CreatePendingWaitpointArgs) -> CreatePendingWaitpointOutcome,
    "create_pending_waitpoint" Post "/v1/executions/{execution_id}/waitpoints" Worker validated identified
}

/// The arguments of `create_pending_waitpoint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreatePendingWaitpointArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// An id the caller minted; the same id means the same waitpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
    /// Its name; `wpk:<id>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_key: Option<String>,
    /// How long it lasts unused; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
    /// The journal entry that its signal ends, for a `park` that comes later. Id, name and life follow from the entry,
    /// and asking again answers with the same waitpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepIdentity>,
}

/// The answer to `create_pending_waitpoint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreatePendingWaitpointOutcome {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The name of the waitpoint.
    pub waitpoint_key: String,
    /// A sender that has it may signal.
    pub token: Secret,
    /// When it closes unused; one of a journal entry stays until the entry has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

impl CreatePendingWaitpointArgs {
    /// Refuses keys and lives that are out of range.
    pub fn validate(&self) -> Result<()> {
        if let Some(step) = &self.step {
            parts::object("step", step.validate())?;
            if self.waitpoint_key.is_some() || self.waitpoint_id.is_some() || self.expires_in_ms.is_some() {
                return Err(Error::invalid("step", "decides the waitpoint's id, key and life; they go with none"));
            }
        }
        parts::optional(self.waitpoint_key.as_deref(), "waitpoint_key", text::label)?;
        let life = |life_ms| text::within("expires_in_ms", life_ms, 1..=limits::DURATION_MAX_MS);
        self.expires_in_ms.map_or(Ok(()), life)
    }

    /// Mints the id of the waitpoint, unless a journal entry decides it.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        if self.step.is_none() {
            let partition = self.execution_id.partition();
            self.waitpoint_id.get_or_insert_with(|| WaitpointId::in_partition(partition, &minting.fresh()));
        }
    }
}

operation! {
    /// Delivers a signal to a waitpoint. Its token is all the authority it takes; an operator needs none.
    DeliverSignal(DeliverSignalArgs) -> SignalOutcome,
    "deliver_signal" Post "/v1/executions/{execution_id}/signal" Operator validated with_roles audited own waitpoint_token body(crate::op::parts::body_for(limits::SIGNAL_PAYLOAD_MAX_BYTES)) identified("idempotency_key")
}

/// The arguments of `deliver_signal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeliverSignalArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint; an operator may leave it out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
    /// The waitpoint's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The name of the signal; conditions match it.
    pub name: String,
    /// The category of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The kind of sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// The sender; conditions may count distinct senders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_identity: Option<String>,
    /// The payload. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// The payload as bytes; not beside `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The same key means the same signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// An id the caller minted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_id: Option<SignalId>,
    /// The sender's own id for what the signal belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// When its sender made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// How long the resumed execution waits before it is eligible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_delay_ms: Option<i64>,
}

impl DeliverSignalArgs {
    /// The bytes of the payload, if any.
    pub fn payload(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "payload",
            json: self.payload.as_ref(),
            base64: self.payload_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::SIGNAL_PAYLOAD_MAX_BYTES,
        }
        .content()
    }

    /// A caller with the waitpoint's token needs no role; without it, a signal takes an operator and a decision an
    /// approver.
    pub fn role(&self) -> Role {
        parts::signal_role(self.token.is_some(), &self.name)
    }

    /// Every decision is on record, and every signal that was sent by the right of a role.
    pub fn is_audited(&self) -> bool {
        self.token.is_none() || parts::is_decision(&self.name)
    }

    /// Refuses what no waitpoint could keep.
    pub fn validate(&self) -> Result<()> {
        self.payload()?;
        text::label("name", &self.name)?;
        parts::optional(self.category.as_deref(), "category", text::optional_label)?;
        parts::optional(self.source_type.as_deref(), "source_type", text::optional_label)?;
        parts::optional(self.source_identity.as_deref(), "source_identity", text::optional_label)?;
        parts::optional(self.idempotency_key.as_deref(), "idempotency_key", text::optional_label)?;
        parts::optional(self.correlation_id.as_deref(), "correlation_id", text::optional_label)?;
        parts::optional_number(self.created_at, "created_at", text::instant)?;
        if self.token.is_some() && self.waitpoint_id.is_none() {
            return Err(Error::invalid("waitpoint_id", "must be given with a token"));
        }
        let delay = |delay_ms| text::within("resume_delay_ms", delay_ms, 0..=limits::RESUME_DELAY_MAX_MS);
        self.resume_delay_ms.map_or(Ok(()), delay)
    }

    /// Mints the id of the signal.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        if self.idempotency_key.is_none() {
            self.signal_id.get_or_insert_with(|| SignalId::mint(&minting.fresh()));
        }
    }
}

operation! {
    /// Lists the waitpoints of an execution that take signals, without their tokens.
    ListPendingWaitpoints(ListPendingWaitpointsArgs) -> ListPendingWaitpointsOutcome,
    "list_pending_waitpoints" Get "/v1/executions/{execution_id}/pending-waitpoints" Reader
}

/// The arguments of `list_pending_waitpoints`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListPendingWaitpointsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer to `list_pending_waitpoints`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListPendingWaitpointsOutcome {
    /// The waitpoints.
    pub items: Vec<PendingWaitpointInfo>,
}

operation! {
    /// Signs a waitpoint's token with the current secret. The answer must not be stored on its way.
    GetWaitpointToken(GetWaitpointTokenArgs) -> GetWaitpointTokenOutcome,
    "get_waitpoint_token" Get "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/token" Operator administrative
}

/// The arguments of `get_waitpoint_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetWaitpointTokenArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
}

/// The answer to `get_waitpoint_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetWaitpointTokenOutcome {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The name of the waitpoint.
    pub waitpoint_key: String,
    /// A sender that has it may signal.
    pub token: Secret,
    /// The secret that signed it.
    pub kid: String,
}

operation! {
    /// Closes a pending waitpoint; it takes no more signals.
    CloseWaitpoint(CloseWaitpointArgs) -> CloseWaitpointOutcome,
    "close_waitpoint" Post "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/close" Operator administrative
}

/// The arguments of `close_waitpoint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloseWaitpointArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
}

/// The answer to `close_waitpoint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CloseWaitpointOutcome {
    /// It was open before.
    pub changed: bool,
}

operation! {
    /// Lists the signals that resumed the current attempt.
    ListResumeSignals(ListResumeSignalsArgs) -> ListResumeSignalsOutcome,
    "list_resume_signals" Get "/v1/executions/{execution_id}/resume-signals" Reader
}

/// The arguments of `list_resume_signals`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListResumeSignalsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer to `list_resume_signals`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListResumeSignalsOutcome {
    /// The signals.
    pub items: Vec<ResumeSignal>,
}

operation! {
    /// Signs new waitpoint tokens with a new secret; the old one verifies for the grace.
    RotateWaitpointSecret(RotateWaitpointSecretArgs) -> RotateWaitpointSecretResult,
    "rotate_waitpoint_secret" Post "/v1/admin/rotate-waitpoint-secret" Admin administrative
}

/// The arguments of `rotate_waitpoint_secret`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RotateWaitpointSecretArgs {
    /// The name of the new secret.
    pub new_kid: String,
    /// The new secret, in hex.
    pub new_secret_hex: Secret,
    /// How long the old one verifies; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<i64>,
}
