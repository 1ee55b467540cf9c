//! Quotas.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::parts::{self, NamedRemoval, NamespacePage, Removed};
use crate::op::{Created, operation};
use crate::quota::{QuotaChange, QuotaDefinition, QuotaStatus};
use crate::text;

operation! {
    /// Creates a quota. The same definition again is the same quota, another one a conflict.
    CreateQuota(CreateQuotaArgs) -> CreateQuotaOutcome,
    "create_quota" Post "/v1/quotas" Operator administrative validated namespaced creates
}

/// The arguments of `create_quota`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// The answer to `create_quota`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateQuotaOutcome {
    /// It was created.
    Created,
    /// It existed before, with the same definition.
    AlreadyExists,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateQuotaOutcome);

impl CreateQuotaOutcome {
    /// The quota, if this call created it.
    pub fn created(&self) -> Created {
        if *self == Self::Created { Created::AsNamed } else { Created::Nothing }
    }
}

impl CreateQuotaArgs {
    /// The definition of the quota.
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

/// The arguments of `get_quota`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// The answer to `list_quotas`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListQuotasOutcome {
    /// The quotas.
    pub items: Vec<QuotaStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Changes a quota; what is not named stays. A raised limit releases what was blocked.
    UpdateQuota(UpdateQuotaArgs) -> QuotaStatus,
    "update_quota" Put "/v1/quotas/{name}" Operator administrative validated namespaced
}

/// The arguments of `update_quota`. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateQuotaArgs {
    /// The quota.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The sliding window. Starts that are counted now count for a whole window of the new length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<u32>,
    /// Attempts that may start within it; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u32>,
    /// Attempts that may run at once; 0 is no limit. Attempts that started while there was no limit are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    /// How far the reopening of parked work is spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<i64>,
}

impl UpdateQuotaArgs {
    /// The change of the quota's definition.
    pub fn change(&self) -> QuotaChange {
        QuotaChange {
            window_seconds: self.window_seconds,
            max_requests: self.max_requests,
            max_concurrent: self.max_concurrent,
            jitter_ms: self.jitter_ms,
        }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Deletes a quota. While executions that have not ended run under it, that takes `force`; what has not started waits
    /// then until a quota of this name exists again.
    DeleteQuota(NamedRemoval) -> Removed,
    "delete_quota" Delete "/v1/quotas/{name}" Operator administrative validated namespaced keyed
}
