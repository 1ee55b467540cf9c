//! `tools/call` of a kind of work: an execution, and how its caller waits for it.

use std::str::FromStr;

use ff_core::op::view::ExecutionView;
use ff_core::op::{CreateExecution, GetExecution, WaitExecution, create_execution, get_execution, wait_execution};
use ff_core::tool::{TaskSupport, ToolView};
use ff_core::{Code, Error, ExecutionId, JsonText, Result};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientResult, ContentBlock,
    CreateTaskResult, ElicitRequest, ElicitResult, InputRequiredResult, ProtocolVersion, ServerRequest,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServiceError};
use serde_json::Value;

use crate::deployment::Deployment;
use crate::progress::Reporter;
use crate::question::{self, Question};
use crate::{error, result, task, tool};

/// How long one look waits for a change.
const LOOK_MS: i64 = 20_000;
/// How long one look waits for a caller that hears of steps, which change the journal and not the execution.
const LOOK_AT_STEPS_MS: i64 = 1_000;

/// A call, with what its client can do.
pub(crate) struct Call<'a, D> {
    pub(crate) deployment: &'a D,
    pub(crate) context: &'a RequestContext<RoleServer>,
    /// The caller's own name for this call; with the same key it is the same execution.
    pub(crate) key: Option<String>,
}

impl<D: Deployment> Call<'_, D> {
    /// Carries out a call. A client without tasks gets none, and a tool that must be one is refused to it.
    pub(crate) async fn run(&self, request: CallToolRequestParams) -> std::result::Result<CallToolResponse, ErrorData> {
        let tool = tool::find(self.deployment, &request.name).await.map_err(error::refusal)?;
        let capabilities = self.context.client_capabilities().unwrap_or_default();
        let as_task = match tool.tasks {
            TaskSupport::Never => false,
            TaskSupport::Optional | TaskSupport::Unknown(_) => capabilities.supports_tasks(),
            TaskSupport::Required if capabilities.supports_tasks() => true,
            TaskSupport::Required => {
                let required = ClientCapabilities::builder().enable_tasks().build();
                return Err(ErrorData::missing_required_client_capability(required));
            }
        };
        let answered = self.start(&tool, request, as_task, capabilities.elicitation.is_some()).await;
        answered.map_err(error::refusal)
    }

    /// Starts the execution, or comes back to it, and answers with its task or its result. Arguments that the schema refuses
    /// start nothing, and tell the model what is wrong with them.
    async fn start(
        &self,
        tool: &ToolView,
        request: CallToolRequestParams,
        as_task: bool,
        may_ask: bool,
    ) -> Result<CallToolResponse> {
        let id = match &request.request_state {
            Some(state) => self.take_answers(tool, state, &request).await?,
            None => {
                let arguments = Value::Object(request.arguments.unwrap_or_default());
                if let Err(refused) = tool::check(tool, &arguments) {
                    return Ok(failed(error::sentence(&refused)).into());
                }
                self.submit(tool, &arguments).await?
            }
        };
        if as_task {
            let view = self.deployment.call::<GetExecution>(get_execution::Args { execution_id: id }).await?;
            return Ok(CallToolResponse::Task(CreateTaskResult::new(task::seed(&view)).with_meta(result::meta(id))));
        }
        self.wait(id, may_ask).await
    }

    async fn submit(&self, tool: &ToolView, arguments: &Value) -> Result<ExecutionId> {
        let args = create_execution::Args {
            namespace: Some(tool.namespace.clone()),
            kind: tool.kind.clone(),
            lane: Some(tool.lane.clone()),
            input: Some(JsonText(arguments.to_string())),
            idempotency_key: self.key.clone(),
            trace_context: self.context.meta.get_traceparent().map(str::to_owned),
            ..Default::default()
        };
        Ok(self.deployment.call::<CreateExecution>(args).await?.execution_id)
    }

    /// The execution that a client comes back to, after it has handed over the answers it brings. The state it brings
    /// is untrusted: it names an execution, which the caller's own authority must reach.
    async fn take_answers(&self, tool: &ToolView, state: &str, request: &CallToolRequestParams) -> Result<ExecutionId> {
        let id = ExecutionId::from_str(state).map_err(|_| Error::invalid("requestState", "is not ours"))?;
        let view = self.deployment.call::<GetExecution>(get_execution::Args { execution_id: id }).await?;
        if view.kind != tool.kind {
            return Err(Error::invalid("requestState", "belongs to another tool"));
        }
        if let Some(answers) = &request.input_responses {
            question::take_answers(self.deployment, &view, answers).await?;
        }
        Ok(id)
    }

    /// Waits for the end of an execution. A caller that leaves, leaves it running.
    async fn wait(&self, id: ExecutionId, may_ask: bool) -> Result<CallToolResponse> {
        let mut reporter = Reporter::of(self.context);
        if let Some(reporter) = &mut reporter {
            reporter.begin(id).await;
        }
        // The first look answers at once; from there on only a change does.
        let mut changed_after = Some(0);
        loop {
            let wait_ms = if reporter.is_some() { LOOK_AT_STEPS_MS } else { LOOK_MS };
            let args = wait_execution::Args { execution_id: id, wait_ms: Some(wait_ms), changed_after };
            let looked = tokio::select! {
                biased;
                () = self.context.ct.cancelled() => return Ok(left(id).into()),
                looked = self.deployment.call::<WaitExecution>(args) => looked?,
            };
            let view = looked.execution;
            changed_after = Some(view.updated_at);
            if let Some(reporter) = &mut reporter {
                reporter.report(self.deployment, &view).await?;
            }
            if looked.terminal {
                return Ok(result::of(self.deployment, &view).await?.into());
            }
            if may_ask && let Some(response) = self.ask(&view).await? {
                return Ok(response);
            }
        }
    }

    /// Asks the caller what the execution asks, if it asks. Today's protocol hands the questions over as the answer of the
    /// call, which the client then makes again; before, the server sent a request of its own for each.
    async fn ask(&self, view: &ExecutionView) -> Result<Option<CallToolResponse>> {
        let open = question::open(view);
        let Some(question) = open.first() else { return Ok(None) };
        let id = view.execution_id;
        let version = self.context.protocol_version();
        if version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str()) {
            let mut asked = InputRequiredResult::new(Some(question::requests(&open)?), Some(id.to_string()));
            asked.meta = Some(result::meta(id));
            return Ok(Some(asked.into()));
        }
        let answer = self.ask_directly(question).await?;
        match question.answer(self.deployment, answer).await {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(result::about(failed(dismissed(id, question)), id).into())),
            // The person is asked again, and reads why.
            Err(error) if question::is_wrong_answer(&error) => {
                tracing::debug!(%error, "an answer does not fit its schema");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn ask_directly(&self, question: &Question<'_>) -> Result<ElicitResult> {
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(question.form()));
        match self.context.peer.send_request(request).await {
            Ok(ClientResult::ElicitResult(answer)) => Ok(answer),
            Ok(_) => Err(unasked(&ServiceError::UnexpectedResponse)),
            Err(error) => Err(unasked(&error)),
        }
    }
}

fn unasked(error: &ServiceError) -> Error {
    Error::new(Code::Unavailable, format!("the client could not be asked: {error}"))
}

fn failed(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text.into())])
}

/// A result that is not read any more, because the client has gone or given up.
fn left(id: ExecutionId) -> CallToolResult {
    result::about(failed(format!("The client stopped waiting. The execution {id} goes on.")), id)
}

fn dismissed(id: ExecutionId, question: &Question<'_>) -> String {
    format!("No answer came: {}\nThe execution {id} still waits; call again to be asked again.", question.text())
}
