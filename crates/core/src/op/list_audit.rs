//! Lists administrative acts, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::audit::AuditView;
use crate::error::{Code, Error, Result};
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Lists administrative acts, newest first.
    ListAudit "list_audit" Get "/v1/admin/audit" Admin validated filtered
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ListAuditArgs")]
pub struct Args {
    /// Only in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only by this caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Only this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListAuditOutcome")]
pub struct Outcome {
    /// The acts.
    pub items: Vec<AuditView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Args {
    /// Refuses operations that do not exist and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.who.as_deref(), "who", text::label)?;
        if let Some(operation) = &self.what {
            let administrative = crate::op::OPERATIONS.iter().filter(|known| known.administrative);
            let valid: Vec<&str> = administrative.map(|known| known.name).collect();
            if !valid.contains(&operation.as_str()) {
                let detail = format!("{operation:?} is no administrative operation");
                return Err(Error::new(Code::InvalidFilter, detail).with("field", "what").with("valid", valid));
            }
        }
        parts::page(self.limit)
    }
}
