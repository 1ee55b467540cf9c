//! Subscriptions: each event is delivered once.

use serde::{Deserialize, Serialize};

use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::id::{CommandId, ExecutionId, SubscriptionId};
use crate::limits;
use crate::op::parts::{self, NamespacePage, Secret};
use crate::op::view::{SubscriptionSummary, SubscriptionView};
use crate::op::{Created, Minting, create_execution, operation};
use crate::policy::RetryPolicy;
use crate::subscription::{EventFilter, SubscriptionDefinition, WebhookUrl, default_retry};
use crate::{signature, text};

operation! {
    /// Creates a subscription to what happens from now on. The same definition again is the same subscription, another one a
    /// conflict.
    CreateSubscription(CreateSubscriptionArgs) -> CreateSubscriptionOutcome,
    "create_subscription" Post "/v1/subscriptions" Admin administrative validated namespaced keyed creates body(parts::body_for(limits::SCHEDULE_TEMPLATE_MAX_BYTES))
}

/// The arguments of `create_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSubscriptionArgs {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it belongs, and whose events it sees; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which events; the ends of all executions when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<EventFilter>,
    /// The target of an event: a webhook, or new work.
    pub target: SubscriptionTarget,
    /// When a webhook that failed is sent again; some ten times within hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
}

/// The target of an event: a webhook, or new work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum SubscriptionTarget {
    /// A request to an address, signed by the scheme of Standard Webhooks.
    Webhook(WebhookTarget),
    /// An execution, whose input is the event.
    Execution(Box<create_execution::Args>),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(SubscriptionTarget);

/// Where a webhook goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct WebhookTarget {
    /// The address. Callers that may not administer are shown its host only.
    pub url: String,
    /// The secret that signs requests: `whsec_` and base64. Made by the server, and shown once, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}
crate::newer::open_struct!(WebhookTarget);

impl SubscriptionTarget {
    /// Refuses addresses that cannot be sent to, and templates that nothing could be made from.
    pub fn validate(&self) -> Result<()> {
        match self {
            SubscriptionTarget::Webhook(webhook) => {
                WebhookUrl::parse("target.webhook.url", &webhook.url)?;
                let secret = webhook.secret.as_ref();
                secret.map_or(Ok(()), |secret| signature::read_secret("target.webhook.secret", &secret.0).map(drop))
            }
            SubscriptionTarget::Execution(request) => {
                crate::op::check_template("target.execution", request)?;
                if request.input.is_some() || request.input_base64.is_some() {
                    return Err(Error::invalid("target.execution.input", "must be absent: the event is the input"));
                }
                request.validate().map_err(|error| error.inside("target.execution"))
            }
            SubscriptionTarget::Unknown(variant) => Err(variant.refused("target")),
        }
    }

    /// The bytes that a subscription keeps of its template; none for a webhook.
    pub fn template(&self) -> Result<Blob> {
        let SubscriptionTarget::Execution(request) = self else { return Ok(Blob::default()) };
        let bytes = serde_json::to_vec(request).expect("requests hold only types that JSON can express");
        if bytes.len() > limits::SCHEDULE_TEMPLATE_MAX_BYTES {
            return Err(Error::too_large("target.execution", bytes.len(), limits::SCHEDULE_TEMPLATE_MAX_BYTES));
        }
        Ok(bytes.into())
    }

    /// The target as its creator wrote it, from what a subscription keeps; without the secret.
    pub fn of(definition: &SubscriptionDefinition) -> Result<Self> {
        if !definition.url.is_empty() {
            return Ok(SubscriptionTarget::Webhook(WebhookTarget { url: definition.url.clone(), secret: None }));
        }
        let read = serde_json::from_slice(&definition.template);
        let corrupt = |error| Error::new(Code::CorruptDocument, format!("the template of a subscription: {error}"));
        read.map(|request| SubscriptionTarget::Execution(Box::new(request))).map_err(corrupt)
    }
}

impl CreateSubscriptionArgs {
    /// The definition that is kept of it, without the secret.
    pub fn definition(&self) -> Result<SubscriptionDefinition> {
        let url = match &self.target {
            SubscriptionTarget::Webhook(webhook) => webhook.url.clone(),
            SubscriptionTarget::Execution(_) | SubscriptionTarget::Unknown(_) => String::new(),
        };
        Ok(SubscriptionDefinition {
            filter: self.filter.clone().unwrap_or_default(),
            url,
            template: self.target.template()?,
            retry: self.retry.clone().unwrap_or_else(default_retry),
            ..Default::default()
        })
    }

    /// Refuses bad names, filters that no event could fit, and targets that nothing could go to.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())?;
        self.target.validate()?;
        self.definition()?.validate()
    }
}

/// The answer to `create_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateSubscriptionOutcome {
    /// It was created.
    Created {
        /// The subscription.
        subscription_id: SubscriptionId,
        /// The secret that signs its webhooks, if the server made it. It is not shown again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<Secret>,
    },
    /// It existed before, with the same definition.
    AlreadyExists {
        /// The subscription.
        subscription_id: SubscriptionId,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateSubscriptionOutcome);

impl CreateSubscriptionOutcome {
    /// The subscription, unless a newer server does not say it.
    pub fn subscription_id(&self) -> Option<SubscriptionId> {
        match self {
            Self::Created { subscription_id, .. } | Self::AlreadyExists { subscription_id } => Some(*subscription_id),
            Self::Unknown(variant) => variant.field("subscription_id"),
        }
    }

    /// The subscription, if this call created it.
    pub fn created(&self) -> Created {
        if matches!(self, Self::Created { .. }) { Created::AsNamed } else { Created::Nothing }
    }
}

operation! {
    /// Shows a subscription with its last deliveries.
    GetSubscription(SubscriptionName) -> SubscriptionView,
    "get_subscription" Get "/v1/subscriptions/{name}" Reader validated namespaced
}

/// The arguments of `delete_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubscriptionName {
    /// The subscription.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SubscriptionName {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }
}

operation! {
    /// Lists subscriptions by name, without their secrets.
    ListSubscriptions(NamespacePage) -> ListSubscriptionsOutcome,
    "list_subscriptions" Get "/v1/subscriptions" Reader validated filtered namespaced
}

/// The answer to `list_subscriptions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListSubscriptionsOutcome {
    /// The subscriptions.
    pub items: Vec<SubscriptionSummary>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Pauses a subscription: events wait, as far back as the log of events reaches, and so do deliveries under way.
    PauseSubscription(SubscriptionNote) -> SubscriptionSummary,
    "pause_subscription" Post "/v1/subscriptions/{name}/pause" Operator administrative validated namespaced keyed
}

operation! {
    /// Lets a paused subscription go on where it stopped.
    ResumeSubscription(SubscriptionNote) -> SubscriptionSummary,
    "resume_subscription" Post "/v1/subscriptions/{name}/resume" Operator administrative validated namespaced keyed
}

/// The arguments of `resume_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubscriptionNote {
    /// The subscription.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Why; kept and shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl SubscriptionNote {
    /// Refuses bad names and notes that are too long.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())?;
        parts::optional(self.note.as_deref(), "note", text::text)
    }
}

operation! {
    /// Delivers a message of the type `test`, so that people see whether it arrives.
    TestSubscription(TestSubscriptionArgs) -> TestSubscriptionOutcome,
    "test_subscription" Post "/v1/subscriptions/{name}/test" Operator administrative validated namespaced identified("command_id")
}

/// The arguments of `test_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestSubscriptionArgs {
    /// The subscription.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The same id means the same test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl TestSubscriptionArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

/// The answer to `test_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TestSubscriptionOutcome {
    /// The delivery.
    pub execution_id: ExecutionId,
}

operation! {
    /// Removes a subscription. Its open webhooks are cancelled; executions that it created go on.
    DeleteSubscription(SubscriptionName) -> DeleteSubscriptionOutcome,
    "delete_subscription" Delete "/v1/subscriptions/{name}" Admin administrative validated namespaced keyed
}

/// The answer to `delete_subscription`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteSubscriptionOutcome {
    /// The subscription that is gone.
    pub subscription_id: SubscriptionId,
}

fn named(name: &str, namespace: Option<&str>) -> Result<()> {
    text::name("name", name)?;
    parts::optional(namespace, "namespace", text::name)
}
