//! Revokes an API token, everywhere within a second.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::text;

operation! {
    /// Revokes an API token, everywhere within a second.
    RevokeToken "revoke_token" Delete "/v1/admin/tokens/{name}" Admin administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RevokeTokenArgs")]
pub struct Args {
    /// Its name.
    pub name: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RevokeTokenOutcome")]
pub struct Outcome {
    /// It was good before.
    pub changed: bool,
}

impl Args {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)
    }
}
