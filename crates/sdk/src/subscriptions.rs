//! Subscriptions: each event is delivered once.

use ff_core::event::EventType;
use ff_core::id::{ExecutionId, FlowId};
use ff_core::op::parts::Secret;
use ff_core::op::view::{SubscriptionSummary, SubscriptionView};
use ff_core::op::{
    CreateSubscription, DeleteSubscription, GetSubscription, ListSubscriptions, PauseSubscription, ResumeSubscription,
    SubscriptionName, SubscriptionNote, SubscriptionTarget, TestSubscription, WebhookTarget, create_execution,
    create_subscription, delete_subscription, list_subscriptions, test_subscription,
};
use ff_core::policy::RetryPolicy;

use crate::client::Client;
use crate::error::Result;

/// A subscription in the making.
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// use flowfabric::EventType;
///
/// let alarms = client.subscription("alarms").events([EventType::Failed]).tag("team", "billing");
/// let created = alarms.webhook("https://example.com/flowfabric", None).await?;
/// # let _ = created;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a subscription is made by `webhook` or `execution`"]
pub struct NewSubscription<'a> {
    client: &'a Client,
    name: String,
    filter: ff_core::subscription::EventFilter,
    retry: Option<RetryPolicy>,
}

impl NewSubscription<'_> {
    /// Only events of these types; the ends of executions where none is named.
    pub fn events(mut self, types: impl IntoIterator<Item = EventType>) -> Self {
        self.filter.event_types.extend(types);
        self
    }

    /// Only executions of this kind, or of others that were named so.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.filter.kinds.push(kind.into());
        self
    }

    /// Only executions with this tag.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.filter.tags.insert(key.into(), value.into());
        self
    }

    /// Only members of this flow.
    pub fn flow(mut self, flow: FlowId) -> Self {
        self.filter.flow_id = Some(flow);
        self
    }

    /// When a webhook that failed is sent again.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Each event is sent to an address, signed with the secret. Without one the server makes it, and the answer shows it
    /// this once.
    pub async fn webhook(self, url: impl Into<String>, secret: Option<Secret>) -> Result<create_subscription::Outcome> {
        self.create(SubscriptionTarget::Webhook(WebhookTarget { url: url.into(), secret })).await
    }

    /// For each event an execution is created, whose input is the event.
    pub async fn execution(self, template: create_execution::Args) -> Result<create_subscription::Outcome> {
        self.create(SubscriptionTarget::Execution(Box::new(template))).await
    }

    async fn create(self, target: SubscriptionTarget) -> Result<create_subscription::Outcome> {
        let filter = Some(self.filter);
        let args = create_subscription::Args { name: self.name, namespace: None, filter, target, retry: self.retry };
        self.client.call::<CreateSubscription>(args).await
    }
}

/// Subscriptions.
impl Client {
    /// A subscription to what happens from now on. The same definition again is no error.
    pub fn subscription(&self, name: impl Into<String>) -> NewSubscription<'_> {
        NewSubscription { client: self, name: name.into(), filter: Default::default(), retry: None }
    }

    /// A subscription with its last deliveries.
    pub async fn get_subscription(&self, name: &str) -> Result<SubscriptionView> {
        self.call::<GetSubscription>(named(name)).await
    }

    /// All subscriptions by name.
    pub async fn list_subscriptions(&self) -> Result<Vec<SubscriptionSummary>> {
        let mut subscriptions = Vec::new();
        let mut page = list_subscriptions::Args::default();
        loop {
            let answer = self.call::<ListSubscriptions>(page.clone()).await?;
            subscriptions.extend(answer.items);
            match answer.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(subscriptions),
            }
        }
    }

    /// Pauses a subscription; the note is kept and shown.
    pub async fn pause_subscription(&self, name: &str, note: Option<&str>) -> Result<SubscriptionSummary> {
        self.call::<PauseSubscription>(noted(name, note)).await
    }

    /// Lets a paused subscription go on where it stopped.
    pub async fn resume_subscription(&self, name: &str, note: Option<&str>) -> Result<SubscriptionSummary> {
        self.call::<ResumeSubscription>(noted(name, note)).await
    }

    /// Delivers a message of the type `test`; answers with the delivery.
    pub async fn test_subscription(&self, name: &str) -> Result<ExecutionId> {
        let args = test_subscription::Args { name: name.to_owned(), namespace: None, command_id: None };
        Ok(self.call::<TestSubscription>(args).await?.execution_id)
    }

    /// Removes a subscription. Its open webhooks are cancelled.
    pub async fn delete_subscription(&self, name: &str) -> Result<delete_subscription::Outcome> {
        self.call::<DeleteSubscription>(named(name)).await
    }
}

fn named(name: &str) -> SubscriptionName {
    SubscriptionName { name: name.to_owned(), namespace: None }
}

fn noted(name: &str, note: Option<&str>) -> SubscriptionNote {
    SubscriptionNote { name: name.to_owned(), namespace: None, note: note.map(str::to_owned) }
}
