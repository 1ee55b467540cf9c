//! Lists quotas by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::op::operation;
use crate::quota::QuotaStatus;

operation! {
    /// Lists quotas by name.
    ListQuotas "list_quotas" Get "/v1/quotas" Reader validated filtered
}

/// What the call says.
pub use crate::op::parts::NamespacePage as Args;

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListQuotasOutcome")]
pub struct Outcome {
    /// The quotas.
    pub items: Vec<QuotaStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
