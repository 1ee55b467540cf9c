//! Changes the limits of a budget; a raised limit releases what was blocked.

use ff_core::budget::{Budget, BudgetStatus};
use ff_core::op::SetBudgetLimits;
use ff_core::op::set_budget_limits::Args;
use ff_core::{Code, Result, index};

use super::named::no_such;
use crate::engine::{Caller, Engine, Handle};
use crate::hint::Item;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

impl Handle<SetBudgetLimits> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<BudgetStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().budget_partition(&namespace, &args.name);
        let turn = self.locks().take(partition, Budget::key_of(&namespace, &args.name)).await;
        let verb = SetLimits { namespace: &namespace, args: &args };
        let (status, opened) = self.transact(partition, self.fresh_command(), &verb).await?;
        drop(turn);
        self.release_parked(&namespace, &format!("b:{}", args.name), opened).await;
        Ok(status)
    }
}

struct SetLimits<'a> {
    namespace: &'a str,
    args: &'a Args,
}

impl Command for SetLimits<'_> {
    type Outcome = (BudgetStatus, Opened);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = (self.namespace, &self.args.name);
        let loaded = tx.load::<Budget>(Budget::key_of(namespace, name)).await?;
        let mut budget = loaded.ok_or_else(|| no_such(Code::BudgetNotFound, name))?.document;
        let before = budget.clone();
        budget.set_limits(&self.args.dimensions, tx.now)?;
        let mut opened = Opened::default();
        if budget.opened_since(&before) {
            let count = budget.release_count();
            opened = Opened::take(&mut budget, count, tx.engine.partitions());
            tx.hint(Item::Gate(index::blocked(namespace, &format!("b:{name}"))));
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok((budget.status(), opened))
    }
}
