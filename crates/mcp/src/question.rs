//! A suspension with a question, as elicitation: what a person is asked, and the signal that the answer becomes.

use ff_core::condition::Condition;
use ff_core::op::view::{ExecutionView, SuspensionView};
use ff_core::op::{DeliverSignal, deliver_signal};
use ff_core::suspension::SuspendReason;
use ff_core::{Class, Code, Error, JsonText, Result};
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest, InputRequests,
};
use serde_json::{Value, json};

use crate::deployment::Deployment;

const APPROVE: &str = "approve";
const REJECT: &str = "reject";
/// The one field of a form whose answer is no flat object; its text is JSON, or a text.
const ANSWER: &str = "answer";

/// A question of an execution for a person.
pub(crate) struct Question<'a> {
    view: &'a ExecutionView,
    suspension: &'a SuspensionView,
}

impl<'a> Question<'a> {
    /// The open question of an execution. Questions of budgets and journals are for operators, not for the caller of a
    /// tool.
    pub(crate) fn of(view: &'a ExecutionView) -> Option<Self> {
        let suspension = view.suspension.as_ref()?;
        let decided_by_signal = match suspension.reason {
            SuspendReason::InDoubt | SuspendReason::JournalMismatch | SuspendReason::Budget => false,
            SuspendReason::Approval => true,
            _ => suspension.question.is_some(),
        };
        let takes_signals = !matches!(suspension.condition, Condition::OperatorOnly | Condition::TimeoutOnly);
        (decided_by_signal && takes_signals).then_some(Self { view, suspension })
    }

    /// Names the question; another one of the same execution has another name.
    pub(crate) fn key(&self) -> String {
        self.suspension.suspension_id.to_string()
    }

    /// The text that a person reads.
    pub(crate) fn text(&self) -> String {
        let detail = self.view.blocking_detail.clone();
        self.suspension.question.clone().or(detail).unwrap_or_else(|| format!("Approve {}?", self.view.kind))
    }

    /// The question as an input request of a task or a call.
    pub(crate) fn requests(&self) -> Result<InputRequests> {
        let params = serde_json::to_value(self.form()).map_err(unwritable)?;
        let request = json!({ "method": "elicitation/create", "params": params });
        let request: InputRequest = serde_json::from_value(request).map_err(unwritable)?;
        Ok(InputRequests::from([(self.key(), request)]))
    }

    /// The form that asks it.
    pub(crate) fn form(&self) -> ElicitRequestParams {
        let requested_schema = self.flat_schema().unwrap_or_else(|| match self.suspension.schema {
            Some(_) => json_field(),
            None => ElicitationSchema::new(Default::default()),
        });
        ElicitRequestParams::FormElicitationParams { meta: None, message: self.text(), requested_schema }
    }

    /// The schema of the answer, where it is a form: an object of texts, numbers, choices and switches.
    fn flat_schema(&self) -> Option<ElicitationSchema> {
        let schema = self.suspension.schema.as_ref()?;
        serde_json::from_str(&schema.0).ok()
    }

    /// The signal that an acceptance is.
    fn signal(&self) -> String {
        let names = self.suspension.condition.required_names();
        match names.first() {
            Some(first) if !names.iter().any(|name| name == APPROVE) => first.clone(),
            _ => APPROVE.to_owned(),
        }
    }

    /// Delivers an answer; says whether there was one. A question that was answered meanwhile by another caller needs
    /// no other.
    pub(crate) async fn answer(&self, deployment: &impl Deployment, answer: ElicitResult) -> Result<bool> {
        let (name, content) = match answer.action {
            ElicitationAction::Accept => (self.signal(), answer.content),
            ElicitationAction::Decline => (REJECT.to_owned(), None),
            _ => return Ok(false),
        };
        let payload = content.map(|content| self.unfold(content)).filter(|payload| *payload != json!({}));
        let waitpoint_id = match self.suspension.waitpoint_ids[..] {
            [only] => Some(only),
            _ => None,
        };
        let args = deliver_signal::Args {
            execution_id: self.view.execution_id,
            waitpoint_id,
            token: None,
            name,
            category: None,
            source_type: None,
            source_identity: None,
            payload: payload.map(|payload| JsonText(payload.to_string())),
            payload_base64: None,
            content_type: None,
            idempotency_key: None,
            signal_id: None,
            correlation_id: None,
            created_at: None,
            resume_delay_ms: None,
        };
        match deployment.call::<DeliverSignal>(args).await {
            Ok(_) => Ok(true),
            Err(error) if error.code == Code::WaitpointClosed || error.code == Code::TargetNotSignalable => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The value that was meant, where the form had to ask for it as text.
    fn unfold(&self, content: Value) -> Value {
        if self.suspension.schema.is_none() || self.flat_schema().is_some() {
            return content;
        }
        match content.get(ANSWER) {
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
            Some(other) => other.clone(),
            None => content,
        }
    }
}

fn json_field() -> ElicitationSchema {
    let field = json!({ "type": "string", "title": "Answer", "description": "The answer as JSON" });
    let schema = json!({ "type": "object", "properties": { ANSWER: field }, "required": [ANSWER] });
    serde_json::from_value(schema).unwrap_or_else(|_| ElicitationSchema::new(Default::default()))
}

/// Reads the answer to an elicitation.
pub(crate) fn read_answer(key: &str, answer: &Value) -> Result<ElicitResult> {
    serde_json::from_value(answer.clone()).map_err(|error| Error::invalid(&format!("inputResponses.{key}"), error))
}

/// Whether a refused answer is for the person to mend.
pub(crate) fn is_wrong_answer(error: &Error) -> bool {
    error.code.class() == Class::Invalid
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::new(Code::Internal, format!("a question cannot be written: {error}"))
}
