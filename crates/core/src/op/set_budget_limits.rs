//! Replaces the limits of a budget; a raised limit releases what was blocked.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{BudgetStatus, Limits};
use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Replaces the limits of a budget; a raised limit releases what was blocked.
    SetBudgetLimits "set_budget_limits" Put "/v1/budgets/{name}/limits" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SetBudgetLimitsArgs")]
pub struct Args {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The limits of the dimensions named; others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, Limits>,
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
