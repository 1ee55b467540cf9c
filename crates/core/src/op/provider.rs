//! Providers: services outside with limits of their own, and the calls that are made to them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{CommandId, ExecutionId};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::parts::{self, NamedRemoval, NamespacePage, Removed};
use crate::op::{Created, Minting, operation};
use crate::provider::{Acquired, ProviderChange, ProviderCost, ProviderDefinition, ProviderStatus};
use crate::text;

operation! {
    /// Creates a provider: how many requests, tokens and calls at once a service allows. The same definition again is the
    /// same provider, another one a conflict.
    CreateProvider(CreateProviderArgs) -> CreateProviderOutcome,
    "create_provider" Post "/v1/providers" Operator administrative validated namespaced creates
}

/// A provider and its limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateProviderArgs {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The sliding window, 1 s to 24 h; a minute when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<i64>,
    /// Requests within it; no limit when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u64>,
    /// Tokens within it; no limit when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Calls at once; no limit when absent or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
}

/// Whether the provider is new.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateProviderOutcome {
    /// It was created.
    Created,
    /// It existed before, with the same definition.
    AlreadyExists,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateProviderOutcome);

impl CreateProviderOutcome {
    /// The provider, if this call created it.
    pub fn created(&self) -> Created {
        if *self == Self::Created { Created::AsNamed } else { Created::Nothing }
    }
}

impl CreateProviderArgs {
    /// The definition of the provider.
    pub fn definition(&self) -> ProviderDefinition {
        let default = ProviderDefinition::default();
        ProviderDefinition {
            window_ms: self.window_ms.unwrap_or(default.window_ms),
            max_requests: self.max_requests.unwrap_or(default.max_requests),
            max_tokens: self.max_tokens.unwrap_or(default.max_tokens),
            max_concurrent: self.max_concurrent.unwrap_or(default.max_concurrent),
            ..default
        }
    }

    /// Refuses bad names and numbers out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.definition().validate()
    }
}

operation! {
    /// Shows a provider, how full it is, and its effective limits.
    GetProvider(GetProviderArgs) -> ProviderStatus,
    "get_provider" Get "/v1/providers/{name}" Reader validated namespaced
}

/// Which provider is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetProviderArgs {
    /// The provider.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl GetProviderArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Lists providers by name.
    ListProviders(NamespacePage) -> ListProvidersOutcome,
    "list_providers" Get "/v1/providers" Reader validated filtered namespaced
}

/// A page of providers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListProvidersOutcome {
    /// The providers.
    pub items: Vec<ProviderStatus>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

operation! {
    /// Changes a provider; what is not named stays. Calls that have a place in the line keep it.
    UpdateProvider(UpdateProviderArgs) -> ProviderStatus,
    "update_provider" Put "/v1/providers/{name}" Operator administrative validated namespaced
}

/// The arguments of `update_provider`. Absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateProviderArgs {
    /// The provider.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The sliding window. Calls that are counted now count for a whole window of the new length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<i64>,
    /// Requests within it; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_requests: Option<u64>,
    /// Tokens within it; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Calls at once; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
}

impl UpdateProviderArgs {
    /// The change of the provider's definition.
    pub fn change(&self) -> ProviderChange {
        ProviderChange {
            window_ms: self.window_ms,
            max_requests: self.max_requests,
            max_tokens: self.max_tokens,
            max_concurrent: self.max_concurrent,
        }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Deletes a provider. While calls to it are under way or booked, that takes `force`.
    DeleteProvider(NamedRemoval) -> Removed,
    "delete_provider" Delete "/v1/providers/{name}" Operator administrative validated namespaced keyed
}

operation! {
    /// Asks a provider for a call, by the holder of a lease. Either the call may be made now, or a place in the line is
    /// booked: ask again with the same key at `ready_at`. Places are handed out in order; a place that is not taken in
    /// time lapses.
    AcquireProvider(AcquireProviderArgs) -> Acquired,
    "acquire_provider" Post "/v1/executions/{execution_id}/providers/acquire" Worker validated
}

/// A call that the holder of a lease wants to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireProviderArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease under which the call will be made.
    pub fence: LeaseFence,
    /// The provider.
    pub provider: String,
    /// The expected cost of the call; one request when absent.
    #[serde(default)]
    pub cost: ProviderCost,
    /// The holder's name for the call. It is the execution's: after a parking the next lease finds its place in the line
    /// again. A lease that finds a call which another one made books anew. Asked again by the lease that was let through,
    /// also after its settle, the answer is the same; if the provider refused calls meanwhile, it is the next turn.
    pub key: String,
    /// How long the call may take; after that another one may be made in its stead. Ten minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
}

impl AcquireProviderArgs {
    /// Refuses bad names and costs out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("provider", &self.provider)?;
        text::label("key", &self.key)?;
        if let Some(ttl_ms) = self.ttl_ms {
            text::within("ttl_ms", ttl_ms, limits::RESERVATION_TTL_MIN_MS..=limits::RESERVATION_TTL_MAX_MS)?;
        }
        self.cost.validate("cost")
    }
}

operation! {
    /// Says that a call has ended and what it really cost. Nothing (0 requests, 0 tokens) gives its place back.
    SettleProvider(SettleProviderArgs) -> SettleProviderOutcome,
    "settle_provider" Post "/v1/executions/{execution_id}/providers/settle" Worker validated
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleProviderArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease under which the call was made; it need not hold any more.
    pub fence: LeaseFence,
    /// The provider.
    pub provider: String,
    /// The key of the call.
    pub key: String,
    /// The real cost; the expected one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<ProviderCost>,
}

/// How the call counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettleProviderOutcome {
    /// The cost that counts now.
    pub counted: ProviderCost,
}

impl SettleProviderArgs {
    /// Refuses bad names and costs out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("provider", &self.provider)?;
        text::label("key", &self.key)?;
        self.actual.as_ref().map_or(Ok(()), |actual| actual.validate("actual"))
    }
}

operation! {
    /// Tells that a provider refused a call because there were too many (429): nothing is let through for as long as it
    /// says, and its limits are halved, once for all calls that it refused together. A tenth comes back with each window.
    ThrottleProvider(ThrottleProviderArgs) -> ProviderStatus,
    "throttle_provider" Post "/v1/providers/{name}/throttle" Worker validated namespaced identified("command_id")
}

/// The arguments of `throttle_provider`: a provider's refusal, as a worker received it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ThrottleProviderArgs {
    /// The provider.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The HTTP status of its answer, for people: 429, 503 or 529; 429 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long it wants to be left alone, at most 24 h; 5 s when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<i64>,
    /// The same id means the same refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl ThrottleProviderArgs {
    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }

    /// Refuses bad names, answers that mean something else, and times out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        if self.status.is_some_and(|status| !matches!(status, 429 | 503 | 529)) {
            return Err(Error::invalid("status", "must be 429, 503 or 529"));
        }
        match self.retry_after_ms {
            Some(ms) => text::within("retry_after_ms", ms, 0..=limits::PROVIDER_CLOSED_MAX_MS),
            None => Ok(()),
        }
    }
}
