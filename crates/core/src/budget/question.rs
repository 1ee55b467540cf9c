//! The question that a budget asks people. A budget whose action at the hard limit is `ask` asks once in a window,
//! whichever execution meets the limit; the answer counts for everything that waits for it.

use serde::{Deserialize, Serialize};

use super::{Amounts, Budget, Enforcement, HardAction, Limits};
use crate::error::{Code, Error, Result};
use crate::id::ExecutionId;
use crate::{document, limits, text, vocabulary};

vocabulary! {
    /// How a person answers a budget's question.
    pub closed enum BudgetAnswer {
        /// More may be used, in this window only.
        Grant "grant",
        /// The hard limits are raised for good.
        Raise "raise",
        /// No more may be used in this window.
        No "no",
    }
}

document! {
    /// A question that a budget asks.
    pub struct BudgetQuestion {
        /// Since when; 0: it asks nothing.
        "a" asked_at: i64,
        /// The dimension whose limit was met.
        "d" dimension: String,
        /// The amount that was asked for beyond the limit; 0 where an execution only wants to start.
        "r" requested: i64,
        /// The execution that met the limit first.
        "x" execution: Option<ExecutionId>,
        /// When it was last seen that something waits for the answer; 0: not yet.
        "l" awaited_at: i64,
    }
}

impl BudgetQuestion {
    /// Whether people are asked.
    pub fn is_open(&self) -> bool {
        self.asked_at != 0
    }

    /// When it is to be seen whether something still waits for the answer.
    pub fn look_at(&self) -> Option<i64> {
        self.is_open().then(|| self.asked_at.max(self.awaited_at).saturating_add(limits::QUESTION_RECHECK_MS))
    }
}

/// A question of a budget as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BudgetQuestionView {
    /// The namespace of the budget.
    pub namespace: String,
    /// The budget.
    pub budget: String,
    /// The dimension whose limit was met.
    pub dimension: String,
    /// The amount that was asked for when the limit was met; 0 where an execution only wants to start.
    pub requested: i64,
    /// The amount that is left.
    pub left: i64,
    /// The hard limit, with what was granted.
    pub limit: i64,
    /// Since when people are asked.
    pub since: i64,
    /// The execution that met the limit first; others may wait for the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
}

impl Budget {
    /// Whether people are asked at a hard limit, instead of a refusal.
    pub fn asks_people(&self) -> bool {
        let ask = self.definition.on_hard == HardAction::Ask && !self.declined;
        ask && self.definition.enforcement == Enforcement::Enforce
    }

    /// The action for work that would start now while nothing is left: a question that was answered with no is not
    /// asked again.
    pub fn hard_action(&self) -> HardAction {
        match self.definition.on_hard {
            HardAction::Ask if self.declined => HardAction::Fail,
            action => action,
        }
    }

    /// Asks people, unless they are asked already.
    pub fn ask(&mut self, dimension: &str, requested: i64, execution: ExecutionId, now: i64) {
        if self.question.is_open() {
            return;
        }
        let asked_at = self.mark_updated(now);
        let dimension = dimension.to_owned();
        self.question =
            BudgetQuestion { asked_at, dimension, requested, execution: Some(execution), ..Default::default() };
    }

    /// A person answers. Everything that waits for the answer is to be let go, whatever it is.
    pub fn decide(&mut self, answer: BudgetAnswer, amounts: &Amounts, now: i64) -> Result<()> {
        if !self.question.is_open() {
            return Err(Error::of(Code::QuestionNotOpen).with("budget", &self.name));
        }
        self.check_dimensions("amounts", amounts)?;
        match answer {
            BudgetAnswer::Grant => {
                if amounts.values().all(|more| *more <= 0) {
                    return Err(Error::invalid("amounts", "must grant something of a dimension"));
                }
                for (dimension, more) in amounts {
                    let granted = self.granted.get(dimension).copied().unwrap_or(0) + more;
                    text::within(&format!("amounts.{dimension}"), granted, 0..=limits::USAGE_MAX)?;
                }
                for (dimension, more) in amounts {
                    *self.granted.entry(dimension.clone()).or_default() += more;
                    self.exhausted.remove(dimension);
                    self.breaches.limit_changed(dimension);
                }
            }
            BudgetAnswer::Raise => {
                for (dimension, hard) in amounts {
                    let now = self.limit(dimension);
                    text::within(&format!("amounts.{dimension}"), *hard, now + 1..=limits::USAGE_MAX)?;
                }
                let raised = amounts.iter().map(|(dimension, hard)| {
                    (dimension.clone(), Limits { hard: *hard, soft: self.soft(dimension), ..Default::default() })
                });
                self.set_limits(&raised.collect(), now)?;
            }
            BudgetAnswer::No => self.declined = true,
        }
        let now = self.mark_updated(now);
        if self.is_rolling() && answer != BudgetAnswer::Raise {
            self.answered_until = now.saturating_add(self.definition.rolling_ms);
        }
        self.question = BudgetQuestion::default();
        Ok(())
    }

    /// It was seen whether something waits for the answer to the question that was asked at this instant. A question that
    /// nothing waits for any more is withdrawn, and the next execution that meets the limit asks anew.
    pub fn question_awaited(&mut self, asked_at: i64, awaited: bool, now: i64) {
        if !self.question.is_open() || self.question.asked_at != asked_at {
            return;
        }
        let now = self.mark_updated(now);
        self.question.awaited_at = now;
        if !awaited {
            self.question = BudgetQuestion::default();
        }
    }

    /// The amount that was asked for fits by now, so the question is closed.
    pub fn answer_if_room(&mut self) {
        let BudgetQuestion { dimension, requested, .. } = &self.question;
        let fits = self.left(dimension).is_none_or(|left| left >= (*requested).max(1));
        if self.question.is_open() && fits {
            self.question = BudgetQuestion::default();
        }
    }

    /// The open question for people.
    pub fn question_view(&self) -> Option<BudgetQuestionView> {
        let question = &self.question;
        question.is_open().then(|| BudgetQuestionView {
            namespace: self.namespace.clone(),
            budget: self.name.clone(),
            dimension: question.dimension.clone(),
            requested: question.requested,
            left: self.left(&question.dimension).unwrap_or(0),
            limit: self.hard(&question.dimension),
            since: question.asked_at,
            execution_id: question.execution,
        })
    }

    /// The limit of a dimension was raised: if that was the question, it is answered.
    pub(super) fn answered(&mut self, dimension: &str) {
        if self.question.dimension == dimension {
            self.question = BudgetQuestion::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::{created, dimensions, tokens};
    use crate::budget::{BudgetChange, BudgetDefinition};
    use crate::index;
    use crate::index::Indexed;

    fn asking() -> Budget {
        let dimensions = dimensions(&[("tokens", 100, 0)]);
        created(BudgetDefinition { dimensions, on_hard: HardAction::Ask, ..Default::default() })
    }

    #[test]
    fn one_question_is_open_and_each_answer_closes_it() {
        for (answer, amounts, left) in [
            (BudgetAnswer::Grant, tokens(50), Some(50)),
            (BudgetAnswer::Raise, tokens(130), Some(30)),
            (BudgetAnswer::No, Amounts::new(), Some(0)),
        ] {
            let mut budget = asking();
            budget.report(&tokens(100), 1_500).unwrap();
            assert_eq!(budget.decide(answer, &amounts, 1_600).unwrap_err().code, Code::QuestionNotOpen);
            budget.ask("tokens", 10, ExecutionId::default(), 2_000);
            budget.ask("tokens", 99, ExecutionId::default(), 3_000);
            let view = budget.question_view().unwrap();
            assert_eq!((view.since, view.requested, view.limit, view.left), (2_000, 10, 100, 0));
            assert!(budget.index_entries(0).iter().any(|entry| entry.index == index::asks("team")));
            budget.decide(answer, &amounts, 4_000).unwrap();
            assert_eq!((budget.question_view(), budget.left("tokens")), (None, left));
            assert_eq!(budget.admit().is_ok(), answer != BudgetAnswer::No);
            assert_eq!(budget.asks_people(), answer != BudgetAnswer::No);
            let expected = if answer == BudgetAnswer::No { HardAction::Fail } else { HardAction::Ask };
            assert_eq!(budget.hard_action(), expected);
        }
    }

    #[test]
    fn a_question_that_nothing_waits_for_is_withdrawn() {
        let mut budget = asking();
        budget.report(&tokens(100), 1_500).unwrap();
        budget.ask("tokens", 10, ExecutionId::default(), 2_000);
        assert_eq!(budget.due_at(), Some(2_000 + limits::QUESTION_RECHECK_MS));
        budget.question_awaited(2_000, true, 40_000);
        assert_eq!(budget.due_at(), Some(40_000 + limits::QUESTION_RECHECK_MS));
        budget.question_awaited(1_999, false, 80_000);
        assert!(budget.question.is_open(), "that was about an earlier question");
        budget.question_awaited(2_000, false, 80_000);
        assert_eq!((budget.question_view(), budget.due_at()), (None, None));
    }

    #[test]
    fn an_answer_that_grants_nothing_or_raises_nothing_is_refused() {
        let mut budget = asking();
        budget.ask("tokens", 10, ExecutionId::default(), 2_000);
        let asked = budget.clone();
        for (answer, amounts) in [
            (BudgetAnswer::Grant, tokens(0)),
            (BudgetAnswer::Grant, Amounts::new()),
            (BudgetAnswer::Raise, tokens(100)),
            (BudgetAnswer::Raise, tokens(20)),
            (BudgetAnswer::Raise, tokens(0)),
        ] {
            assert_eq!(
                budget.decide(answer, &amounts, 2_001).unwrap_err().code,
                Code::Invalid,
                "{answer:?} {amounts:?}"
            );
            assert_eq!(budget, asked);
        }
    }

    #[test]
    fn a_budget_that_asks_no_longer_lets_go_what_waits_for_the_answer() {
        let observing = BudgetChange { enforcement: Some(Enforcement::Observe), ..Default::default() };
        let blocking = BudgetChange { on_hard: Some(HardAction::Block), ..Default::default() };
        for change in [observing, blocking] {
            let mut budget = asking();
            budget.report(&tokens(100), 1_500).unwrap();
            budget.ask("tokens", 0, ExecutionId::default(), 2_000);
            let before = budget.clone();
            budget.update(&change, 2_001).unwrap();
            assert!(budget.question_view().is_none() && budget.opened_since(&before));
        }
    }

    #[test]
    fn what_waits_is_let_go_by_an_answer_or_by_room_and_not_before() {
        let mut budget = asking();
        budget.report(&tokens(95), 1_500).unwrap();
        budget.ask("tokens", 10, ExecutionId::default(), 2_000);
        let before = budget.clone();
        budget.answer_if_room();
        assert_eq!((budget.release_count(), budget.opened_since(&before)), (0, false), "5 are left, 10 were asked for");
        let mut raised = budget.clone();
        raised.set_limits(&dimensions(&[("tokens", 101, 0)]), 2_001).unwrap();
        assert!(raised.opened_since(&before) && raised.release_count() == u64::MAX, "a raised limit is an answer");
        budget.usage.insert("tokens".into(), 90);
        budget.answer_if_room();
        assert!(budget.opened_since(&before) && budget.release_count() == u64::MAX);
    }

    #[test]
    fn a_grant_and_a_no_last_for_their_window_and_a_raise_for_good() {
        let mut budget = asking();
        budget.ask("tokens", 10, ExecutionId::default(), 2_000);
        budget.decide(BudgetAnswer::Grant, &tokens(50), 2_001).unwrap();
        assert_eq!(budget.left("tokens"), Some(150));
        budget.ask("tokens", 10, ExecutionId::default(), 2_002);
        budget.decide(BudgetAnswer::No, &Amounts::new(), 2_003).unwrap();
        budget.ask("tokens", 10, ExecutionId::default(), 2_004);
        budget.reset(3_000);
        assert_eq!((budget.left("tokens"), budget.declined), (Some(100), false));
        assert!(!budget.question.is_open(), "a reset answers what was asked");
        budget.ask("tokens", 10, ExecutionId::default(), 3_001);
        budget.decide(BudgetAnswer::Raise, &tokens(200), 3_002).unwrap();
        budget.reset(4_000);
        assert_eq!(budget.left("tokens"), Some(200));
    }
}
