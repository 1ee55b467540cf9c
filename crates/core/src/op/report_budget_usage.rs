//! Charges usage to a budget.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::error::{Error, Result};
use crate::id::ExecutionId;
use crate::lease::LeaseFence;
use crate::op::operation;
use crate::op::parts;
use crate::text;
use crate::usage::ReportUsageResult;

operation! {
    /// Charges usage to a budget.
    ReportBudgetUsage "report_budget_usage" Post "/v1/budgets/{name}/usage" Operator validated with_roles
}

/// What the call says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReportBudgetUsageArgs")]
pub struct Args {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What was spent, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<String, i64>,
    /// The same key counts once; an empty key is none. With a fence it belongs to the execution, without to the
    /// budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// What it was spent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// A lease of that execution the caller holds or held; an operator needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<LeaseFence>,
}

/// The answer.
pub type Outcome = ReportUsageResult;

impl Args {
    /// Whoever has or had a lease may report; everybody else must be an operator.
    pub fn role(&self) -> Role {
        if self.fence.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses bad names, empty reports and amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.dedup_key.as_deref(), "dedup_key", text::optional_label)?;
        if self.fence.is_some() && self.execution_id.is_none() {
            return Err(Error::invalid("execution_id", "must be given with a fence"));
        }
        parts::usage(&self.usage)
    }
}
