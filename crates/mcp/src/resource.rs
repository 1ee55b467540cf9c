//! Executions, flows and streams as resources.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ff_core::op::{
    GetExecution, GetFlow, GetResult, ListExecutions, ReadStream, get_execution, get_flow, get_result, list_executions,
    read_stream,
};
use ff_core::{AttemptIndex, Code, Error, ExecutionId, FlowId, Result};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde::Serialize;

use crate::deployment::Deployment;

const EXECUTIONS: &str = "flowfabric://executions/";
const FLOWS: &str = "flowfabric://flows/";
const JSON: &str = "application/json";
/// Executions on one page.
const PAGE: usize = 50;
/// Frames of a stream that are read at once.
const FRAMES: usize = 1_000;

/// Where the result of an execution is.
pub(crate) fn result_uri(id: ExecutionId) -> String {
    format!("{EXECUTIONS}{id}/result")
}

/// The resources that can be read, by the form of their addresses.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template =
        |uri: String, name: &str, description: &str| ResourceTemplate::new(uri, name).with_description(description);
    vec![
        template(
            format!("{EXECUTIONS}{{execution_id}}"),
            "execution",
            "An execution: its state, progress, failure and questions",
        )
        .with_mime_type(JSON),
        template(
            format!("{EXECUTIONS}{{execution_id}}/result"),
            "result",
            "The result of an execution, as its worker gave it",
        ),
        template(
            format!("{EXECUTIONS}{{execution_id}}/stream"),
            "stream",
            "What the current or last attempt of an execution wrote",
        )
        .with_mime_type(JSON),
        template(format!("{FLOWS}{{flow_id}}"), "flow", "A flow: its state and how many of its members are in which")
            .with_mime_type(JSON),
    ]
}

/// The newest executions.
pub(crate) async fn page(
    deployment: &impl Deployment,
    cursor: Option<String>,
) -> Result<(Vec<Resource>, Option<String>)> {
    let args = list_executions::Args { cursor, limit: Some(PAGE), ..Default::default() };
    let page = deployment.call::<ListExecutions>(args).await?;
    let shown = page.items.iter().map(|execution| {
        let (id, kind) = (execution.execution_id, &execution.kind);
        let resource = Resource::new(format!("{EXECUTIONS}{id}"), format!("{kind} {id}")).with_mime_type(JSON);
        resource.with_description(format!("{kind}, {}", execution.public_state))
    });
    Ok((shown.collect(), page.next_cursor))
}

/// Reads the resource at an address.
pub(crate) async fn read(deployment: &impl Deployment, uri: &str) -> Result<ResourceContents> {
    if let Some(id) = uri.strip_prefix(FLOWS) {
        let flow_id = FlowId::from_str(id).map_err(|_| unknown(uri))?;
        return json(uri, &deployment.call::<GetFlow>(get_flow::Args { flow_id }).await?);
    }
    let rest = uri.strip_prefix(EXECUTIONS).ok_or_else(|| unknown(uri))?;
    let (id, part) = rest.split_once('/').unwrap_or((rest, ""));
    let execution_id = ExecutionId::from_str(id).map_err(|_| unknown(uri))?;
    match part {
        "" => json(uri, &deployment.call::<GetExecution>(get_execution::Args { execution_id }).await?),
        "result" => {
            let content = deployment.call::<GetResult>(get_result::Args { execution_id }).await?;
            let contents = match std::str::from_utf8(&content.bytes) {
                Ok(text) => ResourceContents::text(text, uri),
                Err(_) => ResourceContents::blob(STANDARD.encode(&content.bytes), uri),
            };
            Ok(contents.with_mime_type(content.content_type))
        }
        "stream" => {
            let view = deployment.call::<GetExecution>(get_execution::Args { execution_id }).await?;
            let attempt = view.attempt.unwrap_or(AttemptIndex(0));
            let args = read_stream::Args { execution_id, attempt, from: None, to: None, limit: Some(FRAMES) };
            json(uri, &deployment.call::<ReadStream>(args).await?)
        }
        _ => Err(unknown(uri)),
    }
}

fn json(uri: &str, value: &impl Serialize) -> Result<ResourceContents> {
    let text = serde_json::to_string(value).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
    Ok(ResourceContents::text(text, uri).with_mime_type(JSON))
}

fn unknown(uri: &str) -> Error {
    Error::new(Code::RouteNotFound, format!("there is no resource {uri}"))
}
