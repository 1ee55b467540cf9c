//! Getting, keeping and giving back the right to run an execution.

use crate::op::Minting;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::capability::CapabilitySet;
use crate::error::{Error, Result};
use crate::id::{ExecutionId, LeaseId};
use crate::lease::{ClaimGrant, LeaseFence};
use crate::op::operation;
use crate::op::parts::{self, Done, Renewal, RenewalOutcome};
use crate::op::view::Task;
use crate::worker::{check_kinds, check_lanes};
use crate::{limits, text, vocabulary};

operation! {
    /// Takes work, waiting for it if there is none.
    Claim(ClaimArgs) -> ClaimOutcome,
    "claim" Post "/v1/workers/{instance_id}/claim" Worker validated namespaced identified marks_repeats answers_nothing hands_out waits(wait_ms)
}

/// The arguments of `claim`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimArgs {
    /// The very process.
    pub instance_id: String,
    /// Where to look; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The lanes to look in, at least one; they take turns at being first.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lanes: BTreeSet<String>,
    /// The capabilities of the worker; this set decides.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// The kinds of work to take; all when empty. The kind is part of a queue's name, so a worker is never handed work
    /// that it does not serve.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<String>,
    /// How many at the most; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tasks: Option<usize>,
    /// How long to wait for the first; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
    /// `lease`, both steps at once, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ClaimMode>,
    /// The ids the leases or grants get, one for each task; minted by the engine when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lease_ids: Vec<LeaseId>,
    /// This repeats a call whose answer was lost: what these lease ids hold is returned first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry: bool,
    /// How long the leases last without a renewal; 30 seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
    /// How long grants last; 5 seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_ttl_ms: Option<i64>,
}

/// The answer to `claim`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimOutcome {
    /// The leased tasks, in `lease` mode.
    pub tasks: Vec<Task>,
    /// The grants, in `grant` mode.
    pub grants: Vec<ClaimGrant>,
}

impl ClaimOutcome {
    /// The tasks whose attempts begin.
    pub fn handed_out(&self) -> &[Task] {
        &self.tasks
    }
}

vocabulary! {
    /// Whether a claim returns leases or grants.
    pub closed enum ClaimMode {
        /// Leases.
        Lease "lease",
        /// Grants, to be claimed in a second step.
        Grant "grant",
    }
}

impl ClaimArgs {
    /// How many tasks the claim wants.
    pub fn max_tasks(&self) -> usize {
        self.max_tasks.unwrap_or(1)
    }

    /// Refuses no lanes, bad capabilities, numbers out of range and lease ids that do not fit the tasks.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        check_lanes(&self.lanes)?;
        self.capabilities.check()?;
        check_kinds(&self.kinds)?;
        text::within("max_tasks", self.max_tasks(), 1..=limits::CLAIM_TASKS_MAX)?;
        self.wait_ms.map_or(Ok(()), |wait_ms| text::within("wait_ms", wait_ms, 0..=limits::CLAIM_WAIT_MAX_MS))?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)?;
        parts::optional_number(self.grant_ttl_ms, "grant_ttl_ms", text::grant_ttl)?;
        if self.retry && self.lease_ids.is_empty() {
            return Err(Error::invalid("lease_ids", "must be those of the call that is repeated"));
        }
        if self.lease_ids.is_empty() {
            return Ok(());
        }
        if self.lease_ids.len() != self.max_tasks() {
            return Err(Error::invalid("lease_ids", "must be as many as max_tasks"));
        }
        let distinct: BTreeSet<_> = self.lease_ids.iter().collect();
        if distinct.len() != self.lease_ids.len() {
            return Err(Error::invalid("lease_ids", "must be different from each other"));
        }
        Ok(())
    }

    /// Mints the ids of the leases or grants.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        if self.lease_ids.is_empty() {
            self.lease_ids = (0..self.max_tasks()).map(|_| LeaseId::mint(&minting.fresh())).collect();
        }
    }

    /// Says that the call repeats one whose answer may have been lost.
    pub fn mark_repeat(&mut self) {
        self.retry = true;
    }
}

operation! {
    /// Turns a grant into a lease; an interrupted attempt continues.
    ClaimFromGrant(ClaimFromGrantArgs) -> ClaimFromGrantOutcome,
    "claim_from_grant" Post "/v1/workers/{instance_id}/grants/{grant_id}/claim" Worker validated namespaced hands_out
}

/// The arguments of `claim_from_reclaim_grant`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimFromGrantArgs {
    /// The very process.
    pub instance_id: String,
    /// The grant; it becomes the id of the lease.
    pub grant_id: LeaseId,
    /// The execution that was granted.
    pub execution_id: ExecutionId,
    /// Where the worker works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The capabilities of the worker; this set decides.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// How long the lease lasts without a renewal; 30 seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
}

/// The answer to `claim_from_reclaim_grant`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimFromGrantOutcome {
    /// The work.
    pub task: Task,
}

impl ClaimFromGrantOutcome {
    /// The task whose attempt begins or goes on.
    pub fn handed_out(&self) -> &[Task] {
        std::slice::from_ref(&self.task)
    }
}

impl ClaimFromGrantArgs {
    /// Refuses bad names, bad capabilities and TTLs out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        self.capabilities.check()?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)
    }
}

operation! {
    /// Turns a grant into a lease, and insists on an interrupted or lost attempt.
    ClaimFromReclaimGrant(ClaimFromGrantArgs) -> ClaimFromGrantOutcome,
    "claim_from_reclaim_grant" Post "/v1/workers/{instance_id}/grants/{grant_id}/reclaim" Worker validated namespaced hands_out
}

operation! {
    /// Hands a grant back; the execution is queued again.
    ReturnGrant(ReturnGrantArgs) -> ReturnGrantOutcome,
    "return_grant" Delete "/v1/workers/{instance_id}/grants/{grant_id}" Worker validated namespaced
}

/// The arguments of `return_grant`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReturnGrantArgs {
    /// The very process.
    pub instance_id: String,
    /// The grant.
    pub grant_id: LeaseId,
    /// The execution that was granted.
    pub execution_id: ExecutionId,
    /// Where the worker works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The answer to `return_grant`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReturnGrantOutcome {
    /// The grant was outstanding.
    pub changed: bool,
}

impl ReturnGrantArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Renews leases, each on its own.
    RenewLeases(RenewLeasesArgs) -> RenewLeasesOutcome,
    "renew_leases" Post "/v1/leases/renew" Worker validated body(limits::REGISTRATION_BODY_MAX_BYTES)
}

/// The arguments of `renew_leases`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewLeasesArgs {
    /// The leases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Renewal>,
}

/// The answer to `renew_leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RenewLeasesOutcome {
    /// The result of each, in the same order.
    pub results: Vec<RenewalOutcome>,
}

impl RenewLeasesArgs {
    /// Refuses too many at once, and TTLs out of range.
    pub fn validate(&self) -> Result<()> {
        parts::renewals("leases", &self.leases)
    }
}

operation! {
    /// Says how far the work is.
    Progress(ProgressArgs) -> Done,
    "progress" Post "/v1/executions/{execution_id}/progress" Worker validated
}

/// The arguments of `progress`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgressArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// How far, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pct: Option<u8>,
    /// The worker's words for what it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ProgressArgs {
    /// Refuses more than all, and messages that are too long.
    pub fn validate(&self) -> Result<()> {
        self.pct.map_or(Ok(()), |pct| text::within("pct", pct, 0..=100))?;
        parts::optional(self.message.as_deref(), "message", text::text)
    }
}
