//! Budgets: how much of something (tokens, cents, calls) may be used, and what happens at the limit. Reports of usage
//! are accounting; admission reads the budget and refuses while it is used up. Amounts that are held before they are
//! spent ([`spend`]) take the same room as used amounts.

use std::collections::{BTreeMap, BTreeSet};

use crate::encoding::{Blob, Document};
use crate::error::{Error, Result};
use crate::gate::{Defined, Parked, definition_conflict};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::usage::ReportUsageResult;
use crate::{document, limits, text};

mod breach;
mod calendar;
mod definition;
mod estimate;
mod path;
mod question;
mod rolling;
mod spend;
mod status;
mod template;

pub use breach::Breaches;
pub use calendar::{CalendarUnit, CalendarWindow};
pub use definition::{BudgetChange, BudgetDefinition, Enforcement, HardAction, Limits, SoftAction};
pub use path::{Path, Reserve, ReserveRequest, Settled, charged_together, names_to, parent_of, root_of};
pub use question::{BudgetAnswer, BudgetQuestion, BudgetQuestionView};
pub use rolling::WindowPart;
pub use spend::{Amounts, ClosedWindow, SpendRefusal, Standing};
pub use status::BudgetStatus;
pub use template::{BudgetTemplate, segment_of};

use definition::{definition_digest, validate_dimensions};

/// Why a budget refuses admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// The first dimension that is used up.
    pub dimension: String,
    /// The amount that is used and held.
    pub current: i64,
    /// The part of it that reservations hold.
    pub reserved: i64,
    /// Its hard limit.
    pub limit: i64,
    /// When usage returns to nothing by itself. In a rolling window: when there is room again unless more is spent.
    pub next_reset_at: Option<i64>,
}

document! {
    /// A budget.
    pub struct Budget {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// Its limits as they are now.
        "d" definition: BudgetDefinition,
        /// A digest of the definition it was created with, once its limits were changed: repeating the create is
        /// then still the same create.
        "o" original: Blob,
        /// The usage since the last reset, by dimension.
        "u" usage: BTreeMap<String, i64>,
        /// Dimensions in which a report was refused since the last reset or raised limit.
        "x" exhausted: BTreeSet<String>,
        /// Reports that met a hard limit, ever.
        "b" breach_count: u64,
        /// Reports that left usage past a soft limit, ever.
        "s" soft_breach_count: u64,
        /// When a hard limit was last met; 0 is never.
        "l" last_breach_at: i64,
        /// In which dimension.
        "ld" last_breach_dimension: String,
        /// When it was created.
        "c" created_at: i64,
        /// When usage returns to nothing by itself; 0 is never.
        "r" next_reset_at: i64,
        /// When it last changed.
        "t" updated_at: i64,
        /// Where executions wait for it.
        "p" parked_in: Parked,
        /// The amounts that reservations hold in this window, by dimension.
        "rv" reserved: Amounts,
        /// The amounts spent in this window beyond their reservations, by dimension.
        "ov" overrun: Amounts,
        /// When this window began; 0 is with the budget. No two windows of a budget began at the same instant, so that a
        /// reservation names its window by it.
        "w" window_began_at: i64,
        /// The window before this one; reservations that it counts may still be settled.
        "pw" previous: ClosedWindow,
        /// Reservations that were refused, ever.
        "rf" refused_count: u64,
        /// The amounts a person granted on top of the hard limits, in this window only.
        "g" granted: Amounts,
        /// The question for people in this window.
        "q" question: BudgetQuestion,
        /// A person said no: the question is not asked again in this window.
        "dc" declined: bool,
        /// The usage of a rolling window, in parts that leave one after the other, the oldest first. Their sum is the
        /// usage.
        "wp" parts: Vec<WindowPart>,
        /// Until when the answer of a person counts in a rolling window; 0: there is none.
        "au" answered_until: i64,
        /// Tells this budget from those that had its name before; reservations of those count nothing here.
        "in" incarnation: u64,
        /// It was made by its first use: it follows the template of the budget above it, and is removed when it is
        /// idle.
        "ft" from_template: bool,
        /// When the last charge was made to a child that was made by its first use.
        "us" used_at: i64,
        /// The limits it has passed, for subscribers.
        "br" breaches: Breaches,
        /// The smallest estimates that executions wait with because they did not fit, by the dimension that had no room.
        "aw" awaited: Amounts,
    }
}

impl Document for Budget {
    const KIND: u8 = kind::BUDGET;
    crate::encoding::compiled_here!();
}

impl Indexed for Budget {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let key = self.key();
        let listing = index::listing(kind::BUDGET, &self.namespace);
        let mut entries = vec![Entry { index: listing, member: key.clone(), score: index::name_score(&self.name) }];
        if let Some(at) = self.due_at() {
            entries.push(Due::Timer.entry(&key, at));
        }
        let root = path::root_of(&self.name);
        if root != self.name {
            let under = index::budgets_under(&self.namespace, root);
            entries.push(Entry { index: under, member: key.clone(), score: index::name_score(&self.name) });
        }
        if self.question.is_open() {
            let asks = index::asks(&self.namespace);
            entries.push(Entry { index: asks, member: key, score: self.question.asked_at });
        }
        entries
    }
}

impl Budget {
    /// The key of a budget by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::BUDGET, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// Defines a budget. The same definition again changes nothing, another one is refused.
    pub fn define(
        existing: Option<&Budget>,
        (namespace, name): (&str, &str),
        definition: BudgetDefinition,
        now: i64,
    ) -> Result<Defined<Budget>> {
        text::name("namespace", namespace)?;
        text::budget_name("name", name)?;
        definition.validate()?;
        definition.validate_name_of_parent(name)?;
        let Some(existing) = existing else {
            let mut budget = Budget {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                definition,
                created_at: now,
                updated_at: now,
                ..Default::default()
            };
            budget.next_reset_at = budget.reset_after(now);
            return Ok(Defined::Created(budget));
        };
        let original = !existing.original.is_empty() && *existing.original == definition_digest(&definition);
        if original || existing.definition == definition {
            return Ok(Defined::AlreadyExists);
        }
        if existing.from_template {
            let mut own = existing.clone();
            own.from_template = false;
            own.redefine(definition, now);
            return Ok(Defined::Created(own));
        }
        Err(definition_conflict("budget", name))
    }

    /// Counts usage, or names the limit that is in the way. A reset that is due happens first.
    pub fn report(&mut self, usage: &BTreeMap<String, i64>, now: i64) -> Result<ReportUsageResult> {
        self.check_usage(usage, now)?;
        let now = self.mark_updated(now);
        self.come_due(now);
        let enforce = self.definition.enforcement == Enforcement::Enforce;
        let over = |hard: i64, used: i64| hard != 0 && used > hard;
        let passing: Vec<String> = usage
            .iter()
            .filter(|&(dimension, delta)| *delta > 0 && over(self.hard(dimension), self.taken(dimension) + delta))
            .map(|(dimension, _)| dimension.clone())
            .collect();
        if passing.is_empty() || !enforce {
            self.count(usage, now);
        }
        if let Some(dimension) = passing.first() {
            self.breach_count += 1;
            self.last_breach_at = now;
            self.last_breach_dimension.clone_from(dimension);
            let (current, limit) = (self.taken(dimension), self.hard(dimension));
            let answer = ReportUsageResult::HardBreach { dimension: dimension.clone(), current, limit };
            passing.iter().for_each(|dimension| self.passed_hard(dimension, now));
            // A held amount may come back, so it takes room while it is held but exhausts no dimension.
            let spent = |dimension: &String| over(self.hard(dimension), self.used(dimension) + usage[dimension]);
            let spent: Vec<String> = passing.into_iter().filter(spent).collect();
            self.exhausted.extend(spent);
            // A dimension stays exhausted until some usage leaves the window, so the window must have a part that
            // leaves: at least this one.
            self.newest_part(now);
            return Ok(answer);
        }
        let over_soft =
            |&(dimension, delta): &(&String, &i64)| *delta > 0 && over(self.soft(dimension), self.used(dimension));
        let passed: Vec<&String> = usage.iter().filter(over_soft).map(|(dimension, _)| dimension).collect();
        let Some(dimension) = passed.first() else { return Ok(ReportUsageResult::Ok) };
        passed.iter().for_each(|dimension| self.passed_soft(dimension, now));
        self.soft_breach_count += 1;
        if self.definition.on_soft == SoftAction::None {
            return Ok(ReportUsageResult::Ok);
        }
        let (current, limit) = (self.used(dimension), self.soft(dimension));
        Ok(ReportUsageResult::SoftBreach { dimension: (*dimension).clone(), current, limit })
    }

    /// Whether a report with this answer was counted, and so uses up its dedup key.
    pub fn counted(&self, answer: &ReportUsageResult) -> bool {
        match answer {
            ReportUsageResult::Ok | ReportUsageResult::SoftBreach { .. } => true,
            ReportUsageResult::HardBreach { .. } => self.definition.enforcement == Enforcement::Observe,
            ReportUsageResult::AlreadyApplied | ReportUsageResult::Unknown(_) => false,
        }
    }

    /// Refuses while a dimension is exhausted or at its hard limit.
    pub fn admit(&self) -> Result<(), BudgetRefusal> {
        if self.definition.enforcement == Enforcement::Observe {
            return Ok(());
        }
        let Some(dimension) = self.used_up().next() else { return Ok(()) };
        Err(BudgetRefusal {
            dimension: dimension.to_owned(),
            current: self.taken(dimension),
            reserved: self.reserved(dimension),
            limit: self.hard(dimension),
            next_reset_at: self.opens_at(),
        })
    }

    /// Changes the limits of the named dimensions and adds those that are new; the others stay. A dimension whose
    /// hard limit rises or goes away is no longer exhausted.
    pub fn set_limits(&mut self, dimensions: &BTreeMap<String, Limits>, now: i64) -> Result<()> {
        validate_dimensions(dimensions)?;
        let mut merged = self.definition.dimensions.clone();
        merged.extend(dimensions.iter().map(|(dimension, limits)| (dimension.clone(), limits.clone())));
        validate_dimensions(&merged)?;
        if merged == self.definition.dimensions {
            return Ok(());
        }
        self.from_template = false;
        let definition = BudgetDefinition { dimensions: merged, ..self.definition.clone() };
        self.redefine(definition, now);
        Ok(())
    }

    /// Changes the named settings and leaves the rest: limits as [`Budget::set_limits`] does, and how the budget acts
    /// on them. Another reset interval counts from now.
    pub fn update(&mut self, change: &BudgetChange, now: i64) -> Result<()> {
        let mut definition = self.definition.clone();
        definition.dimensions.extend(change.dimensions.clone());
        definition.enforcement = change.enforcement.unwrap_or(definition.enforcement);
        definition.on_hard = change.on_hard.unwrap_or(definition.on_hard);
        definition.on_soft = change.on_soft.unwrap_or(definition.on_soft);
        definition.template = change.template.clone().or(definition.template);
        if change.reset_interval_ms.is_some() || change.calendar.is_some() || change.rolling_ms.is_some() {
            definition.reset_interval_ms = change.reset_interval_ms.unwrap_or(0);
            definition.calendar.clone_from(&change.calendar);
            definition.rolling_ms = change.rolling_ms.unwrap_or(0);
        }
        definition.validate()?;
        if definition == self.definition {
            return Ok(());
        }
        self.from_template = false;
        self.redefine(definition, now);
        Ok(())
    }

    /// Takes over a definition that was validated. A dimension whose hard limit rises or goes away is no longer exhausted,
    /// and another interval counts from now.
    fn redefine(&mut self, definition: BudgetDefinition, now: i64) {
        let now = self.mark_updated(now);
        if self.original.is_empty() && !self.from_template {
            self.original = definition_digest(&self.definition).to_vec().into();
        }
        for (dimension, new) in &definition.dimensions {
            if self.definition.dimensions.get(dimension).is_none_or(|known| known == new) {
                continue;
            }
            if new.hard == 0 || new.hard > self.limit(dimension) {
                self.exhausted.remove(dimension);
                self.answered(dimension);
            }
            self.breaches.limit_changed(dimension);
        }
        let window = |of: &BudgetDefinition| (of.reset_interval_ms, of.calendar.clone(), of.rolling_ms != 0);
        let another_window = window(&self.definition) != window(&definition);
        self.definition = definition;
        if another_window {
            self.next_reset_at = self.reset_after(now);
        }
        self.roll_from_now(now);
        if !self.asks_people() {
            self.question = BudgetQuestion::default();
        }
    }

    /// Called by the timer: a reset happens if its time has come, and usage that is too old leaves a rolling window.
    /// Returns whether something changed.
    pub fn come_due(&mut self, now: i64) -> bool {
        self.roll(now) || self.reset_if_due(now)
    }

    /// The instant at which the timer must check the budget.
    pub fn due_at(&self) -> Option<i64> {
        let reset_at = (self.next_reset_at != 0).then_some(self.next_reset_at);
        let window = if self.is_rolling() { self.rolls_at() } else { reset_at };
        let looks = [window, self.idle_at(), self.question.look_at(), self.breaches.retry_at()];
        looks.into_iter().flatten().min()
    }

    /// Sets usage to nothing and starts the interval anew; returns the instant of the next reset.
    pub fn reset(&mut self, now: i64) -> Option<i64> {
        let now = self.mark_updated(now);
        self.begin_window(now);
        self.next_reset_at = self.reset_after(now);
        (self.next_reset_at != 0).then_some(self.next_reset_at)
    }

    /// Called by the timer: resets if the time has come, and returns whether it had. Several intervals that passed
    /// unseen make one reset, and the next reset is at the instant at which it would have been anyway.
    pub fn reset_if_due(&mut self, now: i64) -> bool {
        if !self.reset_is_due(now) {
            return false;
        }
        let began_at = self.mark_updated(now);
        self.begin_window(began_at);
        if self.definition.calendar.is_some() {
            self.next_reset_at = self.reset_after(now);
            return true;
        }
        let interval = self.definition.reset_interval_ms.max(1);
        let missed = (now - self.next_reset_at) / interval;
        self.next_reset_at = self.next_reset_at.saturating_add(interval.saturating_mul(missed + 1));
        true
    }

    /// How many parked executions are worth waking: none while the budget refuses or asks, and never more than there
    /// are units left, or than the smallest waiting estimate fits into the room that is left.
    pub fn release_count(&self) -> u64 {
        if self.definition.enforcement == Enforcement::Observe {
            return u64::MAX;
        }
        // An answer releases every execution that waits; those that still do not fit ask anew.
        if self.definition.on_hard == HardAction::Ask {
            return if self.question.is_open() { 0 } else { u64::MAX };
        }
        if self.admit().is_err() {
            return 0;
        }
        let left = |dimension: &String| match self.hard(dimension) {
            0 => u64::MAX,
            hard => u64::try_from((hard - self.taken(dimension)) / self.next_share(dimension)).unwrap_or(0),
        };
        self.definition.dimensions.keys().map(left).min().unwrap_or(u64::MAX)
    }

    /// Whether it refused before and admits now, so that parked work must be woken. A release or a settlement below the
    /// reserved amount opens a budget as a reset does.
    pub fn opened_since(&self, before: &Budget) -> bool {
        let answered = before.question.is_open() && !self.question.is_open();
        let admits = self.admit().is_ok() && !self.question.is_open();
        answered || (admits && (before.admit().is_err() || self.has_room_since(before)))
    }

    /// The usage of a dimension since the last reset.
    pub fn used(&self, dimension: &str) -> i64 {
        self.usage.get(dimension).copied().unwrap_or(0)
    }

    /// Dimensions that were exhausted by a refused report or stand at their hard limit.
    fn used_up(&self) -> impl Iterator<Item = &str> {
        let used_up = |name: &&String| {
            let hard = self.hard(name);
            self.exhausted.contains(*name) || (hard != 0 && self.taken(name) >= hard)
        };
        self.definition.dimensions.keys().filter(used_up).map(String::as_str)
    }

    /// The hard limit of a dimension in this window, granted amounts included; 0 is none.
    fn hard(&self, dimension: &str) -> i64 {
        match self.limit(dimension) {
            0 => 0,
            limit => limit + self.granted.get(dimension).copied().unwrap_or(0),
        }
    }

    fn limit(&self, dimension: &str) -> i64 {
        self.definition.dimensions.get(dimension).map_or(0, |limits| limits.hard)
    }

    fn soft(&self, dimension: &str) -> i64 {
        self.definition.dimensions.get(dimension).map_or(0, |limits| limits.soft)
    }

    fn check_usage(&self, usage: &BTreeMap<String, i64>, now: i64) -> Result<()> {
        if usage.is_empty() {
            return Err(Error::invalid("usage", "must name at least one dimension").with("problem", "empty"));
        }
        for (dimension, &delta) in usage {
            if !self.definition.dimensions.contains_key(dimension) {
                let known: Vec<&String> = self.definition.dimensions.keys().collect();
                let detail = format!("names {dimension:?}, which the budget {} does not have", self.name);
                return Err(Error::invalid("usage", detail).with("dimension", dimension).with("known", known));
            }
            text::within(&format!("usage.{dimension}"), delta, 0..=limits::USAGE_MAX)?;
            let taken = if self.reset_is_due(now) { 0 } else { self.taken(dimension) };
            if taken + delta > limits::SCORE_MAX {
                return Err(sum_too_large(&format!("usage.{dimension}")));
            }
        }
        Ok(())
    }

    fn count(&mut self, usage: &BTreeMap<String, i64>, now: i64) {
        self.used_by_charge(now);
        if let Some(part) = self.newest_part(now) {
            spend::add(&mut part.usage, usage, 1);
        }
        spend::add(&mut self.usage, usage, 1);
    }

    /// Records a charge, so that a child that was made by its first use does not count as idle.
    fn used_by_charge(&mut self, now: i64) {
        if self.from_template {
            self.used_at = self.used_at.max(now);
        }
    }

    fn reset_is_due(&self, now: i64) -> bool {
        self.next_reset_at != 0 && now >= self.next_reset_at
    }

    fn reset_after(&self, now: i64) -> i64 {
        match self.definition.reset_interval_ms {
            0 => self.definition.calendar.as_ref().and_then(|calendar| calendar.next_after(now)).unwrap_or(0),
            interval => now.saturating_add(interval),
        }
    }

    /// Time never goes back within a document.
    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

fn sum_too_large(field: &str) -> Error {
    let detail = format!("would bring the sum past {}; reset the budget first", limits::SCORE_MAX);
    Error::invalid(field, detail).with("problem", "out_of_range")
}

#[cfg(test)]
mod tests;
