//! Lists budgets by name.

use ff_core::budget::Budget;
use ff_core::op::ListBudgets;
use ff_core::op::list_budgets::{Args, Outcome};
use ff_core::{Family, Result};

use super::named::page;
use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ListBudgets> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions = self.partitions().all().filter(|partition| partition.family == Family::Budget).collect();
        let limit = self.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all = self.named_after::<Budget>(partitions, &namespace, cursor, |budget| &budget.name).await?;
        let (budgets, next_cursor) = page(all, limit, |budget| &budget.name);
        Ok(Outcome { items: budgets.iter().map(Budget::status).collect(), next_cursor })
    }
}
