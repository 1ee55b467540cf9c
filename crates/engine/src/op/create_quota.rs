//! Creates a quota. What was parked because there was no such quota is looked at again.

use ff_core::gate::Defined;
use ff_core::op::CreateQuota;
use ff_core::op::create_quota::{Args, Outcome};
use ff_core::quota::QuotaPolicy;
use ff_core::{Result, index};

use crate::engine::{Caller, Engine, Handle};
use crate::hint::Item;
use crate::transaction::{Command, Tx};

impl Handle<CreateQuota> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().quota_partition(&namespace, &args.name);
        let verb = Define { namespace: &namespace, args: &args };
        let identity = self.callers_identity::<CreateQuota>(caller, &args, None);
        let created = self.transact_once(partition, identity, &verb).await?;
        let Some(count) = created else { return Ok(Outcome::AlreadyExists) };
        let gate = format!("q:{}", args.name);
        self.release_parked(&namespace, &gate, self.everywhere(count)).await;
        Ok(Outcome::Created)
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
        let existing = tx.load::<QuotaPolicy>(QuotaPolicy::key_of(name.0, name.1)).await?;
        let existing = existing.map(|loaded| loaded.document);
        match QuotaPolicy::define(existing.as_ref(), name, self.args.definition(), tx.now)? {
            Defined::AlreadyExists => Ok(None),
            Defined::Created(quota) => {
                tx.hint(Item::Gate(index::blocked(name.0, &format!("q:{}", name.1))));
                tx.save(&quota);
                Ok(Some(quota.release_count(tx.now)))
            }
        }
    }
}
