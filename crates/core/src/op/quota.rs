//! Quotas.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::parts::{self, NamespacePage};
use crate::op::{Created, operation};
use crate::quota::{QuotaDefinition, QuotaStatus};
use crate::text;

operation! {
    /// Creates a quota. The same definition again is the same quota, another one a conflict.
    CreateQuota(CreateQuotaArgs) -> CreateQuotaOutcome,
    "create_quota" Post "/v1/quotas" Operator administrative validated namespaced creates
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateQuotaArgs {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The sliding window; 60 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<u32>,
    /// Attempts that may start within it; no limit when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Attempts that may run at once; no limit when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// How far the reopening of parked work is spread; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CreateQuotaOutcome {
    /// It is there.
    Created,
    /// It was there before, with the same definition.
    AlreadyExists,
}

impl CreateQuotaOutcome {
    /// The quota, if this call created it.
    pub fn created(&self) -> Created {
        if *self == Self::Created { Created::AsNamed } else { Created::Nothing }
    }
}

impl CreateQuotaArgs {
    /// What the quota will be.
    pub fn definition(&self) -> QuotaDefinition {
        let default = QuotaDefinition::default();
        QuotaDefinition {
            window_seconds: self.window_seconds.unwrap_or(default.window_seconds),
            max_requests: self.max_requests.unwrap_or(default.max_requests),
            max_concurrent: self.max_concurrent.unwrap_or(default.max_concurrent),
            jitter_ms: self.jitter_ms.unwrap_or(default.jitter_ms),
            ..default
        }
    }

    /// Refuses bad names and numbers out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.definition().validate()
    }
}

operation! {
    /// Shows a quota and how full it is.
    GetQuota(GetQuotaArgs) -> QuotaStatus,
    "get_quota" Get "/v1/quotas/{name}" Reader validated namespaced
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetQuotaArgs {
    /// The quota.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl GetQuotaArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Lists quotas by name.
    ListQuotas(NamespacePage) -> ListQuotasOutcome,
    "list_quotas" Get "/v1/quotas" Reader validated filtered namespaced
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListQuotasOutcome {
    /// The quotas.
    pub items: Vec<QuotaStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
