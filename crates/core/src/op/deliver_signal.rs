//! Delivers a signal to a waitpoint. Its token is all the authority it takes; an operator needs none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::encoding::{Blob, JsonText};
use crate::error::{Error, Result};
use crate::id::{ExecutionId, SignalId, WaitpointId};
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::{Content, Secret};
use crate::signal::SignalOutcome;
use crate::text;

operation! {
    /// Delivers a signal to a waitpoint. Its token is all the authority it takes; an operator needs none.
    DeliverSignal "deliver_signal" Post "/v1/executions/{execution_id}/signal" Operator validated with_roles body(crate::op::parts::body_for(limits::SIGNAL_PAYLOAD_MAX_BYTES))
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeliverSignalArgs")]
pub struct Args {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The waitpoint; an operator may leave it out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waitpoint_id: Option<WaitpointId>,
    /// The waitpoint's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// What the signal is called; conditions match it.
    pub name: String,
    /// What kind of signal it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What kind of sender it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// Who sends it; conditions may count distinct senders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_identity: Option<String>,
    /// What it carries. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// The same as bytes; not both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Blob>,
    /// What the bytes are; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The same key means the same signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// An id the caller minted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_id: Option<SignalId>,
    /// What it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// When its sender made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// How long the resumed execution waits before it is eligible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_delay_ms: Option<i64>,
}

/// The answer.
pub type Outcome = SignalOutcome;

impl Args {
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

    /// With a token anybody may signal; without one, an operator.
    pub fn role(&self) -> Role {
        if self.token.is_some() { Role::Reader } else { Role::Operator }
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
}
