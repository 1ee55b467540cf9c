//! Charges usage to a budget by its name.

use ff_core::op::ReportBudgetUsage;
use ff_core::op::report_budget_usage::Args;
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, Error, Result, Role};

use crate::engine::{Caller, Engine, Handle};
use crate::usage::Report;

impl Handle<ReportBudgetUsage> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<ReportUsageResult> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        match (&args.execution_id, &args.fence) {
            (Some(id), Some(fence)) => {
                let (execution, _) = self.visible_execution(caller, id).await?;
                self.check_reporter(caller, &execution, fence).await?;
                let charged = execution.namespace == namespace && execution.budgets.contains(&args.name);
                if !charged && !caller.role.allows(Role::Operator) {
                    return Err(Error::new(Code::Forbidden, "the execution is not charged to this budget"));
                }
            }
            _ if caller.role.allows(Role::Operator) => {}
            _ => return Err(Error::of(Code::Forbidden)),
        }
        let dedup_key = args.dedup_key.clone().unwrap_or_default();
        let execution = args.execution_id.filter(|_| args.fence.is_some());
        let report = Report { usage: args.usage.clone(), dedup_key, execution, only_known: false };
        let answer = self.charge(&namespace, &args.name, report).await?;
        Ok(answer.unwrap_or(ReportUsageResult::Ok))
    }
}
