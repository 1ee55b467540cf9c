//! Lists budgets by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::BudgetStatus;
use crate::op::operation;

operation! {
    /// Lists budgets by name.
    ListBudgets "list_budgets" Get "/v1/budgets" Reader validated filtered
}

/// What the call says.
pub use crate::op::parts::NamespacePage as Args;

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ListBudgetsOutcome")]
pub struct Outcome {
    /// The budgets.
    pub items: Vec<BudgetStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
