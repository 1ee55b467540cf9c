//! API tokens.

use serde::{Deserialize, Serialize};

use crate::api_token::{ApiTokenInfo, Role, token_name};
use crate::error::Result;
use crate::op::parts::{self, Secret};
use crate::op::{Created, operation};
use crate::{limits, text};

operation! {
    /// Creates an API token. Its secret is shown once.
    CreateToken(CreateTokenArgs) -> CreateTokenOutcome,
    "create_token" Post "/v1/admin/tokens" Admin administrative validated namespaced keyed creates
}

/// The arguments of `create_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateTokenArgs {
    /// Its name; audit records carry it.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Where; `*` is everywhere, the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// How long it works; until it is revoked when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
    /// Signals that it delivers count for the `source_identity` they name: for a program that relays what people say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_assert_source: bool,
    /// The lanes it reaches: it submits to these, claims from these, and acts on what is in these; all when empty. The
    /// caller's own where the caller is limited to some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<String>,
}

/// The answer to `create_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateTokenOutcome {
    /// The token as lists show it.
    pub token: ApiTokenInfo,
    /// To be sent as `Authorization: Bearer`.
    pub secret: Secret,
}

impl CreateTokenOutcome {
    /// A token that was answered is a new one.
    pub fn created(&self) -> Created {
        Created::AsNamed
    }
}

impl CreateTokenArgs {
    /// Refuses bad and reserved names, and lives out of range.
    pub fn validate(&self) -> Result<()> {
        token_name(&self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::at_most("lanes", self.lanes.len(), limits::LANES_MAX)?;
        self.lanes.iter().try_for_each(|lane| text::name("lanes", lane))?;
        let life = |life_ms| text::within("expires_in_ms", life_ms, 1..=limits::DURATION_MAX_MS);
        self.expires_in_ms.map_or(Ok(()), life)
    }
}

operation! {
    /// Lists API tokens by name, without their secrets.
    ListTokens(ListTokensArgs) -> ListTokensOutcome,
    "list_tokens" Get "/v1/admin/tokens" Admin validated
}

/// The arguments of `list_tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListTokensArgs {
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListTokensOutcome {
    /// The tokens.
    pub items: Vec<ApiTokenInfo>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListTokensArgs {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}

operation! {
    /// Revokes an API token, everywhere within a second.
    RevokeToken(RevokeTokenArgs) -> RevokeTokenOutcome,
    "revoke_token" Delete "/v1/admin/tokens/{name}" Admin administrative validated
}

/// The arguments of `revoke_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RevokeTokenArgs {
    /// Its name.
    pub name: String,
}

/// The answer to `revoke_token`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RevokeTokenOutcome {
    /// It was good before.
    pub changed: bool,
}

impl RevokeTokenArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)
    }
}
