//! Kinds of work that agents may call. Workers define them when they register.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::op::operation;
use crate::op::parts::{self, Removed};
use crate::text;
use crate::tool::ToolView;

operation! {
    /// Lists the kinds of work that agents may call, by name.
    ListTools(ListToolsArgs) -> ListToolsOutcome,
    "list_tools" Get "/v1/tools" Reader validated filtered namespaced
}

/// The arguments of `list_tools`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListToolsArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListToolsOutcome {
    /// The tools.
    pub items: Vec<ToolView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListToolsArgs {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.kind.as_deref(), "kind", text::kind)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Forgets a tool: agents no longer see it. Executions of its kind go on, and a worker that registers it again brings it
    /// back.
    DeleteTool(DeleteToolArgs) -> Removed,
    "delete_tool" Delete "/v1/tools/{kind}" Operator administrative validated namespaced keyed
}

/// The arguments of `delete_tool`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteToolArgs {
    /// The kind of work.
    pub kind: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl DeleteToolArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::kind("kind", &self.kind)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}
