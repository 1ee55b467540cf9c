//! Sets the usage of a budget back to nothing and releases what was blocked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::id::CommandId;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Sets the usage of a budget back to nothing and releases what was blocked.
    ResetBudget "reset_budget" Post "/v1/budgets/{name}/reset" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ResetBudgetArgs")]
pub struct Args {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The same id means the same reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResetBudgetOutcome")]
pub struct Outcome {
    /// When it was reset.
    pub reset_at: i64,
    /// When it resets by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reset_at: Option<i64>,
}

impl Args {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
