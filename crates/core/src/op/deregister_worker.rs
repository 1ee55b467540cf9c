//! Removes a registration: by the process itself when it stops, or by an operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Removes a registration: by the process itself when it stops, or by an operator.
    DeregisterWorker "deregister_worker" Delete "/v1/workers/{instance_id}" Operator administrative validated with_roles
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeregisterWorkerArgs")]
pub struct Args {
    /// The very process.
    pub instance_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What it registered with; an operator sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DeregisterWorkerOutcome")]
pub struct Outcome {
    /// It was registered.
    pub changed: bool,
}

impl Args {
    /// A process may remove itself; everything else takes an operator.
    pub fn role(&self) -> Role {
        if self.nonce.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.nonce.as_deref(), "nonce", text::label)
    }
}
