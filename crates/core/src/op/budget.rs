//! Budgets, and the usage that is reported against them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::budget::{
    BudgetChange, BudgetDefinition, BudgetStatus, BudgetTemplate, CalendarWindow, Enforcement, HardAction, Limits,
    SoftAction,
};
use crate::error::{Error, Result};
use crate::id::{CommandId, ExecutionId};
use crate::lease::LeaseFence;
use crate::op::parts::{self, NamedRemoval, NamespacePage, Removed};
use crate::op::{Created, Minting, operation};
use crate::text;
use crate::usage::ReportUsageResult;

operation! {
    /// Creates a budget. The same definition again is the same budget, another one a conflict.
    CreateBudget(CreateBudgetArgs) -> CreateBudgetOutcome,
    "create_budget" Post "/v1/budgets" Operator administrative validated namespaced creates
}

/// The arguments of `create_budget`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateBudgetArgs {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The kind of thing it is for: `team`, `user`, `flow`.
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
    /// Usage returns to nothing with each day or month of the calendar; instead of `reset_interval_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarWindow>,
    /// Usage counts for so long after it was spent and leaves bit by bit; instead of `reset_interval_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_ms: Option<i64>,
    /// A child of its own for each value of a tag, as `tag:customer`: a charge of an execution that names this budget and has
    /// the tag counts in the child as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// The definition that those children are made with, by their first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<BudgetTemplate>,
}

/// The answer to `create_budget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateBudgetOutcome {
    /// It was created.
    Created,
    /// It existed before, with the same definition.
    AlreadyExists,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateBudgetOutcome);

impl CreateBudgetOutcome {
    /// The budget, if this call created it.
    pub fn created(&self) -> Created {
        if *self == Self::Created { Created::AsNamed } else { Created::Nothing }
    }
}

impl CreateBudgetArgs {
    /// The definition of the budget.
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
            calendar: self.calendar.clone(),
            rolling_ms: self.rolling_ms.unwrap_or(default.rolling_ms),
            per: self.per.clone(),
            template: self.template.clone(),
            ..default
        }
    }

    /// Refuses bad names and definitions.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.definition().validate()
    }
}

operation! {
    /// Shows a budget: usage, limits, breaches.
    GetBudget(GetBudgetArgs) -> BudgetStatus,
    "get_budget" Get "/v1/budgets/{name}" Reader validated namespaced
}

/// The arguments of `get_budget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetBudgetArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl GetBudgetArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Shows a budget and everything that stands under it, by name.
    GetBudgetTree(GetBudgetTreeArgs) -> GetBudgetTreeOutcome,
    "get_budget_tree" Get "/v1/budgets/{name}/tree" Reader validated namespaced
}

/// Which tree is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetBudgetTreeArgs {
    /// The budget at its top.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Most to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetBudgetTreeOutcome {
    /// The budgets in the order of their paths, so that each comes behind those it stands under.
    pub items: Vec<BudgetStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl GetBudgetTreeArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Lists budgets by name.
    ListBudgets(NamespacePage) -> ListBudgetsOutcome,
    "list_budgets" Get "/v1/budgets" Reader validated filtered namespaced
}

/// The answer to `list_budgets`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListBudgetsOutcome {
    /// The budgets.
    pub items: Vec<BudgetStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Replaces the limits of a budget; a raised limit releases what was blocked.
    SetBudgetLimits(SetBudgetLimitsArgs) -> BudgetStatus,
    "set_budget_limits" Put "/v1/budgets/{name}/limits" Operator administrative validated namespaced
}

/// The arguments of `set_budget_limits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetBudgetLimitsArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The limits of the dimensions named; others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, Limits>,
}

impl SetBudgetLimitsArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Changes how a budget acts; what is not named stays. A raised limit releases what was blocked.
    UpdateBudget(UpdateBudgetArgs) -> BudgetStatus,
    "update_budget" Put "/v1/budgets/{name}" Operator administrative validated namespaced
}

/// The arguments of `update_budget`. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateBudgetArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The limits of the dimensions named; others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dimensions: BTreeMap<String, Limits>,
    /// Whether limits bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// What happens at a hard limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_hard: Option<HardAction>,
    /// What happens past a soft limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_soft: Option<SoftAction>,
    /// Usage returns to nothing this often, counted from this call; 0 is never. A calendar ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_interval_ms: Option<i64>,
    /// Usage returns to nothing with each day or month of the calendar, instead of an interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarWindow>,
    /// Usage counts for so long after it was spent, instead of an interval; 0 is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_ms: Option<i64>,
    /// The definition of its children by tag. Children that no person has changed follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<BudgetTemplate>,
}

impl UpdateBudgetArgs {
    /// The change of the budget's definition.
    pub fn change(&self) -> BudgetChange {
        BudgetChange {
            dimensions: self.dimensions.clone(),
            enforcement: self.enforcement,
            on_hard: self.on_hard,
            on_soft: self.on_soft,
            reset_interval_ms: self.reset_interval_ms,
            calendar: self.calendar.clone(),
            rolling_ms: self.rolling_ms,
            template: self.template.clone(),
        }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Deletes a budget. While executions that have not ended are charged to it, that takes `force`; they wait then until
    /// a budget of this name exists again.
    DeleteBudget(NamedRemoval) -> Removed,
    "delete_budget" Delete "/v1/budgets/{name}" Operator administrative validated namespaced keyed
}

operation! {
    /// Charges usage to a budget.
    ReportBudgetUsage(ReportBudgetUsageArgs) -> ReportUsageResult,
    "report_budget_usage" Post "/v1/budgets/{name}/usage" Operator validated with_roles namespaced identified("dedup_key")
}

/// The arguments of `report_budget_usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportBudgetUsageArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The amounts that were spent, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<String, i64>,
    /// The same key counts once; an empty key is none. With a fence it belongs to the execution, without to the
    /// budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
    /// The execution it was spent on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// A lease of that execution the caller holds or held; an operator needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<LeaseFence>,
}

impl ReportBudgetUsageArgs {
    /// A caller with a lease, present or past, may report as a worker; any other caller must be an operator.
    pub fn role(&self) -> Role {
        if self.fence.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses bad names, empty reports and amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.dedup_key.as_deref(), "dedup_key", text::optional_label)?;
        if self.fence.is_some() && self.execution_id.is_none() {
            return Err(Error::invalid("execution_id", "must be given with a fence"));
        }
        parts::usage(&self.usage)
    }

    /// Makes the report count once, however often it is sent.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.dedup_key.get_or_insert_with(|| minting.unique());
    }
}

// Usage is accounting: it counts once for each dedup key, also when the lease is lost.
operation! {
    /// Charges what an attempt has spent to every budget of its execution that counts the dimension.
    ReportUsage(ReportUsageArgs) -> ReportUsageOutcome,
    "report_usage" Post "/v1/executions/{execution_id}/usage" Worker validated identified("dedup_key")
}

/// The arguments of `report_usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportUsageArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// A lease the caller holds or held.
    pub fence: LeaseFence,
    /// The amounts that were spent, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<String, i64>,
    /// Only this one of its budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// The same key counts once; an empty key is none. It belongs to the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
}

/// The answer to `report_usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReportUsageOutcome {
    /// The result for each budget, by name.
    pub budgets: BTreeMap<String, ReportUsageResult>,
}

impl ReportUsageArgs {
    /// Refuses empty reports and amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.budget.as_deref(), "budget", text::budget_name)?;
        parts::optional(self.dedup_key.as_deref(), "dedup_key", text::optional_label)?;
        parts::usage(&self.usage)
    }

    /// Makes the report count once, however often it is sent.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.dedup_key.get_or_insert_with(|| minting.unique());
    }
}

operation! {
    /// Sets the usage of a budget back to nothing and releases what was blocked.
    ResetBudget(ResetBudgetArgs) -> ResetBudgetOutcome,
    "reset_budget" Post "/v1/budgets/{name}/reset" Operator administrative validated namespaced identified("command_id")
}

/// The arguments of `reset_budget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResetBudgetArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The same id means the same reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer to `reset_budget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResetBudgetOutcome {
    /// When it was reset.
    pub reset_at: i64,
    /// When it resets by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reset_at: Option<i64>,
}

impl ResetBudgetArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}
