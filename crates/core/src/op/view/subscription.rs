//! Subscriptions and their deliveries.

use serde::{Deserialize, Serialize};

use super::{EventView, NoteView};
use crate::error::Result;
use crate::execution::Execution;
use crate::id::{ExecutionId, LeaseId, SubscriptionId};
use crate::op::SubscriptionTarget;
use crate::policy::RetryPolicy;
use crate::state::PublicState;
use crate::subscription::{EventFilter, Subscription, SubscriptionState, TEST_TYPE, redacted_url};

/// Everything about a subscription but its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubscriptionView {
    /// Its id, which is part of the ids of its deliveries.
    pub subscription_id: SubscriptionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it delivers.
    pub state: SubscriptionState,
    /// Which events.
    pub filter: EventFilter,
    /// The target of an event: a webhook, or new work.
    pub target: SubscriptionTarget,
    /// When a webhook that failed is sent again.
    pub retry: RetryPolicy,
    /// The note of the last pause or resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<NoteView>,
    /// The name of the caller that created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
    /// How many deliveries it has made.
    pub delivery_count: u64,
    /// How many events could not be delivered because nothing could be created for them.
    pub refused_count: u64,
    /// How often the log of events no longer reached back to where it was: events were lost to it.
    pub gaps: u64,
    /// The last deliveries, the newest first.
    pub deliveries: Vec<DeliveryView>,
}

/// The short form in lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SubscriptionSummary {
    /// Its id.
    pub subscription_id: SubscriptionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it delivers.
    pub state: SubscriptionState,
    /// Which events.
    pub filter: EventFilter,
    /// Where its webhooks go; absent where it creates executions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The kind of the executions that it creates; absent where it sends webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The note of the last pause or resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<NoteView>,
    /// When it was created.
    pub created_at: i64,
}

/// A delivery: an execution like any other, to be explained and replayed by its id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeliveryView {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The event.
    pub event_id: String,
    /// The type of the event.
    pub event_type: String,
    /// How far it is.
    pub public_state: PublicState,
    /// How often it was begun.
    pub attempts: u32,
    /// Why it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// When it was created.
    pub created_at: i64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
}

impl DeliveryView {
    /// The view of a delivery; `None` for any other execution.
    pub fn of(execution: &Execution) -> Option<Self> {
        let delivery = execution.delivery.as_ref()?;
        Some(Self {
            execution_id: execution.id,
            event_id: delivery.event_id.clone(),
            event_type: delivery.event_type.clone(),
            public_state: execution.public_state(),
            attempts: execution.attempt.as_ref().map_or(0, |attempt| attempt.index.0.saturating_add(1)),
            failure: execution.failure.as_ref().map(|failure| failure.reason.clone()),
            created_at: execution.created_at,
            ended_at: Some(execution.ended_at).filter(|at| *at != 0),
        })
    }
}

impl SubscriptionView {
    /// The view of a subscription. The engine, which can read them, adds counts and deliveries.
    pub fn of(subscription: &Subscription, for_admin: bool) -> Result<Self> {
        let definition = &subscription.definition;
        let mut target = SubscriptionTarget::of(definition)?;
        if let SubscriptionTarget::Webhook(webhook) = &mut target
            && !for_admin
        {
            webhook.url = redacted_url(&webhook.url);
        }
        Ok(Self {
            subscription_id: subscription.id,
            namespace: subscription.namespace.clone(),
            name: subscription.name.clone(),
            state: subscription.state(),
            filter: definition.filter.clone(),
            target,
            retry: definition.retry.clone(),
            note: subscription.note.as_ref().map(NoteView::from),
            created_by: subscription.created_by.clone(),
            created_at: subscription.created_at,
            updated_at: subscription.updated_at,
            delivery_count: 0,
            refused_count: 0,
            gaps: 0,
            deliveries: Vec::new(),
        })
    }
}

impl SubscriptionSummary {
    /// The short form of a subscription.
    pub fn of(subscription: &Subscription, for_admin: bool) -> Self {
        let definition = &subscription.definition;
        let url = if for_admin { definition.url.clone() } else { redacted_url(&definition.url) };
        let kind = match SubscriptionTarget::of(definition) {
            Ok(SubscriptionTarget::Execution(request)) => Some(request.kind),
            _ => None,
        };
        Self {
            subscription_id: subscription.id,
            namespace: subscription.namespace.clone(),
            name: subscription.name.clone(),
            state: subscription.state(),
            filter: definition.filter.clone(),
            url: subscription.is_webhook().then_some(url),
            kind,
            note: subscription.note.as_ref().map(NoteView::from),
            created_at: subscription.created_at,
        }
    }
}

/// The body of a webhook, and the input of the execution that another target creates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventMessage {
    /// The type of the event.
    #[serde(rename = "type")]
    pub message_type: String,
    /// When, as RFC 3339.
    pub timestamp: String,
    /// The namespace.
    pub namespace: String,
    /// The subscription by name.
    pub subscription: String,
    /// The event; absent in the message of a test.
    pub data: Option<EventView>,
}

impl EventMessage {
    /// The message about an event. It names no lease: a receiver that knew one could act in the place of its holder.
    pub fn of(subscription: &Subscription, mut view: EventView) -> Self {
        view.event.lease_id = view.event.lease_id.map(|_| LeaseId::default());
        Self {
            message_type: view.event.event_type.as_str().to_owned(),
            timestamp: timestamp(view.happened_at),
            namespace: subscription.namespace.clone(),
            subscription: subscription.name.clone(),
            data: Some(view),
        }
    }

    /// The message of a test.
    pub fn test(subscription: &Subscription, now: i64) -> Self {
        Self {
            message_type: TEST_TYPE.to_owned(),
            timestamp: timestamp(now),
            namespace: subscription.namespace.clone(),
            subscription: subscription.name.clone(),
            data: None,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("messages hold only types that JSON can express")
    }
}

fn timestamp(at: i64) -> String {
    jiff::Timestamp::from_millisecond(at).map(|at| at.to_string()).unwrap_or_default()
}
