//! Answers a question about a journal entry.

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::{Error, Result};
use crate::execution::StepAnswer;
use crate::id::{CommandId, ExecutionId};
use crate::journal::StepIdentity;
use crate::limits;
use crate::op::parts::{self, Content};
use crate::op::{Minting, operation};
use crate::state::PublicState;
use crate::text;

operation! {
    /// Answers a question about a journal entry: whether a step that is in doubt happened, what becomes of an entry that
    /// the program no longer fits, or whether an execution goes on whose steps were taken for a loop. The answer is recorded
    /// in the journal, and the function runs again.
    DecideStep(DecideStepArgs) -> DecideStepOutcome,
    "decide_step" Post "/v1/executions/{execution_id}/steps/decide" Approver administrative validated identified("command_id") body(parts::body_for(limits::STEP_RESULT_MAX_BYTES))
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DecideStepArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The entry that is asked about; may be left out where there is one question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepIdentity>,
    /// `happened`, `did_not_happen` or `fail` where the entry is in doubt; `keep`, `run_again` or `fail` where the program
    /// does not fit it; `go_on` or `fail` where it was taken for a loop.
    pub answer: StepAnswer,
    /// The result of a step that happened. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// The result as bytes; not beside `result`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The reason, for people who read the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same id means the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// The answer to `decide_step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DecideStepOutcome {
    /// The entry that was asked about.
    pub step: StepIdentity,
    /// The generation that goes on; a new one where entries were dropped.
    pub generation: u32,
    /// Its state now.
    pub public_state: PublicState,
}

impl DecideStepArgs {
    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }

    /// The bytes of the result, if any.
    pub fn content(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "result",
            json: self.result.as_ref(),
            base64: self.result_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::STEP_RESULT_MAX_BYTES,
        }
        .content()
    }

    /// Refuses a result that is too large or that does not belong to the answer.
    pub fn validate(&self) -> Result<()> {
        if self.content()?.is_some() && self.answer != StepAnswer::Happened {
            return Err(Error::invalid("result", "belongs to the answer happened only"));
        }
        self.step.as_ref().map_or(Ok(()), |step| parts::object("step", step.validate()))?;
        parts::optional(self.reason.as_deref(), "reason", text::text)
    }
}
