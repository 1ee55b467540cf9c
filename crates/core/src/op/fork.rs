//! Forks: executions that begin with the journal of another one, up to a step.

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::{CommandId, ExecutionId};
use crate::journal::StepIdentity;
use crate::limits;
use crate::op::parts::{self, Content};
use crate::op::view::ExecutionSummary;
use crate::op::{Minting, operation};
use crate::state::PublicState;
use crate::text::{self, Tags};

operation! {
    /// Makes a new execution that begins with what the journal of another one has below a step. The other one stays as it
    /// is. The new one is held until its journal is copied.
    ForkExecution(ForkExecutionArgs) -> ForkExecutionOutcome,
    "fork_execution" Post "/v1/executions/{execution_id}/fork" Operator administrative validated identified("command_id") body(parts::body_for(limits::INPUT_MAX_BYTES))
}

/// The arguments of `fork_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForkExecutionArgs {
    /// The execution to fork.
    pub execution_id: ExecutionId,
    /// The new one has the ended entries below the first entry of this step; all of them when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_step: Option<StepIdentity>,
    /// Its input; that of the other one when absent. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// The input as bytes; not beside `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Its tags; those of the other one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
    /// The budgets it is charged to; those of the other one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ids: Option<Vec<String>>,
    /// The same id means the same fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The new execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForkExecutionOutcome {
    /// The new execution.
    pub execution_id: ExecutionId,
    /// The execution it was forked from.
    pub origin_id: ExecutionId,
    /// Its state now.
    pub public_state: PublicState,
}

impl ForkExecutionArgs {
    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }

    /// The bytes of the input, if there is a new one.
    pub fn input(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "input",
            json: self.input.as_ref(),
            base64: self.input_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::INPUT_MAX_BYTES,
        }
        .content()
    }

    /// Refuses an input that is too large, and names that nothing can have.
    pub fn validate(&self) -> Result<()> {
        self.input()?;
        self.before_step.as_ref().map_or(Ok(()), |step| parts::object("before_step", step.validate()))?;
        self.tags.as_ref().map_or(Ok(()), |tags| text::tags("tags", tags))?;
        let budgets = self.budget_ids.as_deref().unwrap_or_default();
        parts::at_most("budget_ids", budgets.len(), limits::BUDGETS_PER_EXECUTION_MAX)?;
        budgets.iter().try_for_each(|name| text::budget_name("budget_ids", name))
    }
}

operation! {
    /// Lists the executions that were forked from one, newest first.
    ListForks(ListForksArgs) -> ListForksOutcome,
    "list_forks" Get "/v1/executions/{execution_id}/forks" Reader filtered validated
}

/// The execution whose forks are listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListForksArgs {
    /// The execution that was forked.
    pub execution_id: ExecutionId,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of forks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListForksOutcome {
    /// The forks.
    pub items: Vec<ExecutionSummary>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListForksArgs {
    /// Refuses a page that is too large.
    pub fn validate(&self) -> Result<()> {
        parts::page(self.limit)
    }
}
