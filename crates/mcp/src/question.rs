//! A suspension with a question, as elicitation: what a person is asked, and the signal that the answer becomes. A suspension
//! that needs several signals, or a signal at each of several waitpoints, asks for all of them at once.

use ff_core::condition::Condition;
use ff_core::op::view::{ExecutionView, SuspensionView};
use ff_core::op::{DeliverSignal, deliver_signal};
use ff_core::suspension::SuspendReason;
use ff_core::{Class, Code, Error, JsonText, Result, WaitpointId};
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest, InputRequests,
    InputResponses,
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
    part: Part,
}

/// The part of a suspension that one answer settles.
enum Part {
    /// All of it.
    Whole,
    /// The signal of this name, of several that are needed.
    Signal(String),
    /// A signal at this waitpoint, of several that are counted; and which of them it is.
    Waitpoint(WaitpointId, usize),
}

/// The open questions of an execution. Questions of budgets and journals are for operators, not for the caller of a tool.
pub(crate) fn open(view: &ExecutionView) -> Vec<Question<'_>> {
    let Some(suspension) = view.suspension.as_ref().filter(|suspension| asks_the_caller(suspension)) else {
        return Vec::new();
    };
    let parts = parts(suspension).into_iter().filter(|part| match part {
        Part::Whole => true,
        Part::Signal(name) => suspension.signed.iter().all(|signed| signed.name != *name),
        Part::Waitpoint(id, _) => suspension.signed.iter().all(|signed| signed.waitpoint_id != Some(*id)),
    });
    parts.map(|part| Question { view, suspension, part }).collect()
}

fn asks_the_caller(suspension: &SuspensionView) -> bool {
    let decided_by_signal = match suspension.reason {
        SuspendReason::InDoubt | SuspendReason::JournalMismatch => false,
        SuspendReason::Approval => true,
        _ => suspension.question.is_some(),
    };
    decided_by_signal && !matches!(suspension.condition, Condition::OperatorOnly | Condition::TimeoutOnly)
}

/// The parts are those of the whole suspension, answered or not, so that a question keeps its key while others are answered.
fn parts(suspension: &SuspensionView) -> Vec<Part> {
    let names = suspension.condition.mandatory_names();
    if names.len() > 1 {
        return names.into_iter().map(Part::Signal).collect();
    }
    if suspension.condition.waitpoints_counted() > 1 {
        let places = suspension.waitpoint_ids.iter().zip(1..);
        return places.map(|(id, place)| Part::Waitpoint(*id, place)).collect();
    }
    vec![Part::Whole]
}

/// Questions as the input requests of a task or a call.
pub(crate) fn requests(questions: &[Question<'_>]) -> Result<InputRequests> {
    questions.iter().map(|question| Ok((question.key(), question.request()?))).collect()
}

/// Hands over answers, each to the question that it names. Answers to questions that are not open are passed over.
pub(crate) async fn take_answers(
    deployment: &impl Deployment,
    view: &ExecutionView,
    answers: &InputResponses,
) -> Result<()> {
    let mut taken = Vec::new();
    for question in open(view) {
        if let Some(answer) = answers.get(&question.key()) {
            let answer = read_answer(&question.key(), answer)?;
            taken.push((question, answer));
        }
    }
    for (question, answer) in taken {
        question.answer(deployment, answer).await?;
    }
    Ok(())
}

impl Question<'_> {
    /// Names the question; another one of the same execution has another name.
    pub(crate) fn key(&self) -> String {
        let suspension = self.suspension.suspension_id;
        match &self.part {
            Part::Whole => suspension.to_string(),
            Part::Signal(name) => format!("{suspension}/{name}"),
            Part::Waitpoint(id, _) => format!("{suspension}/{id}"),
        }
    }

    /// The text that a person reads.
    pub(crate) fn text(&self) -> String {
        let detail = self.view.blocking_detail.clone();
        let text = self.suspension.question.clone().or(detail);
        let text = text.unwrap_or_else(|| format!("Approve {}?", self.view.kind));
        match &self.part {
            Part::Whole => text,
            Part::Signal(name) => format!("{text} ({name})"),
            Part::Waitpoint(_, place) => format!("{text} ({place} of {})", self.suspension.waitpoint_ids.len()),
        }
    }

    fn request(&self) -> Result<InputRequest> {
        let params = serde_json::to_value(self.form()).map_err(unwritable)?;
        let request = json!({ "method": "elicitation/create", "params": params });
        serde_json::from_value(request).map_err(unwritable)
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
        if let Part::Signal(name) = &self.part {
            return name.clone();
        }
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
        // A signal counts by its name wherever it arrives, unless the condition counts waitpoints.
        let waitpoint_id = match self.part {
            Part::Waitpoint(id, _) => Some(id),
            Part::Whole | Part::Signal(_) => self.suspension.waitpoint_ids.first().copied(),
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
fn read_answer(key: &str, answer: &Value) -> Result<ElicitResult> {
    serde_json::from_value(answer.clone()).map_err(|error| Error::invalid(&format!("inputResponses.{key}"), error))
}

/// Whether a refused answer is for the person to mend.
pub(crate) fn is_wrong_answer(error: &Error) -> bool {
    error.code.class() == Class::Invalid
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::new(Code::Internal, format!("a question cannot be written: {error}"))
}
