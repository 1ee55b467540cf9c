//! Keys under which submissions share one execution.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{limits, text};

/// While one execution with this key waits or runs, submissions answer with it instead of creating another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Singleton {
    /// The key; it belongs to the namespace.
    pub key: String,
}
crate::newer::open_struct!(Singleton);

/// Of a burst of submissions with this key only the last one runs: each takes the place of the one before it, which is
/// cancelled unless it has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Debounce {
    /// The key; it belongs to the namespace.
    pub key: String,
    /// It starts when no other submission came for so long.
    pub wait_ms: i64,
    /// A burst is put off no longer than this after its first submission; ten times `wait_ms` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<i64>,
}
crate::newer::open_struct!(Debounce);

impl Debounce {
    /// How long after its first submission a burst starts at the latest.
    pub fn bound_ms(&self) -> i64 {
        let default = self.wait_ms.saturating_mul(limits::DEBOUNCE_WAITS_DEFAULT).min(limits::DEBOUNCE_WAIT_MAX_MS);
        self.max_wait_ms.unwrap_or(default)
    }

    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        text::label("debounce.key", &self.key)?;
        text::within("debounce.wait_ms", self.wait_ms, 1..=limits::DEBOUNCE_WAIT_MAX_MS)?;
        let bound = self.wait_ms..=limits::DEBOUNCE_WAIT_MAX_MS;
        self.max_wait_ms.map_or(Ok(()), |max| text::within("debounce.max_wait_ms", max, bound))
    }
}
