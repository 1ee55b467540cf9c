//! Begins the function of an execution anew with another input and an empty journal.

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::ExecutionId;
use crate::journal::{NewEntries, StepEntry};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::operation;
use crate::op::parts::{self, Content};
use crate::state::PublicState;

operation! {
    /// Releases the lease and begins the function anew: the same execution and attempt, another input, an empty journal.
    /// For loops that run for months.
    ContinueAsNew(ContinueAsNewArgs) -> ContinueAsNewOutcome,
    "continue_as_new" Post "/v1/executions/{execution_id}/continue-as-new" Worker validated body(limits::BATCH_BODY_MAX_BYTES)
}

/// The arguments of `continue_as_new`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ContinueAsNewArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// The input of the new generation; the present one stays when it is absent. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// The input as bytes; not beside `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Journal entries that are recorded in the same commit, as the last ones of the generation that ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<StepEntry>,
    /// The number of the first of these entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_number: Option<u64>,
}
crate::newer::open_struct!(ContinueAsNewArgs);

/// The answer to `continue_as_new`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContinueAsNewOutcome {
    /// The generation that began.
    pub generation: u32,
    /// Its state now.
    pub public_state: PublicState,
}

impl ContinueAsNewArgs {
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

    /// The journal entries that the call brings along.
    pub fn new_entries(&self) -> Result<NewEntries<'_>> {
        NewEntries::of(self.first_number, &self.entries)
    }

    /// Refuses an input that is too large, and entries that are malformed.
    pub fn validate(&self) -> Result<()> {
        self.new_entries()?;
        self.input().map(drop)
    }
}
