//! Quotas.

use ff_core::execution::Execution;
use ff_core::gate::{Defined, Gate};
use ff_core::op::parts::{NamedRemoval, NamespacePage, Removed};
use ff_core::op::{
    CreateQuota, CreateQuotaArgs, CreateQuotaOutcome, DeleteQuota, GetQuota, GetQuotaArgs, ListQuotas,
    ListQuotasOutcome, UpdateQuota, UpdateQuotaArgs,
};
use ff_core::quota::{QuotaPolicy, QuotaStatus};
use ff_core::{Code, Family, Result, index};

use crate::caller::Caller;
use crate::cursor;
use crate::hint::Item;
use crate::named_documents::{RemoveNamed, no_such, page};
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<CreateQuota> for Services {
    async fn handle(&self, caller: &Caller, args: CreateQuotaArgs) -> Result<CreateQuotaOutcome> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let verb = DefineQuota { namespace: &namespace, args: &args };
        let identity = self.transactor.callers_identity::<CreateQuota>(caller, &args, None);
        let created = self.transactor.transact_once_by_name(partition, identity, &verb).await?;
        if created.is_none() {
            return Ok(CreateQuotaOutcome::AlreadyExists);
        }
        // A slot that was given back while the quota was made was counted, and nothing takes it off again.
        let key = QuotaPolicy::key_of(&namespace, &args.name);
        if let Err(error) = self.scheduler.recount_quota(partition, &key).await {
            tracing::warn!(quota = args.name, %error, "a new quota cannot be recounted; the reconciler will");
        }
        self.scheduler.look_at_new_gate(&namespace, Gate::Quota(&args.name)).await;
        Ok(CreateQuotaOutcome::Created)
    }
}

struct DefineQuota<'a> {
    namespace: &'a str,
    args: &'a CreateQuotaArgs,
}

impl Command for DefineQuota<'_> {
    type Outcome = Option<u64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<u64>> {
        let name = (self.namespace, self.args.name.as_str());
        let existing = tx.load::<QuotaPolicy>(QuotaPolicy::key_of(name.0, name.1)).await?;
        let existing = existing.map(|loaded| loaded.document);
        match QuotaPolicy::define(existing.as_ref(), name, self.args.definition(), tx.now)? {
            Defined::AlreadyExists => Ok(None),
            Defined::Created(mut quota) => {
                // A quota that was deleted while its claims ran left their slots, which still count.
                let slots = tx.count(index::slots(name.0, name.1)).await?;
                quota.recount(u32::try_from(slots).unwrap_or(u32::MAX), tx.now);
                tx.hint(Item::gate(name.0, Gate::Quota(name.1)));
                tx.save(&quota);
                Ok(Some(quota.release_count(tx.now)))
            }
        }
    }
}

impl Handle<GetQuota> for Services {
    async fn handle(&self, caller: &Caller, args: GetQuotaArgs) -> Result<QuotaStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let quota = self.transactor.find::<QuotaPolicy>(partition, QuotaPolicy::key_of(&namespace, &args.name)).await?;
        quota
            .map(|quota| quota.status(self.transactor.now_in(partition)))
            .ok_or_else(|| no_such(Code::QuotaNotFound, &args.name))
    }
}

impl Handle<ListQuotas> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListQuotasOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Quota).collect();
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all =
            self.transactor.named_after::<QuotaPolicy>(partitions, &namespace, cursor, |quota| &quota.name).await?;
        let (quotas, next_cursor) = page(all, limit, |quota| &quota.name);
        let now = self.transactor.now();
        Ok(ListQuotasOutcome { items: quotas.iter().map(|quota| quota.status(now)).collect(), next_cursor })
    }
}

impl Handle<UpdateQuota> for Services {
    async fn handle(&self, caller: &Caller, args: UpdateQuotaArgs) -> Result<QuotaStatus> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let key = QuotaPolicy::key_of(&namespace, &args.name);
        let verb = ChangeQuota { namespace: &namespace, args: &args };
        let status = self.transactor.transact_in_turn(partition, key, &verb).await?;
        self.scheduler.look_at_gate(&namespace, Gate::Quota(&args.name)).await;
        Ok(status)
    }
}

struct ChangeQuota<'a> {
    namespace: &'a str,
    args: &'a UpdateQuotaArgs,
}

impl Command for ChangeQuota<'_> {
    type Outcome = QuotaStatus;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<QuotaStatus> {
        let (namespace, name) = (self.namespace, &self.args.name);
        let loaded = tx.load::<QuotaPolicy>(QuotaPolicy::key_of(namespace, name)).await?;
        let mut quota = loaded.ok_or_else(|| no_such(Code::QuotaNotFound, name))?.document;
        let before = quota.clone();
        quota.update(&self.args.change(), tx.now)?;
        if quota.release_count(tx.now) > before.release_count(tx.now) {
            tx.hint(Item::gate(namespace, Gate::Quota(name)));
        }
        if quota != before {
            tx.save(&quota);
        }
        Ok(quota.status(tx.now))
    }
}

/// Slots of claims that run are not given back; a quota that is made anew under the name counts those that are left.
impl Handle<DeleteQuota> for Services {
    async fn handle(&self, caller: &Caller, args: NamedRemoval) -> Result<Removed> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let key = QuotaPolicy::key_of(&namespace, &args.name);
        if !args.force && self.transactor.find::<QuotaPolicy>(partition, key.clone()).await?.is_some() {
            let what = format!("the quota {}", args.name);
            let governed = |execution: &Execution| execution.quota.as_ref() == Some(&args.name);
            self.transactor.refuse_in_use(&namespace, &what, governed).await?;
        }
        let identity = self.transactor.identity::<DeleteQuota>(caller, &args, None);
        let verb = RemoveNamed::<QuotaPolicy>::new(key, &args.name, Code::QuotaNotFound);
        self.transactor.transact_once(partition, identity, &verb).await
    }
}
