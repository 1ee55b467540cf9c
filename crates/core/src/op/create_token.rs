//! Creates an API token. Its secret is shown once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::{ApiTokenInfo, Role};
use crate::error::Result;
use crate::limits;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::Secret;
use crate::text;

operation! {
    /// Creates an API token. Its secret is shown once.
    CreateToken "create_token" Post "/v1/admin/tokens" Admin administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateTokenArgs")]
pub struct Args {
    /// Its name; audit records carry it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where; `*` is everywhere, the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// How long it works; until it is revoked when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreateTokenOutcome")]
pub struct Outcome {
    /// What is kept of it.
    pub token: ApiTokenInfo,
    /// To be sent as `Authorization: Bearer`.
    pub secret: Secret,
}

impl Args {
    /// Refuses bad names and lives out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        let life = |life_ms| text::within("expires_in_ms", life_ms, 1..=limits::DURATION_MAX_MS);
        self.expires_in_ms.map_or(Ok(()), life)
    }
}
