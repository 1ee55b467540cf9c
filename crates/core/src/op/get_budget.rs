//! Shows a budget: usage, limits, breaches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::BudgetStatus;
use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Shows a budget: usage, limits, breaches.
    GetBudget "get_budget" Get "/v1/budgets/{name}" Reader validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetBudgetArgs")]
pub struct Args {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The answer.
pub type Outcome = BudgetStatus;

impl Args {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
