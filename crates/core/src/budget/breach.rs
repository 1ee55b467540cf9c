//! The limits that a budget has passed, for subscribers. A budget owes an event for the first time that a dimension passes
//! a limit; it owes the next one after a reset or a raised limit, so that a budget at its limit does not flood the log.
//!
//! Events stand in the logs of flow partitions and budgets elsewhere. So the commit that passes the limit leaves the
//! event with the budget, and the budget keeps it until it stands in the log.

use std::collections::BTreeSet;

use super::{Budget, SoftAction};
use crate::event::{Breach, BreachLevel, Event, EventType};
use crate::partition::{Partition, PartitionConfig};
use crate::{document, limits};

document! {
    /// The limits that a budget has passed.
    pub struct Breaches {
        /// Dimensions past their soft limit that were told.
        "s" soft: BTreeSet<String>,
        /// Dimensions at their hard limit that were told.
        "h" hard: BTreeSet<String>,
        /// Breaches that no log has yet, oldest first.
        "o" owed: Vec<Breach>,
        /// How many breaches logs have, ever: the first one owed has the next number.
        "n" told: u64,
        /// When the oldest one owed happened; 0 where none is owed.
        "t" since: i64,
    }
}

impl Breaches {
    /// When the timer takes care of what is owed, if the engine that owes it does not.
    pub fn retry_at(&self) -> Option<i64> {
        (!self.owed.is_empty()).then(|| self.since.saturating_add(limits::BREACH_TOLD_WITHIN_MS))
    }

    /// A new window: every limit may be passed again.
    pub(super) fn begin_window(&mut self) {
        self.soft.clear();
        self.hard.clear();
    }

    /// The limits of a dimension changed, or more was granted.
    pub(super) fn limit_changed(&mut self, dimension: &str) {
        self.soft.remove(dimension);
        self.hard.remove(dimension);
    }
}

impl Budget {
    /// The flow partition whose log has the events of this budget.
    pub fn events_partition(&self, partitions: &PartitionConfig) -> Partition {
        partitions.budget_events_partition(&self.namespace, &self.name)
    }

    /// The events that no log has yet, and the number of the first.
    pub fn owed_events(&self) -> (u64, Vec<Event>) {
        let event = |breach: &Breach| Event {
            event_type: EventType::Breached,
            namespace: self.namespace.clone(),
            detail: format!("{} {} {}/{}", breach.level, breach.dimension, breach.current, breach.limit),
            breach: Some(breach.clone()),
            ..Default::default()
        };
        (self.breaches.told, self.breaches.owed.iter().map(event).collect())
    }

    /// The events below this number stand in the log. Says whether that was news.
    pub fn events_told(&mut self, below: u64, now: i64) -> bool {
        let news = below.saturating_sub(self.breaches.told);
        let count = usize::try_from(news).unwrap_or(usize::MAX).min(self.breaches.owed.len());
        if count == 0 {
            return false;
        }
        self.breaches.owed.drain(..count);
        self.breaches.told = below;
        self.breaches.since = if self.breaches.owed.is_empty() { 0 } else { now };
        true
    }

    /// A report or a reservation met the hard limit of a dimension.
    pub(super) fn passed_hard(&mut self, dimension: &str, now: i64) {
        if self.breaches.hard.insert(dimension.to_owned()) {
            let (current, limit) = (self.taken(dimension), self.hard(dimension));
            self.owe(BreachLevel::Hard, dimension, (current, limit), now);
        }
    }

    /// Usage of a dimension is past its soft limit.
    pub(super) fn passed_soft(&mut self, dimension: &str, now: i64) {
        if self.definition.on_soft == SoftAction::Warn && self.breaches.soft.insert(dimension.to_owned()) {
            let (current, limit) = (self.used(dimension), self.soft(dimension));
            self.owe(BreachLevel::Soft, dimension, (current, limit), now);
        }
    }

    /// Usage has left a rolling window: a limit that is no longer passed may be passed anew.
    pub(super) fn limits_may_be_passed_again(&mut self) {
        let mut breaches = std::mem::take(&mut self.breaches);
        breaches.soft.retain(|dimension| self.used(dimension) > self.soft(dimension));
        breaches.hard.retain(|dimension| self.left(dimension) == Some(0));
        self.breaches = breaches;
    }

    fn owe(&mut self, level: BreachLevel, dimension: &str, (current, limit): (i64, i64), now: i64) {
        if self.breaches.owed.is_empty() {
            self.breaches.since = now;
        }
        let (budget, dimension) = (self.name.clone(), dimension.to_owned());
        self.breaches.owed.push(Breach { budget, level, dimension, current, limit, ..Default::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::BudgetDefinition;
    use super::super::tests::{created, dimensions, tokens};
    use super::*;
    use crate::index::{self, Indexed};

    fn budget(on_soft: SoftAction) -> Budget {
        let dimensions = dimensions(&[("tokens", 100, 50)]);
        created(BudgetDefinition { dimensions, on_soft, ..Default::default() })
    }

    fn spend(budget: &mut Budget, amount: i64) {
        budget.report(&tokens(amount), 2_000).unwrap();
    }

    fn owed(budget: &Budget) -> Vec<(BreachLevel, i64, i64)> {
        budget.breaches.owed.iter().map(|breach| (breach.level, breach.current, breach.limit)).collect()
    }

    #[test]
    fn each_limit_is_told_once_until_a_reset_or_another_limit() {
        let mut budget = budget(SoftAction::Warn);
        spend(&mut budget, 50);
        assert_eq!(owed(&budget), [], "at the limit is not past it");
        for amount in [1, 1, 60, 60] {
            spend(&mut budget, amount);
        }
        let both = [(BreachLevel::Soft, 51, 50), (BreachLevel::Hard, 52, 100)];
        assert_eq!(owed(&budget), both);
        budget.set_limits(&dimensions(&[("tokens", 53, 0)]), 3_000).unwrap();
        spend(&mut budget, 2);
        budget.reset(4_000);
        spend(&mut budget, 54);
        let more = [(BreachLevel::Hard, 52, 53), (BreachLevel::Hard, 0, 53)];
        assert_eq!(owed(&budget), [&both[..], &more].concat());
        let mut quiet = self::budget(SoftAction::None);
        spend(&mut quiet, 60);
        assert_eq!(owed(&quiet), [], "nobody is to be warned");
    }

    #[test]
    fn a_budget_owes_its_events_until_they_are_told_and_a_timer_sees_to_it() {
        let mut budget = budget(SoftAction::Warn);
        let due = |budget: &Budget| {
            let entries = budget.index_entries(0);
            entries.into_iter().find(|entry| entry.index == index::due()).map(|entry| entry.score)
        };
        assert_eq!(due(&budget), None);
        spend(&mut budget, 60);
        spend(&mut budget, 60);
        assert_eq!(due(&budget), Some(2_000 + limits::BREACH_TOLD_WITHIN_MS));
        let (first, events) = budget.owed_events();
        assert_eq!((first, events.len()), (0, 2));
        assert_eq!((events[1].event_type, events[1].detail.as_str()), (EventType::Breached, "hard tokens 60/100"));
        assert!(events.iter().all(|event| event.execution_id.is_none() && event.namespace == "team"));
        assert!(budget.events_told(1, 2_100) && !budget.events_told(1, 2_200));
        assert_eq!((budget.owed_events().0, budget.owed_events().1.len()), (1, 1));
        assert!(budget.events_told(2, 2_300));
        assert_eq!((due(&budget), budget.owed_events().0), (None, 2));
    }
}
