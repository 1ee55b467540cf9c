//! Signs new waitpoint tokens with a new secret; the old one verifies for the grace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::op::operation;
use crate::op::parts::Secret;
use crate::token::RotateWaitpointSecretResult;

operation! {
    /// Signs new waitpoint tokens with a new secret; the old one verifies for the grace.
    RotateWaitpointSecret "rotate_waitpoint_secret" Post "/v1/admin/rotate-waitpoint-secret" Admin administrative
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RotateWaitpointSecretArgs")]
pub struct Args {
    /// The name of the new secret.
    pub new_kid: String,
    /// The new secret, in hex.
    pub new_secret_hex: Secret,
    /// How long the old one verifies; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<i64>,
}

/// The answer.
pub type Outcome = RotateWaitpointSecretResult;
