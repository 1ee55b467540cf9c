//! Kinds of work as tools.

use std::sync::Arc;

use ff_core::answer_schema::AnswerSchema;
use ff_core::op::{ListTools, list_tools};
use ff_core::tool::ToolView;
use ff_core::{Code, Error, JsonText, Result};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;

use crate::deployment::Deployment;

/// Tools on one page.
const PAGE: usize = 100;

/// A page of tools, and where the next begins.
pub(crate) async fn page(deployment: &impl Deployment, cursor: Option<String>) -> Result<(Vec<Tool>, Option<String>)> {
    let args = list_tools::Args { cursor, limit: Some(PAGE), ..Default::default() };
    let page = deployment.call::<ListTools>(args).await?;
    Ok((page.items.iter().map(shown).collect(), page.next_cursor))
}

/// A tool by its name.
pub(crate) async fn find(deployment: &impl Deployment, name: &str) -> Result<ToolView> {
    let args = list_tools::Args { kind: Some(name.to_owned()), ..Default::default() };
    let found = deployment.call::<ListTools>(args).await?.items.into_iter().next();
    found.ok_or_else(|| Error::new(Code::ToolNotFound, format!("there is no tool {name}")).with("kind", name))
}

/// Refuses arguments that the tool's schema does not allow.
pub(crate) fn check(tool: &ToolView, arguments: &Value) -> Result<()> {
    AnswerSchema::parse_at("input_schema", &tool.input_schema.0)?.check_at("arguments", arguments)
}

fn shown(view: &ToolView) -> Tool {
    let annotations =
        ToolAnnotations::new().read_only(view.read_only).destructive(view.destructive).idempotent(view.repeatable);
    let mut tool = Tool::new(view.kind.clone(), view.description.clone(), object(&view.input_schema));
    tool.title = view.title.clone();
    // The protocol describes results that are objects; others are in the content of an answer.
    let output = view.output_schema.as_ref().map(object);
    tool.output_schema = output.filter(|schema| schema.get("type") == Some(&Value::from("object")));
    tool.annotations = Some(annotations);
    tool
}

fn object(schema: &JsonText) -> Arc<JsonObject> {
    // Registration let in objects only.
    Arc::new(serde_json::from_str(&schema.0).unwrap_or_default())
}
