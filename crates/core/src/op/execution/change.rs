//! Changes that operators and owners make to an execution from outside.

use crate::op::Minting;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::capability::CapabilitySet;
use crate::error::{Error, Result};
use crate::id::{AttemptIndex, CommandId, ExecutionId, LeaseEpoch, LeaseId, SuspensionId};
use crate::journal::{NewEntries, StepEntry, StepIdentity};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::parts::Removed;
use crate::op::{operation, parts};
use crate::state::PublicState;
use crate::text::{self, Tags};

operation! {
    /// Changes the priority of an execution that has not ended.
    ChangePriority(ChangePriorityArgs) -> ChangePriorityOutcome,
    "change_priority" Put "/v1/executions/{execution_id}/priority" Operator administrative
}

/// The arguments of `change_priority`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangePriorityArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Higher goes first; clamped to 0..=9000.
    pub priority: i64,
}

/// The answer to `change_priority`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangePriorityOutcome {
    /// The priority it has now.
    pub priority: i64,
}

operation! {
    /// Replaces the tags of an execution.
    SetTags(SetTagsArgs) -> SetTagsOutcome,
    "set_tags" Put "/v1/executions/{execution_id}/tags" Operator own validated
}

/// The arguments of `set_tags`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetTagsArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The tags it has from now on.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
}

/// The answer to `set_tags`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetTagsOutcome {
    /// The tags it has now.
    pub tags: Tags,
}

impl SetTagsArgs {
    /// Refuses bad tags.
    pub fn validate(&self) -> Result<()> {
        text::tags("tags", &self.tags)
    }
}

operation! {
    /// Keeps an execution from being claimed until it is released.
    HoldExecution(HoldExecutionArgs) -> HoldExecutionOutcome,
    "hold_execution" Post "/v1/executions/{execution_id}/hold" Operator administrative validated keyed
}

/// The arguments of `hold_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HoldExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to `hold_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HoldExecutionOutcome {
    /// It was not held before.
    pub changed: bool,
    /// Its state now.
    pub public_state: PublicState,
}

impl HoldExecutionArgs {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}

operation! {
    /// Ends an operator's hold.
    ReleaseExecution(ReleaseExecutionArgs) -> ReleaseExecutionOutcome,
    "release_execution" Post "/v1/executions/{execution_id}/release" Operator administrative keyed
}

/// The arguments of `release_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}

/// The answer to `release_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReleaseExecutionOutcome {
    /// It was held before, and not by the cancellation of its flow.
    pub changed: bool,
    /// Its state now.
    pub public_state: PublicState,
}

operation! {
    /// Cancels an execution. One that has ended keeps its outcome.
    CancelExecution(CancelExecutionArgs) -> CancelExecutionOutcome,
    "cancel_execution" Post "/v1/executions/{execution_id}/cancel" Operator audited own validated with_roles keyed(is_from_outside) body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `cancel_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CancelExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The lease, when its holder cancels; an operator sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<LeaseFence>,
    /// Journal entries of the holder that are recorded in the same commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}
crate::newer::open_struct!(CancelExecutionArgs);

/// The answer to `cancel_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CancelExecutionOutcome {
    /// It is cancelled.
    Cancelled {
        /// Since when.
        cancelled_at: i64,
    },
    /// It had ended before, and nothing changed.
    AlreadyTerminal {
        /// How.
        public_state: PublicState,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CancelExecutionOutcome);

impl CancelExecutionArgs {
    /// A cancellation by another caller than the holder of the lease.
    pub const fn from_outside(execution_id: ExecutionId, reason: Option<String>) -> Self {
        Self { execution_id, reason, fence: None, entries: Vec::new(), first_number: None }
    }

    /// A lease holder that cancels ends its own work; a cancellation by any other caller is on record.
    pub fn is_audited(&self) -> bool {
        self.fence.is_none()
    }

    /// A lease holder may cancel what it holds; everything else takes an operator.
    pub fn role(&self) -> Role {
        if self.fence.is_some() { Role::Worker } else { Role::Operator }
    }

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses reasons that are too long, and entries that are malformed or not a holder's.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        if self.fence.is_none() && (self.first_number.is_some() || !self.entries.is_empty()) {
            return Err(Error::invalid("fence", "must be that of the lease whose holder records the entries"));
        }
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }

    /// Whether another caller than the holder of the lease asks for it. A holder's cancellation is known by its lease.
    pub fn is_from_outside(&self) -> bool {
        self.fence.is_none()
    }
}

operation! {
    /// Runs an execution that has ended once more.
    ReplayExecution(ReplayExecutionArgs) -> ReplayExecutionOutcome,
    "replay_execution" Post "/v1/executions/{execution_id}/replay" Operator administrative validated own identified("command_id")
}

/// The arguments of `replay_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The replay takes over the entries that the last journal has below the first entry of this step, and runs the rest
    /// again. It begins with an empty journal when this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_step: Option<StepIdentity>,
    /// The same id means the same replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl ReplayExecutionArgs {
    /// Refuses a step that no journal can have.
    pub fn validate(&self) -> Result<()> {
        self.from_step.as_ref().map_or(Ok(()), |step| parts::object("from_step", step.validate()))
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

/// The answer to `replay_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplayExecutionOutcome {
    /// The number its new attempt will have.
    pub attempt: AttemptIndex,
    /// How often it was replayed.
    pub replay_count: u32,
    /// Its state now.
    pub public_state: PublicState,
}

operation! {
    /// Pins an execution to another build, or lets any build take it: the next one that does is the one it is pinned to.
    RepinBuild(RepinBuildArgs) -> RepinBuildOutcome,
    "repin_build" Post "/v1/executions/{execution_id}/repin" Operator administrative validated identified("command_id")
}

/// Which build may run the execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RepinBuildArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The build; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// The same id means the same decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer to `repin_build`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepinBuildOutcome {
    /// The build it is pinned to now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// Its state now.
    pub public_state: PublicState,
}

impl RepinBuildArgs {
    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }

    /// Refuses a build that no worker can have.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.build_id.as_deref(), "build_id", text::name)?;
        let as_capability = |build_id: &String| CapabilitySet::default().with_build(build_id).map(drop);
        self.build_id.as_ref().map_or(Ok(()), as_capability)
    }
}

operation! {
    /// Takes the lease away from its holder; the execution is eligible again at once.
    RevokeLease(RevokeLeaseArgs) -> RevokeLeaseOutcome,
    "revoke_lease" Post "/v1/executions/{execution_id}/revoke-lease" Operator administrative validated identified("command_id")
}

/// The arguments of `revoke_lease`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RevokeLeaseArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Only if this is the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_lease_id: Option<LeaseId>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same id means the same revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer to `revoke_lease`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum RevokeLeaseOutcome {
    /// The lease is gone.
    Revoked {
        /// Which.
        lease_id: LeaseId,
        /// Its epoch.
        epoch: LeaseEpoch,
    },
    /// It was gone before.
    AlreadyRevoked {
        /// How it ended.
        reason: String,
    },
    /// Another lease than the one named holds the execution; nothing changed.
    OtherLease {
        /// The lease that holds it.
        lease_id: LeaseId,
        /// Its epoch.
        epoch: LeaseEpoch,
    },
    /// No worker holds the execution.
    NoActiveLease,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(RevokeLeaseOutcome);

impl RevokeLeaseArgs {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

operation! {
    /// Resumes a suspended execution by an operator's decision.
    ResumeExecution(ResumeExecutionArgs) -> ResumeExecutionOutcome,
    "resume_execution" Post "/v1/executions/{execution_id}/resume" Operator administrative validated identified("command_id")
}

/// The arguments of `resume_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same id means the same decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer to `resume_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResumeExecutionOutcome {
    /// The suspension that ended.
    pub suspension_id: SuspensionId,
    /// Its state now.
    pub public_state: PublicState,
}

impl ResumeExecutionArgs {
    /// Refuses reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}

operation! {
    /// Removes an execution that has ended, with everything it has. A member of a flow goes with its flow.
    RemoveExecution(RemoveExecutionArgs) -> Removed,
    "remove_execution" Delete "/v1/executions/{execution_id}" Operator administrative keyed
}

/// Which execution is to be removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemoveExecutionArgs {
    /// The execution.
    pub execution_id: ExecutionId,
}
