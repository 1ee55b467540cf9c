//! The deployment itself, and the record of what was done to it.

use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::audit::AuditView;
use crate::error::{Code, Error, Result};
use crate::op::{operation, parts};
use crate::partition::PartitionConfig;
use crate::text;

operation! {
    /// Shows what a deployment is: how it is partitioned, and what it runs on.
    GetDeployment(GetDeploymentArgs) -> GetDeploymentOutcome,
    "get_deployment" Get "/v1/deployment" Reader any_role
}

/// The arguments of `get_deployment`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GetDeploymentArgs {}

/// The answer to `get_deployment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetDeploymentOutcome {
    /// How many partitions there are; a client that mints ids needs it.
    pub partitions: PartitionConfig,
    /// The kind of store that keeps the documents.
    pub store: String,
    /// Its version.
    pub store_version: String,
    /// The losses that an acknowledged change survives, in words.
    pub durability: String,
    /// The store's time, as the engine knows it.
    pub now: i64,
    /// The version of the engine that answers.
    pub version: String,
    /// How long what has ended is kept, where its policy says nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<i64>,
    /// Time stands still here until a test moves it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test_clock: bool,
    /// How often that engine met a stored entry that it could not decode, since its start. Lists leave such entries
    /// out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undecodable: u64,
    /// The last of these entries, the one seen last at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undecodable_entries: Vec<UndecodableEntry>,
    /// The servers that live, as far as that engine knows: it looks every 20 s at least.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerView>,
    /// The caller that asked, as the server knows it; absent from older servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerView>,
}

/// A caller, as a server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallerView {
    /// The name of its token, as the audit log has it.
    pub name: String,
    /// The one namespace it reaches; absent where it reaches all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its role.
    pub role: Role,
    /// The lanes it is limited to; all when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<String>,
}

/// A server of the deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerView {
    /// Its id, minted anew by each process.
    pub server_id: String,
    /// Where it listens; empty for one that does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The version of its program; empty where it never said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// When it started.
    pub started_at: i64,
    /// It is the one that answers.
    pub answers: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A stored entry that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UndecodableEntry {
    /// Where it is stored.
    pub key: String,
    /// The reason why it cannot be decoded.
    pub error: String,
    /// When the engine last met it.
    pub seen_at: i64,
}

operation! {
    /// Lists administrative acts, newest first.
    ListAudit(ListAuditArgs) -> ListAuditOutcome,
    "list_audit" Get "/v1/admin/audit" Admin validated filtered namespaced
}

/// The arguments of `list_audit`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListAuditArgs {
    /// Only records of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only by this caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Only this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_audit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListAuditOutcome {
    /// The acts.
    pub items: Vec<AuditView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListAuditArgs {
    /// Refuses operations that do not exist and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.who.as_deref(), "who", text::label)?;
        if let Some(operation) = &self.what {
            let audited = crate::op::OPERATIONS.iter().filter(|known| known.audited);
            let valid: Vec<&str> = audited.map(|known| known.name).collect();
            if !valid.contains(&operation.as_str()) {
                let detail = format!("{operation:?} is no operation that leaves a record");
                return Err(Error::new(Code::InvalidFilter, detail).with("field", "what").with("valid", valid));
            }
        }
        parts::page(self.limit)
    }
}
