//! Shows what a deployment is: how it is partitioned, and what it runs on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::op::operation;
use crate::partition::PartitionConfig;

operation! {
    /// Shows what a deployment is: how it is partitioned, and what it runs on.
    GetDeployment "get_deployment" Get "/v1/deployment" Reader
}

/// What the call says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GetDeploymentArgs")]
pub struct Args {}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GetDeploymentOutcome")]
pub struct Outcome {
    /// How many partitions there are; whoever mints ids needs to know.
    pub partitions: PartitionConfig,
    /// What keeps the documents.
    pub store: String,
    /// Its version.
    pub store_version: String,
    /// What an acknowledged change survives, in words.
    pub durability: String,
    /// The store's time, as the engine knows it.
    pub now: i64,
    /// The version of the engine that answers.
    pub version: String,
    /// How often that engine met a stored entry that it could not decode, since its start. Lists leave such entries
    /// out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undecodable: u64,
    /// The last of these entries, the one seen last at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecodable_entries: Vec<UndecodableEntry>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A stored entry that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UndecodableEntry {
    /// Where it is stored.
    pub key: String,
    /// What is wrong with it.
    pub error: String,
    /// When the engine last met it.
    pub seen_at: i64,
}
