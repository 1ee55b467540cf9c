//! `one_effect` for commands: what was asked for so many times happened no more often, with an identity or without.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::execution::Execution;
use ff_core::lease::LeaseEnd;
use ff_core::op::{CreateBulk, Operation, ReplayExecution, ResetBudget, RevokeLease};
use serde_json::Value;

use super::Checker;
use crate::invariant::Invariant;

/// The requests of callers. Never forgotten: the store may forget their effects.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The identities that an operation was asked for with, by operation and target.
    named: BTreeMap<(&'static str, String), BTreeSet<String>>,
    /// How often it was asked for without one.
    unnamed: BTreeMap<(&'static str, String), usize>,
    /// Usage that was reported without a key and not counted yet, by budget.
    charges: BTreeMap<String, Vec<i64>>,
}

impl Asked {
    fn times(&self, operation: &'static str, target: &str) -> usize {
        let asked = (operation, target.to_owned());
        self.named.get(&asked).map_or(0, BTreeSet::len) + self.unnamed.get(&asked).copied().unwrap_or(0)
    }

    /// Whether this amount is the sum of up to three reports without a key; they are then counted.
    pub(super) fn charge(&mut self, budget: &str, amount: i64) -> bool {
        let charges = self.charges.entry(budget.to_owned()).or_default();
        let places: Vec<usize> = (0..charges.len()).collect();
        let alone = places.iter().map(|first| vec![*first]);
        let pairs = places.iter().flat_map(|first| places[first + 1..].iter().map(|second| vec![*first, *second]));
        let triples = places.iter().flat_map(|first| {
            let seconds = &places[first + 1..];
            seconds.iter().flat_map(|second| places[second + 1..].iter().map(|third| vec![*first, *second, *third]))
        });
        let sum = |chosen: &Vec<usize>| chosen.iter().map(|place| charges[*place]).sum::<i64>();
        let Some(chosen) = alone.chain(pairs).chain(triples).find(|chosen| sum(chosen) == amount) else { return false };
        for place in chosen.into_iter().rev() {
            charges.remove(place);
        }
        true
    }
}

impl Checker {
    /// A caller is about to call an operation.
    pub(crate) fn will_call(&mut self, operation: &'static str, args: &Value) {
        let target = match operation {
            CreateBulk::NAME if args["action"] == "replay" => &args["action"],
            ReplayExecution::NAME | RevokeLease::NAME => &args["execution_id"],
            ResetBudget::NAME => &args["name"],
            _ => return,
        };
        let asked = (operation, target.as_str().unwrap_or_default().to_owned());
        match args["command_id"].as_str() {
            Some(command) => {
                self.asked.named.entry(asked).or_default().insert(command.to_owned());
            }
            None => *self.asked.unnamed.entry(asked).or_default() += 1,
        }
    }

    /// A caller is about to report usage without a key, once.
    pub(crate) fn will_report_unnamed(&mut self, budget: &str, amount: i64) {
        self.asked.charges.entry(budget.to_owned()).or_default().push(amount);
    }

    /// An execution was written: it was replayed and revoked no more often than callers asked.
    pub(super) fn check_commands(&mut self, document: &Execution, end: Option<LeaseEnd>) {
        let id = document.id;
        // A bulk job may replay each execution once.
        let jobs = self.asked.times(CreateBulk::NAME, "replay");
        let asked = self.asked.times(ReplayExecution::NAME, &id.to_string()) + jobs;
        let replays = usize::try_from(document.replays).unwrap_or(usize::MAX);
        self.expect(replays <= asked, Invariant::OneEffect, || {
            format!("{id} was replayed {replays} times, asked {asked}")
        });
        if end != Some(LeaseEnd::Revoked) {
            return;
        }
        let revoked = self.facts.revocations.entry(id).or_default();
        *revoked += 1;
        let (revoked, asked) = (*revoked, self.asked.times(RevokeLease::NAME, &id.to_string()));
        self.expect(revoked <= asked, Invariant::OneEffect, || {
            format!("{revoked} leases of {id} were revoked, asked {asked} times")
        });
    }

    /// A budget was reset by a caller.
    pub(super) fn check_resets(&mut self, name: &str) {
        let resets = self.facts.resets.entry(name.to_owned()).or_default();
        *resets += 1;
        let (resets, asked) = (*resets, self.asked.times(ResetBudget::NAME, name));
        self.expect(resets <= asked, Invariant::OneEffect, || {
            format!("budget {name} was reset {resets} times, asked {asked}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_a_key_counts_once() {
        let mut asked = Asked::default();
        asked.charges.insert("large".into(), vec![3, 5, 7]);
        assert!(asked.charge("large", 5));
        assert!(!asked.charge("large", 5));
        assert!(asked.charge("large", 10));
        assert!(!asked.charge("large", 3));
    }
}
