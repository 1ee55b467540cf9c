//! Cancels a flow; none of its members starts after the answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::flow::{CancelFlowPolicy, CancelFlowResult};
use crate::id::FlowId;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Cancels a flow; none of its members starts after the answer.
    CancelFlow "cancel_flow" Post "/v1/flows/{flow_id}/cancel" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CancelFlowArgs")]
pub struct Args {
    /// The flow.
    pub flow_id: FlowId,
    /// Which members it concerns; `cancel_all` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CancelFlowPolicy>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Answer when the members are cancelled, not when that is certain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wait: bool,
}

/// The answer.
pub type Outcome = CancelFlowResult;

impl Args {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
