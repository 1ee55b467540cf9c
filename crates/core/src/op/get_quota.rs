//! Shows a quota and how full it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::quota::QuotaStatus;
use crate::text;

operation! {
    /// Shows a quota and how full it is.
    GetQuota "get_quota" Get "/v1/quotas/{name}" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetQuotaArgs")]
pub struct Args {
    /// The quota.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The answer.
pub type Outcome = QuotaStatus;

impl Args {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
