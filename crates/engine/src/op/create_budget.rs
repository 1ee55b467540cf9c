//! Creates a budget. What was parked because there was no such budget is looked at again.
//!
//! What `on_hard` means for work that would start while the budget is used up: `block` parks it until a reset or a
//! raised limit; `fail` ends it as failed, category `budget_exhausted`; `suspend` holds it like an operator would, so
//! that a person decides: a reset does not let it go, `release` does.

use ff_core::budget::Budget;
use ff_core::gate::Defined;
use ff_core::op::CreateBudget;
use ff_core::op::create_budget::{Args, Outcome};
use ff_core::{Family, Result, index};

use crate::engine::{Caller, Engine, Handle};
use crate::hint::Item;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

impl Handle<CreateBudget> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().budget_partition(&namespace, &args.name);
        let verb = Define { namespace: &namespace, args: &args };
        let identity = self.callers_identity::<CreateBudget>(caller, &args, None);
        let created = self.transact_once(partition, identity, &verb).await?;
        let Some(count) = created else { return Ok(Outcome::AlreadyExists) };
        let gate = format!("b:{}", args.name);
        self.release_parked(&namespace, &gate, self.everywhere(count)).await;
        Ok(Outcome::Created)
    }
}

impl Engine {
    /// A gate that did not exist cannot remember where work is parked for it: it may be anywhere.
    pub(crate) fn everywhere(&self, count: u64) -> Opened {
        let places = self.partitions().all().filter(|partition| partition.family == Family::Flow).collect();
        Opened { places, count, given_back: 0 }
    }
}

struct Define<'a> {
    namespace: &'a str,
    args: &'a Args,
}

impl Command for Define<'_> {
    type Outcome = Option<u64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<u64>> {
        let name = (self.namespace, self.args.name.as_str());
        let existing = tx.load::<Budget>(Budget::key_of(name.0, name.1)).await?.map(|loaded| loaded.document);
        match Budget::define(existing.as_ref(), name, self.args.definition(), tx.now)? {
            Defined::AlreadyExists => Ok(None),
            Defined::Created(budget) => {
                tx.hint(Item::Gate(index::blocked(name.0, &format!("b:{}", name.1))));
                tx.save(&budget);
                Ok(Some(budget.release_count()))
            }
        }
    }
}
