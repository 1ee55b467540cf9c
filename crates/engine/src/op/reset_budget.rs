//! Sets the usage of a budget back to nothing and releases what was blocked. The same command id is the same reset.

use ff_core::budget::Budget;
use ff_core::op::ResetBudget;
use ff_core::op::reset_budget::{Args, Outcome};
use ff_core::{Code, Result, index};

use super::named::no_such;
use crate::engine::{Caller, Engine, Handle};
use crate::hint::Item;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

impl Handle<ResetBudget> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().budget_partition(&namespace, &args.name);
        let turn = self.locks().take(partition, Budget::key_of(&namespace, &args.name)).await;
        let verb = Reset { namespace: &namespace, args: &args };
        let identity = self.identity::<ResetBudget>(caller, &args, args.command_id);
        let (outcome, opened) = self.transact_once(partition, identity, &verb).await?;
        drop(turn);
        self.release_parked(&namespace, &format!("b:{}", args.name), opened).await;
        Ok(outcome)
    }
}

struct Reset<'a> {
    namespace: &'a str,
    args: &'a Args,
}

impl Command for Reset<'_> {
    type Outcome = (Outcome, Opened);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = (self.namespace, &self.args.name);
        let loaded = tx.load::<Budget>(Budget::key_of(namespace, name)).await?;
        let mut budget = loaded.ok_or_else(|| no_such(Code::BudgetNotFound, name))?.document;
        let next_reset_at = budget.reset(tx.now);
        let reset_at = budget.updated_at;
        let count = budget.release_count();
        let opened = Opened::take(&mut budget, count, tx.engine.partitions());
        tx.hint(Item::Gate(index::blocked(namespace, &format!("b:{name}"))));
        tx.save(&budget);
        Ok((Outcome { reset_at, next_reset_at }, opened))
    }
}
