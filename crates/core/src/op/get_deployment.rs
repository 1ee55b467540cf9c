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
}
