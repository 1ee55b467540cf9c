//! Providers, and the calls that are made to them.

use ff_core::execution::Execution;
use ff_core::gate::Defined;
use ff_core::lease::LeaseFence;
use ff_core::op::parts::{NamedRemoval, NamespacePage, Removed};
use ff_core::op::{
    AcquireProvider, AcquireProviderArgs, CreateProvider, CreateProviderArgs, CreateProviderOutcome, DeleteProvider,
    GetProvider, GetProviderArgs, ListProviders, ListProvidersOutcome, SettleProvider, SettleProviderArgs,
    SettleProviderOutcome, ThrottleProvider, ThrottleProviderArgs, UpdateProvider, UpdateProviderArgs,
};
use ff_core::provider::{AcquireRequest, Acquired, BookingId, Provider, ProviderChange, ProviderStatus};
use ff_core::{Code, Error, Family, Key, Result, limits};

use crate::caller::Caller;
use crate::cursor;
use crate::named_documents::{RemoveNamed, no_such, page};
use crate::op::Handle;
use crate::providers::{ProviderAnswer, ProviderAsk};
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<CreateProvider> for Services {
    async fn handle(&self, caller: &Caller, args: CreateProviderArgs) -> Result<CreateProviderOutcome> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let verb = DefineProvider { namespace: &namespace, args: &args };
        let identity = self.transactor.callers_identity::<CreateProvider>(caller, &args, None);
        self.transactor.transact_once_by_name(partition, identity, &verb).await
    }
}

struct DefineProvider<'a> {
    namespace: &'a str,
    args: &'a CreateProviderArgs,
}

impl Command for DefineProvider<'_> {
    type Outcome = CreateProviderOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateProviderOutcome> {
        let name = (self.namespace, self.args.name.as_str());
        let existing = tx.load::<Provider>(Provider::key_of(name.0, name.1)).await?;
        let existing = existing.map(|loaded| loaded.document);
        match Provider::define(existing.as_ref(), name, self.args.definition(), tx.now)? {
            Defined::AlreadyExists => Ok(CreateProviderOutcome::AlreadyExists),
            Defined::Created(provider) => {
                tx.save(&provider);
                Ok(CreateProviderOutcome::Created)
            }
        }
    }
}

impl Handle<GetProvider> for Services {
    async fn handle(&self, caller: &Caller, args: GetProviderArgs) -> Result<ProviderStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let status = self.provider_status(&namespace, &args.name).await?;
        status.ok_or_else(|| no_such(Code::ProviderNotFound, &args.name))
    }
}

impl Services {
    /// A provider as it is now.
    pub(crate) async fn provider_status(&self, namespace: &str, name: &str) -> Result<Option<ProviderStatus>> {
        let partition = self.transactor.partitions().quota_partition(namespace, name);
        let provider = self.transactor.find::<Provider>(partition, Provider::key_of(namespace, name)).await?;
        Ok(provider.map(|provider| provider.status(self.transactor.now_in(partition))))
    }
}

impl Handle<ListProviders> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListProvidersOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Quota).collect();
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all =
            self.transactor.named_after::<Provider>(partitions, &namespace, cursor, |provider| &provider.name).await?;
        let (providers, next_cursor) = page(all, limit, |provider| &provider.name);
        let now = self.transactor.now();
        Ok(ListProvidersOutcome { items: providers.iter().map(|provider| provider.status(now)).collect(), next_cursor })
    }
}

impl Handle<UpdateProvider> for Services {
    async fn handle(&self, caller: &Caller, args: UpdateProviderArgs) -> Result<ProviderStatus> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let key = Provider::key_of(&namespace, &args.name);
        let verb = ChangeProvider { key, name: &args.name, change: args.change() };
        self.transactor.transact_in_turn(partition, verb.key.clone(), &verb).await
    }
}

struct ChangeProvider<'a> {
    key: Key,
    name: &'a str,
    change: ProviderChange,
}

impl Command for ChangeProvider<'_> {
    type Outcome = ProviderStatus;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ProviderStatus> {
        let loaded = tx.load::<Provider>(self.key.clone()).await?;
        let mut provider = loaded.ok_or_else(|| no_such(Code::ProviderNotFound, self.name))?.document;
        let before = provider.clone();
        provider.update(&self.change, tx.now)?;
        if provider != before {
            tx.save(&provider);
        }
        Ok(provider.status(tx.now))
    }
}

/// Bookings of a provider that is deleted lapse by themselves.
impl Handle<DeleteProvider> for Services {
    async fn handle(&self, caller: &Caller, args: NamedRemoval) -> Result<Removed> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let key = Provider::key_of(&namespace, &args.name);
        if !args.force
            && let Some(status) = self.provider_status(&namespace, &args.name).await?
            && status.in_use + status.booked > 0
        {
            let detail = format!("the provider {} has calls under way or booked", args.name);
            return Err(Error::new(Code::InUse, detail).with("in_use", status.in_use).with("booked", status.booked));
        }
        let identity = self.transactor.identity::<DeleteProvider>(caller, &args, None);
        let verb = RemoveNamed::<Provider>::new(key, &args.name, Code::ProviderNotFound);
        self.transactor.transact_once(partition, identity, &verb).await
    }
}

impl Handle<AcquireProvider> for Services {
    async fn handle(&self, caller: &Caller, args: AcquireProviderArgs) -> Result<Acquired> {
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        self.check_live(&execution, lease_until, &args.fence).await?;
        let request = AcquireRequest {
            id: booking_id(&execution, &args.provider, &args.key),
            lease: args.fence.lease_id,
            cost: args.cost,
            ttl_ms: args.ttl_ms.unwrap_or(limits::RESERVATION_TTL_DEFAULT_MS),
        };
        match self
            .shared
            .providers
            .ask_provider(&execution.namespace, &args.provider, ProviderAsk::Acquire(request))
            .await?
        {
            ProviderAnswer::Acquired(acquired) => Ok(acquired),
            ProviderAnswer::Settled(_) | ProviderAnswer::Lapsed => Err(Error::of(Code::Internal)),
        }
    }
}

impl Services {
    /// Refuses a fence whose lease does not hold now.
    async fn check_live(&self, execution: &Execution, lease_until: i64, fence: &LeaseFence) -> Result<()> {
        let partition = execution.id.partition();
        let holds = execution.check_fence(fence).and_then(|()| match lease_until > self.transactor.now_in(partition) {
            true => Ok(()),
            false => Err(Error::of(Code::LeaseExpired)),
        });
        match holds {
            Ok(()) => Ok(()),
            Err(error) => self.transactor.confirm(partition, Err(error)).await,
        }
    }
}

/// The lease need not hold any more: what was used was used.
impl Handle<SettleProvider> for Services {
    async fn handle(&self, caller: &Caller, args: SettleProviderArgs) -> Result<SettleProviderOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        self.check_reporter(caller, &execution, &args.fence).await?;
        let id = booking_id(&execution, &args.provider, &args.key);
        let ask = ProviderAsk::Settle { id, lease: args.fence.lease_id, actual: args.actual };
        match self.shared.providers.ask_provider(&execution.namespace, &args.provider, ask).await? {
            ProviderAnswer::Settled(settled) => Ok(settled),
            ProviderAnswer::Acquired(_) | ProviderAnswer::Lapsed => Err(Error::of(Code::Internal)),
        }
    }
}

fn booking_id(execution: &Execution, provider: &str, key: &str) -> BookingId {
    BookingId {
        namespace: execution.namespace.clone(),
        provider: provider.to_owned(),
        execution: execution.id,
        key: key.to_owned(),
    }
}

impl Handle<ThrottleProvider> for Services {
    async fn handle(&self, caller: &Caller, args: ThrottleProviderArgs) -> Result<ProviderStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().quota_partition(&namespace, &args.name);
        let key = Provider::key_of(&namespace, &args.name);
        let _turn = self.transactor.locks().take(partition, key.clone()).await;
        let identity = self.transactor.identity::<ThrottleProvider>(caller, &args, args.command_id);
        let verb = Throttle { key, args: &args };
        let status = self.transactor.transact_once(partition, identity, &verb).await?;
        self.transactor.metrics().provider_changed(&status);
        Ok(status)
    }
}

struct Throttle<'a> {
    key: Key,
    args: &'a ThrottleProviderArgs,
}

impl Command for Throttle<'_> {
    type Outcome = ProviderStatus;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ProviderStatus> {
        let loaded = tx.load::<Provider>(self.key.clone()).await?;
        let mut provider = loaded.ok_or_else(|| no_such(Code::ProviderNotFound, &self.args.name))?.document;
        provider.throttle(self.args.retry_after_ms, tx.now);
        tx.save(&provider);
        Ok(provider.status(tx.now))
    }
}
