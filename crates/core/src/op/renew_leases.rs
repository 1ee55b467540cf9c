//! Renews leases, each on its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::op::parts;
use crate::op::parts::{Renewal, RenewalOutcome};

operation! {
    /// Renews leases, each on its own.
    RenewLeases "renew_leases" Post "/v1/leases/renew" Worker validated
}

/// What the call says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RenewLeasesArgs")]
pub struct Args {
    /// The leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Renewal>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RenewLeasesOutcome")]
pub struct Outcome {
    /// What became of each, in the same order.
    pub results: Vec<RenewalOutcome>,
}

impl Args {
    /// Refuses too many at once, and TTLs out of range.
    pub fn validate(&self) -> Result<()> {
        parts::renewals("leases", &self.leases)
    }
}
