//! Spending in two steps: an amount is held before it is spent, then what was really spent takes its place.
//!
//! At every commit **used − overrun + reserved ≤ hard** in every dimension that has a hard limit and was not lowered
//! meanwhile: a reservation is granted only while it fits beside everything used and held, and a settlement adds to
//! the used amount no more than it takes off the reserve, except for what it counts as overrun.
//!
//! A reservation belongs to the window that granted it. A settlement after a reset counts in that window and takes no
//! room of the present one. In a rolling window the amount counts from its settlement on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Budget, BudgetQuestion, Enforcement, sum_too_large};
use crate::document;
use crate::error::{Error, Result};
use crate::limits;
use crate::planted::{Bug, planted};
use crate::reservation::{CountedIn, Reservation, Settlement};

/// Amounts by dimension.
pub type Amounts = BTreeMap<String, i64>;

const HOUR_MS: i128 = 3_600_000;

document! {
    /// A window that is over.
    pub api struct ClosedWindow {
        /// When it began.
        "b" began_at: i64,
        /// When it ended; 0: there was none.
        "e" ended_at: i64,
        /// The usage in it.
        "u" usage: Amounts,
        /// The amounts that reservations of it hold which are not settled yet.
        "r" reserved: Amounts,
        /// The amounts spent in it beyond their reservations.
        "o" overrun: Amounts,
    }
}

/// Why a reservation was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpendRefusal {
    /// The budget that refused.
    pub budget: String,
    /// The first dimension that does not fit.
    pub dimension: String,
    /// The amount that was asked for.
    pub requested: i64,
    /// The amount that is left, beside everything used and held.
    pub left: i64,
    /// The hard limit.
    pub limit: i64,
    /// When usage returns to nothing by itself; of a rolling window when the amount fits unless more is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reset_at: Option<i64>,
}

/// How one dimension of a budget stands in the present window.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Standing {
    /// The amount that was used.
    pub used: i64,
    /// The amount that reservations hold.
    pub reserved: i64,
    /// The part of the used amount that was spent beyond its reservations.
    pub overrun: i64,
    /// The amount that can still be reserved; absent without a hard limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<i64>,
    /// The average usage an hour since the window began.
    pub per_hour: i64,
    /// The usage at the end of the window if it goes on like this; absent where the window never ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<i64>,
    /// When nothing is left, if it goes on like this and nothing resets it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exhausted_at: Option<i64>,
    /// When the oldest usage leaves a rolling window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_at: Option<i64>,
}

impl Budget {
    /// The amount of a dimension that reservations hold in this window.
    pub fn reserved(&self, dimension: &str) -> i64 {
        amount(&self.reserved, dimension)
    }

    /// The amount of a dimension spent in this window beyond its reservations.
    pub fn overrun(&self, dimension: &str) -> i64 {
        amount(&self.overrun, dimension)
    }

    /// Whether a reservation was made in this very budget, and not in one of its name that was removed since.
    pub fn counts_reservation(&self, reservation: &Reservation) -> bool {
        reservation.counted_in.get(&self.name).is_some_and(|counted| counted.incarnation == self.incarnation)
    }

    /// The amount of a dimension that is used and held in this window; limits are compared with it.
    pub fn taken(&self, dimension: &str) -> i64 {
        self.used(dimension) + self.reserved(dimension)
    }

    /// The amount of a dimension that can still be reserved; `None` without a hard limit.
    pub fn left(&self, dimension: &str) -> Option<i64> {
        match self.hard(dimension) {
            0 => None,
            hard => Some((hard - self.taken(dimension)).max(0)),
        }
    }

    /// The instant that names the present window.
    pub fn window(&self) -> i64 {
        if self.window_began_at == 0 { self.created_at } else { self.window_began_at }
    }

    /// Resets that are due happen before anything is held or settled.
    pub fn open_window(&mut self, now: i64) {
        let now = self.mark_updated(now);
        self.come_due(now);
    }

    /// The amounts that this budget counts.
    pub fn counted_amounts(&self, amounts: &Amounts) -> Amounts {
        let counts = |dimension: &String| self.definition.dimensions.contains_key(dimension);
        amounts.iter().filter(|(name, _)| counts(name)).map(|(name, amount)| (name.clone(), *amount)).collect()
    }

    /// Whether amounts fit beside what is used and held. Sums that could no longer be counted exactly are an error.
    pub fn room_for(&self, amounts: &Amounts) -> Result<Result<(), SpendRefusal>> {
        for (dimension, &requested) in amounts {
            if self.taken(dimension) + requested > limits::SCORE_MAX {
                return Err(sum_too_large(&format!("amounts.{dimension}")));
            }
        }
        let enforce = self.definition.enforcement == Enforcement::Enforce;
        let unseen = |name: &str| if planted(Bug::ReserveUnchecked) { self.reserved(name) } else { 0 };
        let limited =
            amounts.iter().filter_map(|(name, &requested)| Some((name, requested, self.left(name)? + unseen(name))));
        let refused = limited.filter(|_| enforce).find(|(_, requested, left)| *requested > 0 && requested > left);
        Ok(match refused {
            None => Ok(()),
            Some((dimension, requested, left)) => Err(SpendRefusal {
                budget: self.name.clone(),
                dimension: dimension.clone(),
                requested,
                left,
                limit: self.hard(dimension),
                next_reset_at: self.fits_at(dimension, requested),
            }),
        })
    }

    /// Counts a refusal.
    pub fn refused(&mut self, dimension: &str, now: i64) {
        self.refused_count += 1;
        self.last_breach_at = self.mark_updated(now);
        dimension.clone_into(&mut self.last_breach_dimension);
        self.passed_hard(dimension, now);
    }

    /// Holds amounts that fit, and says how they are counted.
    pub fn hold(&mut self, all: &Amounts, now: i64) -> CountedIn {
        let held = self.counted_amounts(all);
        let now = self.mark_updated(now);
        self.used_by_charge(now);
        add(&mut self.reserved, &held, 1);
        let held = (held != *all).then_some(held);
        CountedIn { window: self.window(), incarnation: self.incarnation, held, ..Default::default() }
    }

    /// Counts what became of a reservation: what was really spent instead of what it held, or had counted as spent.
    /// Answers with the overrun.
    pub fn settle(&mut self, reservation: &Reservation, settlement: Settlement, actual: &Amounts, now: i64) -> Amounts {
        let Some(counted) = reservation.counted_in.get(&self.name) else { return Amounts::new() };
        let held = counted.held.as_ref().unwrap_or(&reservation.amounts);
        let mut actual = self.counted_amounts(actual);
        actual.retain(|_, spent| *spent != 0);
        let overrun: Amounts = actual
            .iter()
            .map(|(dimension, spent)| (dimension.clone(), spent - amount(held, dimension)))
            .filter(|(_, over)| *over > 0)
            .collect();
        let now = self.mark_updated(now);
        self.used_by_charge(now);
        let before: Amounts = actual.keys().map(|dimension| (dimension.clone(), self.used(dimension))).collect();
        if self.is_rolling() && self.counts(counted) {
            let part = match settlement {
                Settlement::Settle => self.newest_part(now),
                Settlement::Correct => self.parts.iter_mut().find(|part| part.ends_at == counted.part),
                Settlement::Nothing => None,
            };
            // An amount that has left the window by now is not corrected any more.
            let Some(part) = part else { return overrun };
            if settlement == Settlement::Correct {
                add(&mut part.usage, held, -1);
            }
            add(&mut part.usage, &actual, 1);
            add(&mut part.overrun, &overrun, 1);
        }
        let Some((usage, reserved, over)) = self.counters(counted) else { return overrun };
        match settlement {
            Settlement::Settle => add(reserved, held, -1),
            Settlement::Correct => add(usage, held, -1),
            Settlement::Nothing => return overrun,
        }
        add(usage, &actual, 1);
        add(over, &overrun, 1);
        let over_soft = |dimension: &&String| {
            let soft = self.soft(dimension);
            soft != 0 && self.used(dimension) > soft
        };
        let passed: Vec<&String> = before.keys().filter(over_soft).collect();
        let news = passed.iter().any(|dimension| before[*dimension] <= self.soft(dimension));
        passed.iter().for_each(|dimension| self.passed_soft(dimension, now));
        for dimension in before.keys() {
            let hard = self.hard(dimension);
            if hard != 0 && self.used(dimension) > hard {
                self.passed_hard(dimension, now);
            }
        }
        if news {
            self.soft_breach_count += 1;
        }
        overrun
    }

    /// Refuses amounts that could no longer be counted exactly.
    pub fn check_actual(&self, actual: &Amounts) -> Result<()> {
        for (dimension, spent) in actual {
            if self.taken(dimension) + spent > limits::SCORE_MAX {
                return Err(sum_too_large(&format!("actual.{dimension}")));
            }
        }
        Ok(())
    }

    /// Refuses dimensions that the budget does not have.
    pub fn check_dimensions(&self, field: &str, amounts: &Amounts) -> Result<()> {
        let Some(unknown) = amounts.keys().find(|name| !self.definition.dimensions.contains_key(*name)) else {
            return Ok(());
        };
        let known: Vec<&String> = self.definition.dimensions.keys().collect();
        let detail = format!("names {unknown:?}, which the budget {} does not have", self.name);
        Err(Error::invalid(field, detail).with("dimension", unknown).with("known", known))
    }

    /// Whether the present window counts a reservation.
    pub fn counts(&self, counted: &CountedIn) -> bool {
        counted.incarnation == self.incarnation && counted.window == self.window()
    }

    /// The counters of the window that counts a reservation: used, held and overrun. Those of windows before the previous
    /// one are gone, and so are those of a budget that had this name before.
    pub(super) fn counters(&mut self, counted: &CountedIn) -> Option<(&mut Amounts, &mut Amounts, &mut Amounts)> {
        if self.counts(counted) {
            return Some((&mut self.usage, &mut self.reserved, &mut self.overrun));
        }
        let same = counted.incarnation == self.incarnation;
        let previous = &mut self.previous;
        (same && previous.ended_at != 0 && previous.began_at == counted.window).then_some((
            &mut previous.usage,
            &mut previous.reserved,
            &mut previous.overrun,
        ))
    }

    /// Closes the present window and begins another. Reservations that the closed window held stay with it.
    pub(super) fn begin_window(&mut self, now: i64) {
        let began_at = self.window();
        self.previous = ClosedWindow {
            began_at,
            ended_at: now.max(began_at + 1),
            usage: std::mem::take(&mut self.usage),
            reserved: std::mem::take(&mut self.reserved),
            overrun: std::mem::take(&mut self.overrun),
            ..Default::default()
        };
        self.window_began_at = self.previous.ended_at;
        self.exhausted.clear();
        self.breaches.begin_window();
        self.granted.clear();
        self.question = BudgetQuestion::default();
        self.declined = false;
        self.parts.clear();
        self.answered_until = 0;
    }

    /// How a dimension stands, and where that leads at the pace of this window.
    pub(super) fn standing(&self, dimension: &str, now: i64) -> Standing {
        let (used, left) = (self.used(dimension), self.left(dimension));
        let mut elapsed = i128::from(now.max(self.updated_at) - self.window()).max(1);
        if self.is_rolling() {
            elapsed = elapsed.min(i128::from(self.definition.rolling_ms));
        }
        let at_pace = |ms: i64| i128::from(used) * i128::from(ms) / elapsed;
        let exact = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
        // A rolling window is full once, and after that as much leaves as comes.
        let full = self.window().saturating_add(self.definition.rolling_ms).max(now);
        let end = if self.is_rolling() { Some(full) } else { (self.next_reset_at != 0).then_some(self.next_reset_at) };
        let forecast = end.map(|end| exact(i128::from(used) + at_pace((end - now).max(0))));
        let exhausted_at = left.filter(|_| used > 0).map(|left| {
            let needed_ms = i128::from(left) * elapsed / i128::from(used);
            exact(i128::from(now) + needed_ms)
        });
        Standing {
            used,
            reserved: self.reserved(dimension),
            overrun: self.overrun(dimension),
            left,
            per_hour: exact(i128::from(used) * HOUR_MS / elapsed),
            forecast,
            exhausted_at: exhausted_at.filter(|at| end.is_none_or(|end| *at < end)),
            frees_at: self.frees_at(dimension),
        }
    }
}

pub(super) fn amount(amounts: &Amounts, dimension: &str) -> i64 {
    amounts.get(dimension).copied().unwrap_or(0)
}

/// Adds or takes off; what comes to nothing is left out.
pub(super) fn add(amounts: &mut Amounts, delta: &Amounts, sign: i64) {
    for (dimension, change) in delta.iter().filter(|(_, change)| **change != 0) {
        let sum = amount(amounts, dimension) + sign * change;
        if sum == 0 {
            amounts.remove(dimension);
        } else {
            amounts.insert(dimension.clone(), sum);
        }
    }
}
