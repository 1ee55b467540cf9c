//! A budget as answers show it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Amounts, Budget, BudgetDefinition, BudgetQuestionView, ClosedWindow, Standing};

/// A budget as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BudgetStatus {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its limits and what happens at them.
    pub definition: BudgetDefinition,
    /// The usage since the last reset, for every dimension.
    pub usage: BTreeMap<String, i64>,
    /// Dimensions that are used up.
    pub exhausted: Vec<String>,
    /// Reports that met a hard limit, ever.
    pub breach_count: u64,
    /// Reports that left usage past a soft limit, ever.
    pub soft_breach_count: u64,
    /// When a hard limit was last met.
    pub last_breach_at: Option<i64>,
    /// In which dimension.
    pub last_breach_dimension: Option<String>,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
    /// When usage returns to nothing by itself.
    pub next_reset_at: Option<i64>,
    /// Reservations that were refused, ever.
    #[serde(default)]
    pub refused_count: u64,
    /// When the present window began: with the budget, or with its last reset.
    #[serde(default)]
    pub window_began_at: i64,
    /// The amounts used, held and left, for every dimension, with a forecast.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub standing: BTreeMap<String, Standing>,
    /// The amounts a person granted on top of the hard limits, in this window only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub granted: Amounts,
    /// The open question for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<BudgetQuestionView>,
    /// A person said no, and the question is not asked again in this window.
    #[serde(default)]
    pub declined: bool,
    /// The window before this one, with what was settled in it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_window: Option<ClosedWindow>,
    /// It was made by its first use: it follows the template of the budget above it, and leaves when it is idle and empty.
    #[serde(default)]
    pub from_template: bool,
}

impl Budget {
    /// The view of the budget at an instant.
    pub fn status(&self, now: i64) -> BudgetStatus {
        if self.is_rolling() {
            let mut rolled = self.clone();
            if rolled.roll(now) {
                return rolled.status(now);
            }
        }
        let some = |at: i64| (at != 0).then_some(at);
        BudgetStatus {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            definition: self.definition.clone(),
            usage: self.definition.dimensions.keys().map(|name| (name.clone(), self.used(name))).collect(),
            exhausted: self.used_up().map(str::to_owned).collect(),
            breach_count: self.breach_count,
            soft_breach_count: self.soft_breach_count,
            last_breach_at: some(self.last_breach_at),
            last_breach_dimension: some(self.last_breach_at).map(|_| self.last_breach_dimension.clone()),
            created_at: self.created_at,
            updated_at: self.updated_at,
            next_reset_at: some(self.next_reset_at),
            refused_count: self.refused_count,
            window_began_at: self.window(),
            standing: self.definition.dimensions.keys().map(|name| (name.clone(), self.standing(name, now))).collect(),
            granted: self.granted.clone(),
            question: self.question_view(),
            declined: self.declined,
            previous_window: (self.previous.ended_at != 0).then(|| self.previous.clone()),
            from_template: self.from_template,
        }
    }
}
