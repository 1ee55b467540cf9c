//! Creates a budget. The same definition again is the same budget, another one a conflict.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::{BudgetDefinition, Enforcement, HardAction, Limits, SoftAction};
use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::text;

operation! {
    /// Creates a budget. The same definition again is the same budget, another one a conflict.
    CreateBudget "create_budget" Post "/v1/budgets" Operator administrative validated
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateBudgetArgs")]
pub struct Args {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What kind of thing it is for: `team`, `user`, `flow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_type: Option<String>,
    /// Which one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// The dimensions that usage is reported in, with their limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, Limits>,
    /// Whether limits bind; `enforce` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// What happens at a hard limit; `block` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_hard: Option<HardAction>,
    /// What happens past a soft limit; `warn` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_soft: Option<SoftAction>,
    /// Usage returns to nothing this often; never when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_interval_ms: Option<i64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[schemars(rename = "CreateBudgetOutcome")]
pub enum Outcome {
    /// It is there.
    Created,
    /// It was there before, with the same definition.
    AlreadyExists,
}

impl Args {
    /// What the budget will be.
    pub fn definition(&self) -> BudgetDefinition {
        let default = BudgetDefinition::default();
        BudgetDefinition {
            scope_type: self.scope_type.clone().unwrap_or_default(),
            scope_id: self.scope_id.clone().unwrap_or_default(),
            dimensions: self.dimensions.clone(),
            enforcement: self.enforcement.unwrap_or(default.enforcement),
            on_hard: self.on_hard.unwrap_or(default.on_hard),
            on_soft: self.on_soft.unwrap_or(default.on_soft),
            reset_interval_ms: self.reset_interval_ms.unwrap_or(default.reset_interval_ms),
            ..default
        }
    }

    /// Refuses bad names and definitions.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.definition().validate()
    }
}
