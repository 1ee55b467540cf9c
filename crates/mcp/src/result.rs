//! How an execution has ended, as the result of a tool call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ff_core::op::parts::Content;
use ff_core::op::view::ExecutionView;
use ff_core::op::{GetResult, get_result};
use ff_core::{Code, ExecutionId, PublicState, Result};
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject, ResourceContents};
use serde_json::{Value, json};

use crate::deployment::Deployment;
use crate::resource;

/// Under this name results and tasks say which execution they are about.
const EXECUTION_ID: &str = "flowfabric/execution-id";

/// The result of an execution that has ended. One that failed is a result, too: what went wrong is for the model to read.
pub(crate) async fn of(deployment: &impl Deployment, view: &ExecutionView) -> Result<CallToolResult> {
    let result = match view.public_state {
        PublicState::Completed => completed(deployment, view.execution_id).await?,
        state => CallToolResult::error(vec![ContentBlock::text(ended_badly(view, state))]),
    };
    Ok(about(result, view.execution_id))
}

/// Whether an execution ended otherwise than by its worker's word: leases lost, a deadline, a timeout, dependencies.
pub(crate) fn is_ended_by_engine(view: &ExecutionView) -> bool {
    match view.public_state {
        PublicState::Expired | PublicState::Skipped => true,
        PublicState::Failed => view.last_failure.as_ref().is_some_and(|failure| failure.by_engine),
        _ => false,
    }
}

/// The end of an execution that has no result, not even one about an error, as an error of the protocol.
pub(crate) fn error(view: &ExecutionView) -> ErrorData {
    let category = view.last_failure.as_ref().and_then(|failure| failure.category.clone());
    let data = json!({ EXECUTION_ID: view.execution_id, "state": view.public_state, "category": category });
    ErrorData::internal_error(ended_badly(view, view.public_state), Some(data))
}

/// Says which execution a result is about.
pub(crate) fn about(result: CallToolResult, id: ExecutionId) -> CallToolResult {
    CallToolResult::with_meta(result, Some(meta(id)))
}

/// Metadata that names the execution a result is about.
pub(crate) fn meta(id: ExecutionId) -> MetaObject {
    let mut meta = MetaObject::new();
    meta.insert(EXECUTION_ID.to_owned(), json!(id));
    meta
}

async fn completed(deployment: &impl Deployment, id: ExecutionId) -> Result<CallToolResult> {
    match deployment.call::<GetResult>(get_result::Args { execution_id: id }).await {
        Ok(content) => Ok(shown(&content, id)),
        // It completed without one.
        Err(error) if error.code == Code::NoResult => Ok(CallToolResult::success(Vec::new())),
        Err(error) => Err(error),
    }
}

/// Bytes as content: JSON as a value and as text, text as text, and anything else as a resource.
fn shown(content: &Content, id: ExecutionId) -> CallToolResult {
    let json = content.json().and_then(|json| serde_json::from_str::<Value>(&json.0).ok());
    if let Some(value) = json {
        let text = match &value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        // Clients of earlier versions take objects only.
        result.structured_content = Some(value).filter(Value::is_object);
        return result;
    }
    match std::str::from_utf8(&content.bytes) {
        Ok(text) if content.content_type.starts_with("text/") => {
            CallToolResult::success(vec![ContentBlock::text(text)])
        }
        _ => {
            let blob = ResourceContents::blob(STANDARD.encode(&content.bytes), resource::result_uri(id));
            let blob = blob.with_mime_type(content.content_type.clone());
            CallToolResult::success(vec![ContentBlock::resource(blob)])
        }
    }
}

fn ended_badly(view: &ExecutionView, state: PublicState) -> String {
    let id = view.execution_id;
    let why = match state {
        PublicState::Cancelled => view.cancellation.as_ref().and_then(|cancelled| cancelled.reason.clone()),
        _ => view.last_failure.as_ref().map(|failure| match &failure.category {
            Some(category) => format!("{} ({category})", failure.reason),
            None => failure.reason.clone(),
        }),
    };
    match why.filter(|why| !why.is_empty()) {
        Some(why) => format!("{state}: {why}\nThe execution is {id}."),
        None => format!("{state}\nThe execution is {id}."),
    }
}
