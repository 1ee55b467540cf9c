//! The protocol's requests, each as what it means here.

use ff_core::{Class, Code, Error};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, GetTaskResult,
    Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig,
    UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;

use crate::call::Call;
use crate::deployment::Deployment;
use crate::error::refusal;
use crate::{operator, resource, task, tool};

/// In the `_meta` of a call: the caller's own name for the call. A call under the same key is the same execution.
pub const IDEMPOTENCY_KEY: &str = "flowfabric/idempotency-key";

const INSTRUCTIONS: &str = "Tools run as durable executions: a call goes on when the connection, the server or the worker \
    ends. Give a call the key `flowfabric/idempotency-key` in its `_meta`, and the same call finds the same execution again.";

/// The protocol over a deployment, for one caller. It keeps nothing.
#[derive(Debug, Clone)]
pub struct Server<D> {
    deployment: D,
}

impl<D: Deployment> Server<D> {
    /// Speaks for a caller of a deployment.
    pub fn new(deployment: D) -> Self {
        Self { deployment }
    }
}

impl<D: Deployment> ServerHandler for Server<D> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let implementation = Implementation::new("flowfabric", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(implementation).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let (mut tools, next_cursor) = match tool::page(&self.deployment, cursor).await {
            // An approver decides, and submits nothing.
            Err(error) if error.code == Code::Forbidden => (Vec::new(), None),
            listed => listed.map_err(refusal)?,
        };
        if next_cursor.is_none() {
            tools.extend(operator::list(&self.deployment));
        }
        // The list depends on the token, so that no shared cache may keep it, and workers change it at any time.
        let listed = ListToolsResult::with_all_items(tools).with_cache_scope(CacheScope::Private).with_ttl_ms(0);
        Ok(ListToolsResult { next_cursor, ..listed })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let key = idempotency_key(&request, &context)?;
        if let Some(operation) = operator::named(&request.name) {
            let deployment = match &key {
                Some(key) => self.deployment.with_key(key),
                None => self.deployment.clone(),
            };
            let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
            return operator::call(&deployment, operation, arguments).await.map(Into::into).map_err(refusal);
        }
        Call { deployment: &self.deployment, context: &context, key }.run(request).await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let (resources, next_cursor) = resource::page(&self.deployment, cursor).await.map_err(refusal)?;
        let listed =
            ListResourcesResult::with_all_items(resources).with_cache_scope(CacheScope::Private).with_ttl_ms(0);
        Ok(ListResourcesResult { next_cursor, ..listed })
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resource::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents =
            resource::read(&self.deployment, &request.uri).await.map_err(|error| absent(error, &request.uri))?;
        let read = ReadResourceResult::new(vec![contents]).with_cache_scope(CacheScope::Private).with_ttl_ms(0);
        Ok(read.into())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        task::get(&self.deployment, &request.task_id).await.map(GetTaskResult::new).map_err(refusal)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        task::update(&self.deployment, &request.task_id, &request.input_responses).await.map_err(refusal)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        task::cancel(&self.deployment, &request.task_id).await.map_err(refusal)
    }
}

/// The caller's own name for this call.
fn idempotency_key(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<Option<String>, ErrorData> {
    let own = request.meta.as_ref().and_then(|meta| meta.get(IDEMPOTENCY_KEY));
    match own.or_else(|| context.meta.get(IDEMPOTENCY_KEY)) {
        None => Ok(None),
        Some(Value::String(key)) => Ok(Some(key.clone())),
        Some(_) => Err(refusal(Error::invalid(&format!("_meta.{IDEMPOTENCY_KEY}"), "must be a text"))),
    }
}

fn absent(error: Error, uri: &str) -> ErrorData {
    if error.code.class() == Class::NotFound {
        let data = serde_json::json!({ "uri": uri, "code": error.code });
        return ErrorData::resource_not_found(error.detail, Some(data));
    }
    refusal(error)
}
