//! Sends charges to budgets. Charges to budgets under one root that arrive while a commit is under way share the next
//! one.

use ff_core::Result;
use ff_core::budget::{self, Budget};
use ff_core::execution::Execution;
use ff_core::text::Tags;

use super::Scheduler;
use crate::charges::{BudgetChange, Call, Charge, ChargeAll, Charged, breach};
use crate::groups::{self, Groups, Name};

/// Charges on their way, by the root of their budgets.
pub(crate) type Charges = Groups<Call, Charged>;

impl Scheduler {
    /// Charges budgets of an execution that are charged together, the last of which stands for all.
    pub(crate) async fn charge_for(
        &self,
        execution: &Execution,
        together: &[&String],
        charge: Charge,
    ) -> Result<Charged> {
        self.charge(&execution.namespace, together, execution.tags.clone(), charge).await
    }

    /// Charges budgets of one tree, and their children for one of the tags.
    pub(crate) async fn charge(
        &self,
        namespace: &str,
        together: &[&String],
        tags: Tags,
        charge: Charge,
    ) -> Result<Charged> {
        let Some(call) = self.call_of(together, tags, charge) else { return Ok(Charged::Nothing) };
        let serve = |root| {
            let scheduler = self.clone();
            self.transactor.spawn_short(async move { scheduler.commit_charges(root).await });
        };
        let root = budget::root_of(&call.budget).to_owned();
        self.memory.charges.ask((namespace.to_owned(), root), call, serve).await
    }

    /// The answer that a charge would get now. Nothing is charged.
    pub(crate) async fn rehearse_charge(
        &self,
        execution: &Execution,
        together: &[&String],
        charge: Charge,
    ) -> Result<Charged> {
        let namespace = &execution.namespace;
        let Some(call) = self.call_of(together, execution.tags.clone(), charge) else { return Ok(Charged::Nothing) };
        let partition = self.transactor.partitions().budget_partition(namespace, &call.budget);
        let verb = ChargeAll { namespace, calls: &[call] };
        let (answers, _) = self.transactor.rehearse(partition, &verb).await?;
        answers.into_iter().next().unwrap_or(Ok(Charged::Nothing))
    }

    fn call_of(&self, together: &[&String], tags: Tags, charge: Charge) -> Option<Call> {
        let (name, beside) = together.split_last()?;
        let beside = beside.iter().map(|name| (*name).clone()).collect();
        Some(Call { budget: (*name).clone(), beside, tags, charge, id: self.transactor.fresh_command() })
    }

    async fn commit_charges(&self, root: Name) {
        let partition = self.transactor.partitions().budget_partition(&root.0, &root.1);
        while let Some((calls, callers)) = self.memory.charges.next(&root).await {
            let verb = ChargeAll { namespace: &root.0, calls: &calls };
            let outcome = self.transactor.transact_in_turn(partition, Budget::key_of(&root.0, &root.1), &verb).await;
            let (answers, changed) =
                outcome.map_or_else(|error| (Err(error), Vec::new()), |(all, changed)| (Ok(all), changed));
            groups::answer(callers, answers);
            self.budgets_changed(&root.0, changed);
        }
    }

    /// Acts on a commit that changed budgets.
    pub(crate) fn budgets_changed(&self, namespace: &str, changed: Vec<BudgetChange>) {
        for BudgetChange { name, spent, reserved, refused, owes_events } in changed {
            self.transactor.metrics().charged((namespace, &name), &spent, &reserved, refused);
            if owes_events {
                breach::tell_soon(&self.transactor, namespace, &name);
            }
        }
    }
}
