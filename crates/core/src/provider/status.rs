//! A provider as people see it.

use serde::{Deserialize, Serialize};

use super::{Provider, ProviderDefinition};

/// The limits of a provider as they are now, after what it said about too many calls; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EffectiveLimits {
    /// Requests within any window.
    pub requests: u64,
    /// Tokens within any window.
    pub tokens: u64,
    /// Calls at once.
    pub concurrent: u32,
    /// Per cent of what its definition says.
    pub percent: u32,
}

/// A provider, its limits and what is used of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderStatus {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its limits.
    pub definition: ProviderDefinition,
    /// The limits as they are now.
    pub effective: EffectiveLimits,
    /// Requests that count against the window now.
    pub requests_in_window: u64,
    /// Tokens that count against the window now.
    pub tokens_in_window: u64,
    /// Calls under way.
    pub in_use: u32,
    /// Calls that have a place in the line and wait for their instant.
    pub booked: u32,
    /// When the last of them may be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booked_until: Option<i64>,
    /// Nothing is let through before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_until: Option<i64>,
    /// How long a call takes, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_ms: Option<i64>,
    /// Calls that were let through so far.
    pub granted: u64,
    /// How often the provider said that it was too much.
    pub throttled: u64,
    /// When it last did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_at: Option<i64>,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
}

impl Provider {
    /// The view of it for answers, at an instant.
    pub fn status(&self, now: i64) -> ProviderStatus {
        let now = now.max(self.updated_at);
        let part = self.definition.part(now);
        let last = self.requests.last().max(self.tokens.last());
        ProviderStatus {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            definition: self.definition.clone(),
            effective: self.effective(now),
            requests_in_window: self.requests.window_sum(part),
            tokens_in_window: self.tokens.window_sum(part),
            in_use: self.in_use,
            booked: self.booked,
            booked_until: last.filter(|last| *last > part).map(|last| self.definition.begins_at(last)),
            closed_until: Some(self.closed_until).filter(|until| *until > now),
            average_ms: Some(self.average_ms).filter(|ms| *ms != 0),
            granted: self.granted,
            throttled: self.throttled,
            throttled_at: Some(self.throttled_at).filter(|at| *at != 0),
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}
