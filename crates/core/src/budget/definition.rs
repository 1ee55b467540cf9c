//! The definition of a budget: its limits, what happens at them, and when usage returns to nothing.

use std::collections::BTreeMap;

use super::{BudgetTemplate, CalendarWindow};
use crate::error::{Error, Result};
use crate::partition::digest16;
use crate::{document, limits, text, vocabulary};

vocabulary! {
    /// Whether limits bind.
    pub enum Enforcement {
        /// Usage past a hard limit is not counted, and admission is refused.
        Enforce "enforce",
        /// Everything is counted and nothing refused; breaches are reported.
        Observe "observe",
    }
}

vocabulary! {
    /// What happens to work whose budget is at a hard limit.
    pub enum HardAction {
        /// It waits for a reset or a raised limit.
        Block "block",
        /// It fails.
        Fail "fail",
        /// It is suspended.
        Suspend "suspend",
        /// It is suspended until a person grants more, raises the limit, or says no: one question for all that wait.
        Ask "ask",
    }
}

vocabulary! {
    /// What a report past a soft limit is answered with.
    pub enum SoftAction {
        /// `soft_breach`.
        Warn "warn",
        /// `ok`; the breach is only counted.
        None "none",
    }
}

document! {
    /// The limits of one dimension; 0 is none.
    pub api struct Limits {
        /// Usage never passes this one.
        "h" hard: i64,
        /// Usage past this one is worth a warning.
        "s" soft: i64,
    }
}

document! {
    /// The definition of a budget, as its creator wrote it.
    pub api struct BudgetDefinition {
        /// The kind of thing the budget is for (`team`, `user`, `flow`); free text, may be empty.
        "t" scope_type: String,
        /// Which one of them; may be empty.
        "i" scope_id: String,
        /// The dimensions that usage is reported in, with their limits.
        "d" dimensions: BTreeMap<String, Limits>,
        /// Whether limits bind.
        "e" enforcement: Enforcement = Enforcement::Enforce,
        /// What happens at a hard limit.
        "h" on_hard: HardAction = HardAction::Block,
        /// What happens past a soft limit.
        "s" on_soft: SoftAction = SoftAction::Warn,
        /// Usage returns to nothing this often; 0 is never.
        "r" reset_interval_ms: i64,
        /// Usage returns to nothing with each day or month of the calendar; instead of an interval.
        "c" calendar: Option<CalendarWindow>,
        /// Usage counts for so long after it was spent and leaves bit by bit; 0: it does not. Instead of an interval.
        "w" rolling_ms: i64,
        /// A child of its own for each value of a tag, as `tag:customer`. A charge of an execution that names this budget and
        /// has the tag counts in the child as well.
        "p" per: Option<String>,
        /// The definition that those children are made with, by their first use.
        "k" template: Option<BudgetTemplate>,
    }
}

impl BudgetDefinition {
    /// Refuses values that are out of bounds, and names the field.
    pub fn validate(&self) -> Result<()> {
        text::optional_label("scope_type", &self.scope_type)?;
        text::optional_label("scope_id", &self.scope_id)?;
        if self.reset_interval_ms != 0 {
            let range = limits::BUDGET_RESET_MIN_MS..=limits::DURATION_MAX_MS;
            text::within("reset_interval_ms", self.reset_interval_ms, range)?;
        }
        if let Some(calendar) = &self.calendar {
            calendar.validate()?;
            if self.reset_interval_ms != 0 {
                return Err(Error::invalid("calendar", "and reset_interval_ms exclude each other"));
            }
        }
        if self.rolling_ms != 0 {
            text::within("rolling_ms", self.rolling_ms, limits::BUDGET_RESET_MIN_MS..=limits::DURATION_MAX_MS)?;
            if self.reset_interval_ms != 0 || self.calendar.is_some() {
                return Err(Error::invalid("rolling_ms", "excludes reset_interval_ms and calendar"));
            }
        }
        self.validate_template()?;
        validate_dimensions(&self.dimensions)
    }
}

pub(super) fn validate_dimensions(dimensions: &BTreeMap<String, Limits>) -> Result<()> {
    if dimensions.is_empty() {
        return Err(Error::invalid("dimensions", "must name at least one dimension").with("problem", "empty"));
    }
    if dimensions.len() > limits::BUDGET_DIMENSIONS_MAX {
        return Err(text::too_many("dimensions", dimensions.len(), limits::BUDGET_DIMENSIONS_MAX));
    }
    for (dimension, Limits { hard, soft, .. }) in dimensions {
        text::name("dimensions", dimension)?;
        text::within(&format!("dimensions.{dimension}.hard"), *hard, 0..=limits::USAGE_MAX)?;
        let highest = if *hard == 0 { limits::USAGE_MAX } else { *hard };
        text::within(&format!("dimensions.{dimension}.soft"), *soft, 0..=highest)?;
    }
    Ok(())
}

/// A change of a budget's definition; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BudgetChange {
    /// The limits of the dimensions named; others stay.
    pub dimensions: BTreeMap<String, Limits>,
    /// Whether limits bind.
    pub enforcement: Option<Enforcement>,
    /// What happens at a hard limit.
    pub on_hard: Option<HardAction>,
    /// What happens past a soft limit.
    pub on_soft: Option<SoftAction>,
    /// Usage returns to nothing this often; 0 is never.
    pub reset_interval_ms: Option<i64>,
    /// Usage returns to nothing with each day or month, instead of an interval.
    pub calendar: Option<CalendarWindow>,
    /// Usage counts for so long, instead of an interval; 0 is for ever.
    pub rolling_ms: Option<i64>,
    /// The definition of its children by tag; those that no person has changed follow it.
    pub template: Option<BudgetTemplate>,
}

/// Tells definitions apart.
pub(super) fn definition_digest(definition: &BudgetDefinition) -> [u8; 16] {
    let bytes = rmp_serde::to_vec(definition).expect("definitions hold only types that msgpack can express");
    digest16(&[&bytes])
}
