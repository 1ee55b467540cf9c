//! Subscriptions: each event is delivered once.

use ff_core::execution::Execution;
use ff_core::op::parts::{DEFAULT_LANE, NamespacePage, Secret};
use ff_core::op::view::{DeliveryView, EventMessage, SubscriptionSummary, SubscriptionView};
use ff_core::op::{
    CreateSubscription, CreateSubscriptionArgs, CreateSubscriptionOutcome, DeleteSubscription,
    DeleteSubscriptionOutcome, GetSubscription, ListSubscriptions, ListSubscriptionsOutcome, PauseSubscription,
    ResumeSubscription, SubscriptionName, SubscriptionNote, SubscriptionTarget, TestSubscription, TestSubscriptionArgs,
    TestSubscriptionOutcome,
};
use ff_core::subscription::{NewSubscription, Subscription, SubscriptionCursor, TEST_TYPE};
use ff_core::{Code, ExecutionId, Partition, Result, Role, SubscriptionId, index, limits, signature, text};
use ff_store::{Answer, Query, Scan};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::caller::Caller;
use crate::named_documents::{no_such, page};
use crate::op::Handle;
use crate::services::Services;
use crate::submission::Submissions;
use crate::subscription::{NewDelivery, create_delivery, watch_creation};
use crate::transaction::{Command, Tx};
use crate::{cursor, env};

/// Partitions that are read at the same time.
const PARTITIONS_AT_ONCE: usize = 16;

impl Services {
    /// A subscription that is there and stays there.
    async fn subscription(&self, caller: &Caller, namespace: Option<&str>, name: &str) -> Result<Subscription> {
        let namespace = caller.namespace(namespace)?;
        let found =
            self.transactor.find::<Subscription>(Partition::SYSTEM, Subscription::key_of(&namespace, name)).await?;
        found.filter(|found| !found.removing).ok_or_else(|| no_such(Code::SubscriptionNotFound, name))
    }
}

/// Whether a caller may see where webhooks go.
fn is_admin(caller: &Caller) -> bool {
    caller.role.allows(Role::Admin)
}

impl Handle<CreateSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: CreateSubscriptionArgs) -> Result<CreateSubscriptionOutcome> {
        // It sees what happens in every lane.
        caller.check_every_lane()?;
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let given = match &args.target {
            SubscriptionTarget::Webhook(webhook) => webhook.secret.as_ref(),
            SubscriptionTarget::Execution(request) => {
                self.shared.system.check_lane(request.lane.as_deref().unwrap_or(DEFAULT_LANE))?;
                None
            }
            SubscriptionTarget::Unknown(variant) => return Err(variant.refused("target")),
        };
        let secret = match given {
            Some(secret) => signature::read_secret("target.webhook.secret", &secret.0)?,
            None => ff_core::Secret::from_random(env::random_bytes(self.transactor.env())),
        };
        let new = NewSubscription {
            id: SubscriptionId::mint(&env::mint(self.transactor.env(), self.transactor.now())),
            namespace,
            name: args.name.clone(),
            definition: args.definition()?,
            secret,
            own_secret: given.is_some(),
            created_by: name_of(caller).to_owned(),
        };
        let key = Subscription::key_of(&new.namespace, &new.name);
        if let Some(old) =
            self.transactor.find::<Subscription>(Partition::SYSTEM, key.clone()).await?.filter(|old| old.removing)
        {
            self.shared.subscriptions.finish_removal(&old).await?;
        }
        let identity = self.transactor.callers_identity::<CreateSubscription>(caller, &args, None);
        let mut outcome = self.transactor.transact_once(Partition::SYSTEM, identity, &Define { new }).await?;
        if let Some(id) = outcome.subscription_id() {
            self.shared.subscriptions.begin_cursors(id).await?;
        }
        if let (CreateSubscriptionOutcome::Created { subscription_id, secret }, None, SubscriptionTarget::Webhook(_)) =
            (&mut outcome, given, &args.target)
        {
            // From the subscription and not from the kept answer: what is kept of the call holds no secret.
            let created = self.transactor.find::<Subscription>(Partition::SYSTEM, key).await?;
            let created = created.filter(|created| created.id == *subscription_id);
            *secret = created.map(|created| Secret(signature::show_secret(&created.secret)));
        }
        Ok(outcome)
    }
}

struct Define {
    new: NewSubscription,
}

impl Command for Define {
    type Outcome = CreateSubscriptionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateSubscriptionOutcome> {
        let key = Subscription::key_of(&self.new.namespace, &self.new.name);
        if let Some(loaded) = tx.load::<Subscription>(key).await? {
            loaded.document.check_same(&self.new)?;
            return Ok(CreateSubscriptionOutcome::AlreadyExists { subscription_id: loaded.document.id });
        }
        let count = tx.count(Subscription::everywhere()).await?;
        if count >= limits::SUBSCRIPTIONS_MAX {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let max = usize::try_from(limits::SUBSCRIPTIONS_MAX).unwrap_or(usize::MAX);
            return Err(text::too_many("subscriptions", count.saturating_add(1), max));
        }
        let subscription = Subscription::create(self.new.clone(), tx.now)?;
        tx.save(&subscription);
        if subscription.definition.filter.asks_for_creation() {
            watch_creation(tx, &subscription.namespace, 1).await?;
        }
        Ok(CreateSubscriptionOutcome::Created { subscription_id: subscription.id, secret: None })
    }
}

impl Handle<GetSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: SubscriptionName) -> Result<SubscriptionView> {
        let subscription = self.subscription(caller, args.namespace.as_deref(), &args.name).await?;
        let mut view = SubscriptionView::of(&subscription, is_admin(caller))?;
        let look = |partition| self.deliveries_in(partition, &subscription);
        let found = stream::iter(self.transactor.flow_partitions()).map(look).buffer_unordered(PARTITIONS_AT_ONCE);
        for (cursor, deliveries) in found.try_collect::<Vec<_>>().await? {
            view.delivery_count += cursor.deliveries;
            view.refused_count += cursor.refused;
            view.gaps += cursor.gaps;
            view.deliveries.extend(deliveries);
        }
        view.deliveries.sort_by_key(|one| std::cmp::Reverse((one.created_at, one.execution_id)));
        view.deliveries.truncate(limits::DELIVERIES_SHOWN);
        Ok(view)
    }
}

impl Services {
    /// The cursor of a subscription in a partition, and its last deliveries there.
    async fn deliveries_in(
        &self,
        partition: Partition,
        subscription: &Subscription,
    ) -> Result<(SubscriptionCursor, Vec<DeliveryView>)> {
        let last = Scan::last(index::deliveries(subscription.id.0), limits::DELIVERIES_SHOWN).with_documents();
        let key = SubscriptionCursor::key_of(&subscription.id);
        let answers = self.transactor.read(partition, vec![Query::Documents(vec![key]), Query::Scan(last)]).await?;
        let mut answers = answers.answers.into_iter();
        let cursor = answers.next().and_then(Answer::into_documents).unwrap_or_default().into_iter().flatten().next();
        let cursor =
            cursor.and_then(|stored| self.transactor.readable::<SubscriptionCursor>(&stored)).unwrap_or_default();
        let page = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let documents = page.entries.into_iter().filter_map(|entry| entry.document);
        let executions = documents.filter_map(|stored| self.transactor.readable::<Execution>(&stored));
        Ok((cursor, executions.filter_map(|execution| DeliveryView::of(&execution)).collect()))
    }
}

impl Handle<ListSubscriptions> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListSubscriptionsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let partitions = vec![Partition::SYSTEM];
        let mut all = self
            .transactor
            .named_after::<Subscription>(partitions, &namespace, cursor.as_deref(), |one| &one.name)
            .await?;
        all.retain(|one| !one.removing);
        let (subscriptions, next_cursor) = page(all, limit, |one| &one.name);
        let items = subscriptions.iter().map(|one| SubscriptionSummary::of(one, is_admin(caller))).collect();
        Ok(ListSubscriptionsOutcome { items, next_cursor })
    }
}

/// Names of callers come from outside and may be longer than a label.
fn name_of(caller: &Caller) -> &str {
    match text::label("caller", &caller.name) {
        Ok(()) => &caller.name,
        Err(_) => "",
    }
}

impl Handle<PauseSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: SubscriptionNote) -> Result<SubscriptionSummary> {
        caller.check_every_lane()?;
        let identity = self.transactor.identity::<PauseSubscription>(caller, &args, None);
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let change = SetPaused { caller, namespace: &namespace, args: &args, paused: true };
        self.transactor.transact_once(Partition::SYSTEM, identity, &change).await
    }
}

impl Handle<ResumeSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: SubscriptionNote) -> Result<SubscriptionSummary> {
        caller.check_every_lane()?;
        let identity = self.transactor.identity::<ResumeSubscription>(caller, &args, None);
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let change = SetPaused { caller, namespace: &namespace, args: &args, paused: false };
        let resumed = self.transactor.transact_once(Partition::SYSTEM, identity, &change).await?;
        self.shared.subscriptions.deliver_soon(&namespace, &args.name);
        Ok(resumed)
    }
}

struct SetPaused<'a> {
    caller: &'a Caller,
    namespace: &'a str,
    args: &'a SubscriptionNote,
    paused: bool,
}

impl Command for SetPaused<'_> {
    type Outcome = SubscriptionSummary;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SubscriptionSummary> {
        let mut subscription = load(tx, self.namespace, &self.args.name).await?;
        let note = self.args.note.as_deref().unwrap_or_default();
        if subscription.set_paused(self.paused, note, name_of(self.caller), tx.now)? {
            tx.save(&subscription);
        }
        Ok(SubscriptionSummary::of(&subscription, is_admin(self.caller)))
    }
}

async fn load(tx: &mut Tx<'_>, namespace: &str, name: &str) -> Result<Subscription> {
    let loaded = tx.load::<Subscription>(Subscription::key_of(namespace, name)).await?;
    let found = loaded.map(|loaded| loaded.document).filter(|found| !found.removing);
    found.ok_or_else(|| no_such(Code::SubscriptionNotFound, name))
}

impl Handle<TestSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: TestSubscriptionArgs) -> Result<TestSubscriptionOutcome> {
        caller.check_every_lane()?;
        let subscription = self.subscription(caller, args.namespace.as_deref(), &args.name).await?;
        let identity = self.transactor.identity::<TestSubscription>(caller, &args, args.command_id);
        let partition = self.transactor.partitions().key_partition(&subscription.namespace, &subscription.name);
        let event_id = format!("{TEST_TYPE}-{}", self.transactor.fresh_command());
        let id = subscription.delivery_id(partition, &event_id, self.transactor.now());
        let verb =
            CreateTestDelivery { submissions: &self.shared.submissions, subscription: &subscription, event_id, id };
        self.transactor.transact_once(partition, identity, &verb).await
    }
}

struct CreateTestDelivery<'a> {
    submissions: &'a Submissions,
    subscription: &'a Subscription,
    event_id: String,
    id: ExecutionId,
}

impl Command for CreateTestDelivery<'_> {
    type Outcome = TestSubscriptionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TestSubscriptionOutcome> {
        let message = EventMessage::test(self.subscription, tx.now);
        let new = NewDelivery { id: self.id, event_id: self.event_id.clone(), message };
        create_delivery(tx, self.submissions, self.subscription, new).await?;
        Ok(TestSubscriptionOutcome { execution_id: self.id })
    }
}

impl Handle<DeleteSubscription> for Services {
    async fn handle(&self, caller: &Caller, args: SubscriptionName) -> Result<DeleteSubscriptionOutcome> {
        caller.check_every_lane()?;
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let identity = self.transactor.identity::<DeleteSubscription>(caller, &args, None);
        let verb = BeginRemoval { namespace: &namespace, name: &args.name };
        let outcome = self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await?;
        let key = Subscription::key_of(&namespace, &args.name);
        let removed = self.transactor.find::<Subscription>(Partition::SYSTEM, key).await?;
        if let Some(removed) = removed.filter(|one| one.id == outcome.subscription_id) {
            self.shared.subscriptions.finish_removal(&removed).await?;
        }
        Ok(outcome)
    }
}

struct BeginRemoval<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Command for BeginRemoval<'_> {
    type Outcome = DeleteSubscriptionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeleteSubscriptionOutcome> {
        let mut subscription = load(tx, self.namespace, self.name).await?;
        subscription.removing = true;
        tx.save(&subscription);
        Ok(DeleteSubscriptionOutcome { subscription_id: subscription.id })
    }
}
