//! Shows a budget.

use ff_core::budget::{Budget, BudgetStatus};
use ff_core::op::GetBudget;
use ff_core::op::get_budget::Args;
use ff_core::{Code, Result};

use super::named::no_such;
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetBudget> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<BudgetStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().budget_partition(&namespace, &args.name);
        let budget = self.find::<Budget>(partition, Budget::key_of(&namespace, &args.name)).await?;
        budget.map(|budget| budget.status()).ok_or_else(|| no_such(Code::BudgetNotFound, &args.name))
    }
}
