//! Reports of usage to budgets. Reports to one budget that arrive while a commit is under way share the next one: each
//! keeps its own answer and its own dedup record, all in the commit that changes the budget.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::budget::Budget;
use ff_core::planted::{Bug, planted};
use ff_core::usage::{ReportUsageResult, UsageRecord};
use ff_core::{Code, Error, Result, index};

use crate::engine::Engine;
use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

/// `None`: the report names no dimension of the budget and did not insist.
pub(crate) type Answer = Result<Option<ReportUsageResult>>;

/// What was spent.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) usage: BTreeMap<String, i64>,
    /// Empty for none.
    pub(crate) dedup_key: String,
    /// Charge only the dimensions that the budget has, and nothing if it has none of them.
    pub(crate) only_known: bool,
}

/// Reports on their way, by budget.
pub(crate) type Reports = Groups<Report, Option<ReportUsageResult>>;

impl Engine {
    /// Charges a budget.
    pub(crate) async fn charge(&self, namespace: &str, name: &str, report: Report) -> Answer {
        let serve = |budget| {
            let engine = self.clone();
            self.spawn_short(async move { engine.commit_reports(budget).await });
        };
        self.reports().ask((namespace.to_owned(), name.to_owned()), report, serve).await
    }

    async fn commit_reports(&self, budget: Name) {
        let partition = self.partitions().budget_partition(&budget.0, &budget.1);
        loop {
            let waiting = self.reports().take(&budget);
            if waiting.is_empty() {
                return;
            }
            let (reports, senders): (Vec<Report>, Vec<_>) = waiting.into_iter().unzip();
            let verb = ReportAll { budget: &budget, reports: &reports };
            let turn = self.locks().take(partition, Budget::key_of(&budget.0, &budget.1)).await;
            let outcome = self.transact(partition, self.fresh_command(), &verb).await;
            drop(turn);
            let (answers, opened) =
                outcome.map_or_else(|error| (Err(error), Opened::default()), |(all, opened)| (Ok(all), opened));
            groups::answer(senders, answers);
            self.release_parked(&budget.0, &format!("b:{}", budget.1), opened).await;
        }
    }
}

struct ReportAll<'a> {
    budget: &'a Name,
    reports: &'a [Report],
}

impl Command for ReportAll<'_> {
    type Outcome = (Vec<Answer>, Opened);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = self.budget;
        let key = Budget::key_of(namespace, name);
        let Some(loaded) = tx.load::<Budget>(key.clone()).await? else {
            let missing = Error::of(Code::BudgetNotFound).with("budget", name);
            let answers = self.reports.iter().map(|_| Err(missing.clone())).collect();
            return Ok((answers, Opened::default()));
        };
        let mut budget = loaded.document;
        let before = budget.clone();
        let keyed: BTreeSet<&str> =
            self.reports.iter().map(|report| report.dedup_key.as_str()).filter(|key| !key.is_empty()).collect();
        let records = keyed.iter().map(|dedup_key| UsageRecord::key_of(&key, dedup_key)).collect();
        let found = tx.load_many::<UsageRecord>(records).await?;
        let mut counted: BTreeSet<&str> =
            keyed.into_iter().zip(found).filter(|(_, record)| record.is_some()).map(|(key, _)| key).collect();
        let mut answers = Vec::with_capacity(self.reports.len());
        for report in self.reports {
            if counted.contains(report.dedup_key.as_str()) && !planted(Bug::UsageDedupIgnored) {
                answers.push(Ok(Some(ReportUsageResult::AlreadyApplied)));
                continue;
            }
            let mut usage = report.usage.clone();
            if report.only_known {
                usage.retain(|dimension, _| budget.definition.dimensions.contains_key(dimension));
                if usage.is_empty() {
                    answers.push(Ok(None));
                    continue;
                }
            }
            let answer = budget.report(&usage, tx.now);
            if let Ok(answer) = &answer
                && !report.dedup_key.is_empty()
                && let Some(record) = UsageRecord::of(&budget, &report.dedup_key, answer, tx.now)
            {
                tx.create_until(&record, record.expires_at(tx.engine.options().dedup_window_ms));
                counted.insert(&report.dedup_key);
            }
            answers.push(answer.map(Some));
        }
        let mut opened = Opened::default();
        if budget.opened_since(&before) {
            let count = budget.release_count();
            opened = Opened::take(&mut budget, count, tx.engine.partitions());
            tx.hint(Item::Gate(index::blocked(namespace, &format!("b:{name}"))));
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok((answers, opened))
    }
}
