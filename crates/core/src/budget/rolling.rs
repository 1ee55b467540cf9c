//! Rolling windows: usage counts for a span after it was spent. It is kept in parts of the span and leaves part by part,
//! each when the last of it is old enough: no span holds more than the limit, and room comes back at most one part late.

use super::Budget;
use super::spend::{Amounts, add, amount};
use crate::{document, limits};

document! {
    /// The usage in one part of a rolling window.
    pub struct WindowPart {
        /// All of it was spent before this instant.
        "e" ends_at: i64,
        /// The usage in it.
        "u" usage: Amounts,
        /// The amounts spent in it beyond their reservations.
        "o" overrun: Amounts,
    }
}

impl Budget {
    /// Whether usage leaves bit by bit, instead of all at once.
    pub fn is_rolling(&self) -> bool {
        self.definition.rolling_ms != 0
    }

    /// Usage that is old enough leaves a rolling window, and so does the answer of a person. Says whether something did.
    pub fn roll(&mut self, now: i64) -> bool {
        if !self.is_rolling() {
            return false;
        }
        let leaving = self.parts.iter().take_while(|part| self.leaves_at(part) <= now).count();
        let answer_ends = self.answered_until != 0 && self.answered_until <= now;
        for part in self.parts.drain(..leaving) {
            add(&mut self.usage, &part.usage, -1);
            add(&mut self.overrun, &part.overrun, -1);
            self.exhausted.clear();
        }
        if leaving > 0 {
            self.limits_may_be_passed_again();
        }
        if answer_ends {
            self.granted.clear();
            self.declined = false;
            self.answered_until = 0;
        }
        if leaving > 0 || answer_ends {
            self.mark_updated(now);
        }
        leaving > 0 || answer_ends
    }

    /// This budget without the usage that has left its rolling window in a later state: the difference is what was spent.
    pub fn rolled_like(&self, later: &Budget) -> Budget {
        let first = later.parts.first().map_or(i64::MAX, |part| part.ends_at);
        let mut rolled = self.clone();
        let gone = rolled.parts.iter().take_while(|part| part.ends_at < first).count();
        for part in rolled.parts.drain(..gone) {
            add(&mut rolled.usage, &part.usage, -1);
            add(&mut rolled.overrun, &part.overrun, -1);
        }
        rolled
    }

    /// The part in which usage counts now; none where the window does not roll.
    pub(super) fn newest_part(&mut self, now: i64) -> Option<&mut WindowPart> {
        if !self.is_rolling() {
            return None;
        }
        let length = self.part_ms();
        let ends_at = (now.div_euclid(length) + 1) * length;
        if self.parts.last().is_none_or(|last| last.ends_at < ends_at) {
            self.parts.push(WindowPart { ends_at, ..Default::default() });
        }
        self.parts.last_mut()
    }

    /// When a part leaves the window.
    pub(super) fn leaves_at(&self, part: &WindowPart) -> i64 {
        part.ends_at.saturating_add(self.definition.rolling_ms)
    }

    /// The definition was changed: what is used by now leaves a window that has begun to roll as if it were spent now, and a
    /// window that rolls no more keeps it until its reset.
    pub(super) fn roll_from_now(&mut self, now: i64) {
        if !self.is_rolling() {
            self.parts.clear();
            self.answered_until = 0;
            return;
        }
        if self.parts.is_empty() {
            let (usage, overrun) = (self.usage.clone(), self.overrun.clone());
            if let Some(part) = self.newest_part(now) {
                (part.usage, part.overrun) = (usage, overrun);
            }
        }
        if self.answered_until == 0 && (self.declined || !self.granted.is_empty()) {
            self.answered_until = now.saturating_add(self.definition.rolling_ms);
        }
    }

    /// When an amount fits if nothing more is spent: by a reset, or because enough has left a rolling window.
    pub(super) fn fits_at(&self, dimension: &str, requested: i64) -> Option<i64> {
        if !self.is_rolling() {
            return (self.next_reset_at != 0).then_some(self.next_reset_at);
        }
        let mut missing = self.taken(dimension) + requested - self.hard(dimension);
        let enough = self.parts.iter().find(|part| {
            missing -= amount(&part.usage, dimension);
            missing <= 0
        });
        enough.map(|part| self.leaves_at(part))
    }

    /// When nothing is used up any more, if nothing more is spent.
    pub(super) fn opens_at(&self) -> Option<i64> {
        if !self.is_rolling() {
            return (self.next_reset_at != 0).then_some(self.next_reset_at);
        }
        let first = self.parts.first().map(|part| self.leaves_at(part));
        let opens = |dimension: &str| match self.left(dimension) {
            Some(0) => self.fits_at(dimension, 1),
            _ => first,
        };
        self.used_up().map(opens).try_fold(None, |latest, opens| Some(latest.max(Some(opens?)))).flatten()
    }

    /// When the oldest usage of a dimension leaves a rolling window.
    pub(super) fn frees_at(&self, dimension: &str) -> Option<i64> {
        let oldest = self.parts.iter().find(|part| amount(&part.usage, dimension) != 0);
        oldest.map(|part| self.leaves_at(part))
    }

    /// When the timer is to look at a rolling window. Nothing waits for it while it admits, and usage that is old enough
    /// leaves with the next charge.
    pub(super) fn rolls_at(&self) -> Option<i64> {
        let question = &self.question;
        let answered = self.fits_at(&question.dimension, question.requested.max(1)).filter(|_| question.is_open());
        let answer_ends = (self.answered_until != 0).then_some(self.answered_until);
        // A child by tag leaves when all of its usage has.
        let emptied = self.parts.last().filter(|_| self.from_template).map(|part| self.leaves_at(part));
        [self.opens_at(), answered, answer_ends, emptied, self.awaited_fits_at()].into_iter().flatten().min()
    }

    fn part_ms(&self) -> i64 {
        (self.definition.rolling_ms + limits::BUDGET_WINDOW_PARTS - 1) / limits::BUDGET_WINDOW_PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::{created, dimensions, tokens};
    use crate::budget::{BudgetAnswer, BudgetChange, BudgetDefinition, HardAction};
    use crate::encoding::Document;
    use crate::id::ExecutionId;
    use crate::index::{Due, Indexed};
    use crate::usage::ReportUsageResult;

    /// A window of 64 s has parts of a second.
    const SPAN: i64 = 64_000;

    fn rolling(hard: i64) -> Budget {
        let dimensions = dimensions(&[("tokens", hard, 0)]);
        created(BudgetDefinition { dimensions, rolling_ms: SPAN, ..Default::default() })
    }

    #[test]
    fn usage_leaves_when_all_of_its_part_is_old_enough() {
        let mut budget = rolling(100);
        budget.report(&tokens(60), 1_500).unwrap();
        budget.report(&tokens(40), 10_200).unwrap();
        let refusal = budget.admit().unwrap_err();
        assert_eq!((refusal.current, refusal.next_reset_at), (100, Some(2_000 + SPAN)));
        assert!(budget.index_entries(0).contains(&Due::Timer.entry(&budget.key(), 2_000 + SPAN)));
        assert!(!budget.come_due(1_999 + SPAN) && budget.used("tokens") == 100);
        let before = budget.clone();
        assert!(budget.come_due(2_000 + SPAN) && budget.used("tokens") == 40);
        assert!(budget.opened_since(&before) && budget.release_count() == 60);
        assert_eq!(budget.due_at(), None, "nothing waits for a budget that admits");
        assert_eq!(budget.status(11_000 + SPAN).usage["tokens"], 0, "what is shown is as of now");
        assert_eq!(Budget::decode(&budget.encode()).unwrap(), budget);
    }

    #[test]
    fn a_refused_report_closes_the_budget_until_something_leaves() {
        let mut budget = rolling(100);
        let breach = ReportUsageResult::HardBreach { dimension: "tokens".into(), current: 0, limit: 100 };
        assert_eq!(budget.report(&tokens(101), 1_500).unwrap(), breach);
        assert_eq!(budget.admit().unwrap_err().next_reset_at, Some(2_000 + SPAN));
        assert!(budget.come_due(2_000 + SPAN) && budget.admit().is_ok());
    }

    #[test]
    fn a_refusal_says_when_the_amount_fits() {
        let mut budget = rolling(100);
        for (amount, at) in [(30, 1_500), (30, 2_500), (30, 3_500)] {
            budget.report(&tokens(amount), at).unwrap();
        }
        let at = |requested| budget.room_for(&tokens(requested)).unwrap().unwrap_err().next_reset_at;
        assert_eq!((at(11), at(40), at(41)), (Some(2_000 + SPAN), Some(2_000 + SPAN), Some(3_000 + SPAN)));
        assert_eq!(at(101), None, "it never fits");
    }

    #[test]
    fn the_answer_of_a_person_counts_for_a_span() {
        let mut budget = rolling(100);
        budget.definition.on_hard = HardAction::Ask;
        budget.report(&tokens(100), 1_500).unwrap();
        budget.ask("tokens", 50, ExecutionId::default(), 2_000);
        assert_eq!(budget.rolls_at(), Some(2_000 + SPAN), "room answers the question, too");
        budget.decide(BudgetAnswer::Grant, &tokens(20), 3_000).unwrap();
        assert_eq!((budget.left("tokens"), budget.due_at()), (Some(20), Some(3_000 + SPAN)));
        assert!(budget.come_due(3_000 + SPAN));
        assert_eq!((budget.left("tokens"), budget.due_at()), (Some(100), None));
    }

    #[test]
    fn the_pace_of_a_full_window_is_its_own_forecast() {
        let mut budget = rolling(100);
        budget.report(&tokens(20), 16_000).unwrap();
        let early = budget.status(17_000).standing["tokens"].clone();
        assert_eq!((early.forecast, early.exhausted_at), (Some(80), None));
        assert_eq!(early.frees_at, Some(17_000 + SPAN));
        let full = budget.status(1_000 + SPAN + 500).standing["tokens"].clone();
        assert_eq!((full.used, full.forecast, full.exhausted_at), (20, Some(20), None));
    }

    #[test]
    fn a_window_begins_and_ends_to_roll_without_losing_its_usage() {
        let mut budget = rolling(100);
        budget.report(&tokens(60), 1_500).unwrap();
        let fixed = BudgetChange { reset_interval_ms: Some(500_000), ..Default::default() };
        budget.update(&fixed, 2_000).unwrap();
        assert_eq!((budget.used("tokens"), budget.parts.len(), budget.due_at()), (60, 0, Some(502_000)));
        let rolls = BudgetChange { rolling_ms: Some(SPAN), ..Default::default() };
        budget.update(&rolls, 9_100).unwrap();
        assert_eq!((budget.used("tokens"), budget.next_reset_at), (60, 0));
        assert!(!budget.come_due(9_999 + SPAN) && budget.come_due(10_000 + SPAN) && budget.used("tokens") == 0);
        let both = BudgetChange { rolling_ms: Some(SPAN), reset_interval_ms: Some(1_000), ..Default::default() };
        assert_eq!(budget.update(&both, 99_000).unwrap_err().details["field"], "rolling_ms");
    }

    #[test]
    fn parts_stay_few_however_long_it_is_used() {
        let mut budget = rolling(0);
        for second in 0..1_000 {
            budget.report(&tokens(1), 1_000 * second + 1_500).unwrap();
        }
        assert!(budget.parts.len() <= 66, "{}", budget.parts.len());
        assert_eq!(budget.used("tokens"), budget.parts.iter().map(|part| part.usage["tokens"]).sum::<i64>());
    }
}
