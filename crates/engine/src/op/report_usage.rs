//! Charges what an attempt has spent to the budgets of its execution. The lease need not hold any more: what was spent
//! was spent.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::lease::{HistoryRecord, LeaseFence};
use ff_core::op::ReportUsage;
use ff_core::op::report_usage::{Args, Outcome};
use ff_core::{Code, Error, Result, Role, limits};
use ff_store::LogStart;

use super::named::no_such;
use crate::engine::{Caller, Engine, Handle};
use crate::logs;
use crate::usage::Report;

impl Handle<ReportUsage> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        self.check_reporter(caller, &execution, &args.fence).await?;
        if let Some(budget) = args.budget.as_ref().filter(|budget| !execution.budgets.contains(budget)) {
            return Err(no_such(Code::BudgetNotFound, budget));
        }
        let named = |name: &&String| args.budget.as_ref().is_none_or(|only| only == *name);
        let reports = execution.budgets.iter().filter(named).map(|name| {
            let report = Report {
                usage: args.usage.clone(),
                dedup_key: args.dedup_key.clone().unwrap_or_default(),
                execution: Some(execution.id),
                only_known: args.budget.is_none(),
            };
            let namespace = &execution.namespace;
            async move { (name, self.charge(namespace, name, report).await) }
        });
        let mut budgets = BTreeMap::new();
        for (name, answer) in futures_util::future::join_all(reports).await {
            match answer {
                Ok(Some(answer)) => drop(budgets.insert(name.clone(), answer)),
                Ok(None) => {}
                // A budget that nobody has made counts nothing.
                Err(error) if error.code == Code::BudgetNotFound && args.budget.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Outcome { budgets })
    }
}

impl Engine {
    /// Whoever holds or held a lease of the execution may report, and an operator.
    pub(crate) async fn check_reporter(
        &self,
        caller: &Caller,
        execution: &Execution,
        fence: &LeaseFence,
    ) -> Result<()> {
        if execution.knows_fence(fence) {
            return Ok(());
        }
        let log = logs::history(&execution.id);
        let kept = usize::try_from(limits::HISTORY_MAX).unwrap_or(usize::MAX);
        let page = self.store().log(execution.id.partition(), log, LogStart::Before(u64::MAX), kept).await?;
        let held =
            page.records.iter().filter_map(|record| logs::decode::<HistoryRecord>(&record.record)).any(|record| {
                record.lease.is_some_and(|lease| {
                    lease.id == fence.lease_id && lease.epoch == fence.epoch && lease.attempt == fence.attempt
                })
            });
        if held || caller.role.allows(Role::Operator) {
            return Ok(());
        }
        Err(Error::of(Code::StaleLease).with("epoch", execution.epoch))
    }
}
