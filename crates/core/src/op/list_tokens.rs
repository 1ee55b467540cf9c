//! Lists API tokens by name, without their secrets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::ApiTokenInfo;
use crate::error::Result;
use crate::op::operation;
use crate::op::parts;

operation! {
    /// Lists API tokens by name, without their secrets.
    ListTokens "list_tokens" Get "/v1/admin/tokens" Admin validated
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListTokensArgs")]
pub struct Args {
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListTokensOutcome")]
pub struct Outcome {
    /// The tokens.
    pub items: Vec<ApiTokenInfo>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
