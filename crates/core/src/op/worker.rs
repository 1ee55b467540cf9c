//! The registry of workers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::capability::CapabilitySet;
use crate::error::{Class, Code, Error, Result};
use crate::execution::FailOutcome;
use crate::id::LeaseId;
use crate::lease::ClaimGrant;
use crate::op::parts::{self, Renewal, RenewalOutcome};
use crate::op::view::Task;
use crate::op::{
    CancelExecutionArgs, CancelExecutionOutcome, ClaimArgs, ClaimMode, ClaimOutcome, CompleteArgs, CompleteOutcome,
    ContinueAsNewArgs, ContinueAsNewOutcome, DelayArgs, DelayOutcome, FailArgs, Minting, ParkArgs, ParkOutcome,
    SuspendArgs, SuspendOutcome, WaitChildrenArgs, WaitChildrenOutcome, operation,
};
use crate::tool::ToolDefinition;
use crate::worker::{WorkerView, check_kinds, check_lanes, check_tools};
use crate::{limits, text};

operation! {
    /// Registers a worker process, or replaces what it said before.
    RegisterWorker(RegisterWorkerArgs) -> RegisterWorkerOutcome,
    "register_worker" Put "/v1/workers/{instance_id}" Worker validated body(limits::REGISTRATION_BODY_MAX_BYTES) namespaced
}

/// The arguments of `register_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegisterWorkerArgs {
    /// The very process.
    pub instance_id: String,
    /// The worker's logical name.
    pub worker_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The lanes it serves, at least one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lanes: BTreeSet<String>,
    /// Its capabilities.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// The kinds it serves; all when empty. Claims name theirs themselves; this is what people are shown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<String>,
    /// How many tasks it runs at once: claims hand out no more. Without it they hand out what they ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The version of the worker's program, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Chosen anew by each process, so that a second one with the same instance id is noticed.
    pub nonce: String,
    /// The TTL of its leases; its registration lives twice as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
    /// Those of its kinds that agents may call. Their definitions stay when the worker is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
}

/// The answer to `register_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RegisterWorkerOutcome {
    /// When the registration runs out without a heartbeat.
    pub expires_at: i64,
    /// How long it lasts from each heartbeat.
    pub ttl_ms: i64,
}

impl RegisterWorkerArgs {
    /// Refuses bad names, no lanes, bad capabilities and numbers out of range.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        text::name("worker_id", &self.worker_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        check_lanes(&self.lanes)?;
        self.capabilities.check()?;
        check_kinds(&self.kinds)?;
        self.capacity.map_or(Ok(()), |n| text::within("capacity", n, 1..=limits::WORKER_CAPACITY_MAX))?;
        parts::optional(self.version.as_deref(), "version", text::label)?;
        text::label("nonce", &self.nonce)?;
        parts::optional_number(self.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl)?;
        check_tools(&self.tools, &self.lanes, &self.kinds)
    }
}

operation! {
    /// Keeps a registration and all leases the worker names, each on its own.
    HeartbeatWorker(HeartbeatWorkerArgs) -> HeartbeatWorkerOutcome,
    "heartbeat_worker" Post "/v1/workers/{instance_id}/heartbeat" Worker validated body(limits::REGISTRATION_BODY_MAX_BYTES) namespaced
}

/// The arguments of `heartbeat_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatWorkerArgs {
    /// The very process.
    pub instance_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The nonce it registered with.
    pub nonce: String,
    /// The leases it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<Renewal>,
}

/// The answer to `heartbeat_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeartbeatWorkerOutcome {
    /// When the registration runs out without a further heartbeat.
    pub expires_at: i64,
    /// The outcome for each lease, in the same order.
    pub leases: Vec<RenewalOutcome>,
}

impl HeartbeatWorkerArgs {
    /// Refuses bad names and too many leases.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        text::label("nonce", &self.nonce)?;
        parts::renewals("leases", &self.leases)
    }
}

operation! {
    /// Removes a registration: by the process itself when it stops, or by an operator.
    DeregisterWorker(DeregisterWorkerArgs) -> DeregisterWorkerOutcome,
    "deregister_worker" Delete "/v1/workers/{instance_id}" Operator audited validated with_roles namespaced
}

/// The arguments of `deregister_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeregisterWorkerArgs {
    /// The very process.
    pub instance_id: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The nonce it registered with; an operator sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

/// The answer to `deregister_worker`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeregisterWorkerOutcome {
    /// It was registered.
    pub changed: bool,
}

impl DeregisterWorkerArgs {
    /// A process that stops removes its own registration, which needs no record; any other removal is an operator's.
    pub fn is_audited(&self) -> bool {
        self.nonce.is_none()
    }

    /// A process may remove itself; everything else takes an operator.
    pub fn role(&self) -> Role {
        if self.nonce.is_some() { Role::Worker } else { Role::Operator }
    }

    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.nonce.as_deref(), "nonce", text::label)
    }
}

operation! {
    /// Lists live workers by instance id.
    ListWorkers(ListWorkersArgs) -> ListWorkersOutcome,
    "list_workers" Get "/v1/workers" Reader validated filtered namespaced
}

/// The arguments of `list_workers`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListWorkersArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only workers that serve this lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_workers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListWorkersOutcome {
    /// The workers.
    pub items: Vec<WorkerView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListWorkersArgs {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.lane.as_deref(), "lane", text::name)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Ends tasks, renews leases and takes new tasks in one call. Each part has the meaning, the answer and the
    /// repeatability of its own operation.
    Exchange(ExchangeArgs) -> ExchangeOutcome,
    "exchange" Post "/v1/workers/{instance_id}/exchange" Worker validated body(limits::BATCH_BODY_MAX_BYTES) namespaced identified marks_repeats hands_out waits
}

/// The arguments of `exchange`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExchangeArgs {
    /// The very process.
    pub instance_id: String,
    /// Where to look for new tasks; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Tasks that end or are parted from, each on its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end: Vec<ExchangeEnding>,
    /// Leases to keep, each on its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renew: Vec<Renewal>,
    /// A request for new tasks. Beside endings or renewals it looks once and does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ExchangeClaim>,
}

/// One way to end a task or to part from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExchangeEnding {
    /// As `complete` does.
    Complete(CompleteArgs),
    /// As `fail` does.
    Fail(FailArgs),
    /// As `delay` does.
    Delay(DelayArgs),
    /// As `wait_children` does.
    WaitChildren(WaitChildrenArgs),
    /// As `suspend` does.
    Suspend(Box<SuspendArgs>),
    /// As `park` does.
    Park(ParkArgs),
    /// As `continue_as_new` does.
    ContinueAsNew(ContinueAsNewArgs),
    /// As `cancel_execution` does; with the fence of its holder.
    Cancel(CancelExecutionArgs),
}

/// A claim inside an exchange; the worker and the namespace are those of the call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExchangeClaim {
    /// The lanes to look in, at least one; they take turns at being first.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lanes: BTreeSet<String>,
    /// The capabilities of the worker; this set decides.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub capabilities: CapabilitySet,
    /// The kinds of work to take; all when empty.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kinds: BTreeSet<String>,
    /// How many at the most, once all endings of the call have succeeded; 1 when absent. An ending that leaves its task
    /// with the worker, or whose outcome is unknown, lowers it by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tasks: Option<usize>,
    /// How long to wait for the first in a call without endings and renewals; 0 when absent.
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
crate::newer::open_struct!(ExchangeClaim);

/// The answer, with a result or a problem for each part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExchangeOutcome {
    /// The outcome of each ending, in the same order.
    pub end: Vec<ExchangeEnded>,
    /// The outcome for each lease, in the same order.
    pub renew: Vec<RenewalOutcome>,
    /// The claimed work; absent when nothing was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ExchangeClaimed>,
}

/// The outcome of an ending: the answer of its own operation, or a problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum ExchangeEnded {
    /// As `complete` answers.
    Complete(CompleteOutcome),
    /// As `fail` answers.
    Fail(FailOutcome),
    /// As `delay` answers.
    Delay(DelayOutcome),
    /// As `wait_children` answers.
    WaitChildren(WaitChildrenOutcome),
    /// As `suspend` answers.
    Suspend(SuspendOutcome),
    /// As `park` answers.
    Park(ParkOutcome),
    /// As `continue_as_new` answers.
    ContinueAsNew(ContinueAsNewOutcome),
    /// As `cancel_execution` answers.
    Cancel(CancelExecutionOutcome),
    /// It was refused, or could not be done.
    Problem(Error),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ExchangeEnded);

/// The work that a claim took, or the reason why it took none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExchangeClaimed {
    /// The leased tasks, in `lease` mode.
    pub tasks: Vec<Task>,
    /// The grants, in `grant` mode.
    pub grants: Vec<ClaimGrant>,
    /// Why nothing could be taken. An answer without tasks and without a problem means that nothing was claimable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Error>,
}

impl ExchangeArgs {
    /// Refuses too much at once. Each part is checked on its own, because each has its own answer.
    pub fn validate(&self) -> Result<()> {
        text::name("instance_id", &self.instance_id)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::at_most("end", self.end.len(), limits::EXCHANGE_ENDINGS_MAX)?;
        parts::renewals("renew", &self.renew)
    }

    /// Mints the keys of suspensions, and the ids of the leases or grants that it asks for.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        for ending in &mut self.end {
            if let ExchangeEnding::Suspend(suspension) = ending {
                suspension.idempotency_key.get_or_insert_with(|| minting.unique());
            }
        }
        if let Some(claim) = &mut self.claim
            && claim.lease_ids.is_empty()
        {
            let count = claim.max_tasks.unwrap_or(1).min(limits::CLAIM_TASKS_MAX);
            claim.lease_ids = (0..count).map(|_| LeaseId::mint(&minting.fresh())).collect();
        }
    }

    /// Says that the call repeats one whose answer may have been lost.
    pub fn mark_repeat(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.retry = true;
        }
    }

    /// How long its claim asks to wait.
    pub fn wait_ms(&self) -> u64 {
        let asked = self.claim.as_ref().filter(|_| self.claim_waits());
        asked.and_then(|claim| claim.wait_ms?.try_into().ok()).unwrap_or(0)
    }

    /// Only a claim that comes alone waits: endings and renewals want their answers.
    fn claim_waits(&self) -> bool {
        self.end.is_empty() && self.renew.is_empty()
    }

    /// Takes the claim out, as a call of its own.
    pub fn take_claim(&mut self) -> Option<ClaimArgs> {
        let waits = self.claim_waits();
        let part = self.claim.take()?;
        Some(ClaimArgs {
            instance_id: std::mem::take(&mut self.instance_id),
            namespace: self.namespace.take(),
            lanes: part.lanes,
            capabilities: part.capabilities,
            kinds: part.kinds,
            max_tasks: part.max_tasks,
            wait_ms: part.wait_ms.filter(|_| waits),
            mode: part.mode,
            lease_ids: part.lease_ids,
            retry: part.retry,
            lease_ttl_ms: part.lease_ttl_ms,
            grant_ttl_ms: part.grant_ttl_ms,
        })
    }
}

impl ExchangeOutcome {
    /// The tasks whose attempts begin.
    pub fn handed_out(&self) -> &[Task] {
        self.claim.as_ref().map_or(&[], |claimed| &claimed.tasks)
    }
}

impl ExchangeEnded {
    /// Whether the task has left its worker, so that there is room for another. A refusal that leaves this open counts
    /// as no.
    pub fn makes_room(&self) -> bool {
        match self {
            ExchangeEnded::Suspend(SuspendOutcome::AlreadySatisfied { .. })
            | ExchangeEnded::Park(ParkOutcome::AlreadySatisfied { .. }) => false,
            ExchangeEnded::Problem(error) => {
                error.code.class() == Class::Stale || error.code == Code::ExecutionNotFound
            }
            _ => true,
        }
    }
}

impl From<ClaimOutcome> for ExchangeClaimed {
    fn from(claimed: ClaimOutcome) -> Self {
        Self { tasks: claimed.tasks, grants: claimed.grants, problem: None }
    }
}
