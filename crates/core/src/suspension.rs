//! A suspension: the condition that an execution waits for, the signals that have counted so far, and the behaviour at
//! the timeout. It is a field of the execution, so it ends exactly once, in the commit that changes the execution.

use crate::answer_schema::AnswerSchema;
use crate::condition::{Condition, Contributions, SignalFact, TIMEOUT_SIGNAL};
use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::id::{SignalId, SuspensionId, WaitpointId};
use crate::signal::SignalEffect;
use crate::state::BlockingReason;
use crate::{limits, text};

crate::vocabulary! {
    /// What happens when a suspension's time is up.
    #[derive(Default)]
    pub enum TimeoutBehavior {
        /// The execution fails.
        #[default]
        Fail "fail",
        /// The execution is cancelled.
        Cancel "cancel",
        /// The execution expires.
        Expire "expire",
        /// The execution resumes, and its worker reads one signal named `__timeout__`.
        AutoResumeWithTimeoutSignal "auto_resume_with_timeout_signal" | "auto_resume",
        /// The execution stays suspended and waits for an operator.
        Escalate "escalate",
    }
}

crate::vocabulary! {
    /// Why an execution suspends itself.
    #[derive(Default)]
    pub enum SuspendReason {
        /// It waits for a signal.
        #[default]
        Signal "signal",
        /// It waits for a person's approval.
        Approval "approval",
        /// It waits for a callback from outside.
        Callback "callback",
        /// It waits for the result of a tool.
        ToolResult "tool_result",
        /// It was asked to pause.
        Manual "manual",
        /// A policy asked it to pause.
        Policy "policy",
        /// It needs an operator's attention.
        Escalation "escalation",
        /// It is not known whether a step that must not happen twice has happened.
        InDoubt "in_doubt",
        /// The program is no longer the one that wrote its journal.
        JournalMismatch "journal_mismatch",
        /// A budget has no room, and asks a person.
        Budget "budget",
        /// A step has had the same result too often.
        NoProgress "no_progress",
    }
}

impl SuspendReason {
    /// The blocking reason that the execution shows.
    pub const fn blocking_reason(self) -> BlockingReason {
        match self {
            SuspendReason::Signal => BlockingReason::WaitingForSignal,
            SuspendReason::Approval => BlockingReason::WaitingForApproval,
            SuspendReason::Callback => BlockingReason::WaitingForCallback,
            SuspendReason::ToolResult => BlockingReason::WaitingForToolResult,
            SuspendReason::Policy => BlockingReason::PausedByPolicy,
            SuspendReason::Manual | SuspendReason::Escalation => BlockingReason::PausedByOperator,
            SuspendReason::InDoubt
            | SuspendReason::JournalMismatch
            | SuspendReason::Budget
            | SuspendReason::NoProgress => BlockingReason::WaitingForDecision,
            SuspendReason::Unknown(word) => BlockingReason::Unknown(word),
        }
    }
}

crate::document! {
    /// An execution's present suspension.
    pub struct Suspension {
        /// Its id.
        "i" id: SuspensionId,
        /// The waitpoints at which its signals arrive; the first is the one whose token was handed out.
        "w" waitpoints: Vec<WaitpointId>,
        /// The condition it waits for.
        "c" condition: Condition,
        /// The signals that have counted, in the order they were accepted. Signals that did not count are not kept, so
        /// there are never more of them than the condition has places.
        "f" facts: Vec<SignalFact>,
        /// When its time is up.
        "t" timeout_at: Option<i64>,
        /// What happens when its time is up.
        "b" behavior: TimeoutBehavior,
        /// Why it was suspended.
        "r" reason: SuspendReason,
        /// The name of the requester, as the worker gives it.
        "q" requested_by: String,
        /// Whether an operator may resume it.
        "o" allow_operator_resume: bool = true,
        /// When it began.
        "a" suspended_at: i64,
        /// Whether its time was up and it now waits for an operator.
        "e" escalated: bool,
        /// The identity of the request, so that a repeat gets the first answer.
        "k" idempotency_key: String,
        /// The question for people; empty where there is none.
        "qn" question: String,
        /// The JSON schema of the answer; empty where any will do.
        "sc" schema: String,
        /// The people the question is for.
        "as" assignees: Vec<String>,
    }
}

/// The parts a suspension is made from.
#[derive(Debug, Clone)]
pub struct NewSuspension {
    /// Its id.
    pub id: SuspensionId,
    /// Where its signals arrive, at least one.
    pub waitpoints: Vec<WaitpointId>,
    /// The condition it waits for.
    pub condition: Condition,
    /// How long it may take.
    pub timeout_ms: Option<i64>,
    /// What happens when its time is up.
    pub behavior: TimeoutBehavior,
    /// Why it is suspended.
    pub reason: SuspendReason,
    /// The name of the requester, as the worker gives it; may be empty.
    pub requested_by: String,
    /// Whether an operator may resume it.
    pub allow_operator_resume: bool,
    /// The identity of the request; empty for none.
    pub idempotency_key: String,
    /// The question for people.
    pub ask: Ask,
}

/// The question of a suspension for people.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ask {
    /// The question; may be empty.
    pub question: String,
    /// The JSON schema of the answer; empty where any will do.
    pub schema: String,
    /// The people it is for.
    pub assignees: Vec<String>,
}

impl Ask {
    /// Refuses texts that are too long, and a schema that answers cannot be checked against.
    pub fn validate(&self) -> Result<()> {
        if !self.question.is_empty() {
            text::text("question", &self.question)?;
        }
        if !self.schema.is_empty() {
            AnswerSchema::parse(&self.schema)?;
        }
        if self.assignees.len() > limits::ASSIGNEES_MAX {
            return Err(text::too_many("assignees", self.assignees.len(), limits::ASSIGNEES_MAX));
        }
        self.assignees.iter().try_for_each(|assignee| text::label("assignees", assignee))
    }
}

/// The signal by which a person agrees.
pub const APPROVE: &str = "approve";
/// The signal by which a person refuses. It ends the suspension at once, unless the condition itself counts it.
pub const REJECT: &str = "reject";

impl NewSuspension {
    /// Refuses a request that is malformed or too large, or whose suspension could never end.
    pub fn validate(&self) -> Result<()> {
        self.condition.validate()?;
        self.ask.validate()?;
        text::optional_label("requested_by", &self.requested_by)?;
        text::optional_label("idempotency_key", &self.idempotency_key)?;
        if let Some(timeout_ms) = self.timeout_ms {
            text::within("timeout_ms", timeout_ms, 1..=limits::DURATION_MAX_MS)?;
        }
        if self.waitpoints.is_empty() {
            return Err(Error::invalid("waitpoints", "must name at least one waitpoint"));
        }
        if self.waitpoints.len() > limits::WAITPOINTS_MAX {
            return Err(text::too_many("waitpoints", self.waitpoints.len(), limits::WAITPOINTS_MAX));
        }
        let repeats = |(position, id): (usize, &WaitpointId)| self.waitpoints[..position].contains(id);
        if self.waitpoints.iter().enumerate().any(repeats) {
            return Err(Error::invalid("waitpoints", "must not name a waitpoint twice"));
        }
        let (counted, waitpoints) = (self.condition.waitpoints_counted(), self.waitpoints.len());
        if counted > waitpoints {
            let detail = format!("counts {counted} distinct waitpoints, and the suspension has {waitpoints}");
            return Err(Error::invalid("condition", detail));
        }
        if self.timeout_ms.is_some() {
            return Ok(());
        }
        if self.condition == Condition::TimeoutOnly {
            return Err(Error::invalid("timeout_ms", "must be given where only the timeout ends the suspension"));
        }
        if !self.allow_operator_resume && !self.condition.satisfiable(self.waitpoints.len()) {
            return Err(Error::invalid(
                "condition",
                "can never be satisfied, and neither timeout nor operator may end it",
            ));
        }
        Ok(())
    }
}

/// The effect of a signal on a suspension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// None: the condition does not need this signal, or not any more.
    NoOp,
    /// It counts, and more is needed.
    Appended,
    /// It was the last one needed.
    Satisfied {
        /// Exactly the signals that satisfied the condition, in the order they were accepted.
        signals: Vec<SignalId>,
    },
}

impl Delivery {
    /// The effect, in the form that answers have.
    pub fn effect(&self) -> SignalEffect {
        match self {
            Delivery::NoOp => SignalEffect::NoOp,
            Delivery::Appended => SignalEffect::AppendedToWaitpoint,
            Delivery::Satisfied { .. } => SignalEffect::ResumeConditionSatisfied,
        }
    }
}

impl Suspension {
    /// The suspension of a function that is parked on waitpoints, on questions, or on both: the first signal or answer
    /// ends it. Only an answer ends a question, so an operator may not resume a function that waits for nothing but
    /// questions.
    pub fn of_waits(id: SuspensionId, waitpoints: Vec<WaitpointId>, reason: SuspendReason, now: i64) -> Self {
        let allow_operator_resume = !waitpoints.is_empty();
        Self {
            id,
            waitpoints,
            condition: if allow_operator_resume { Condition::Any(Vec::new()) } else { Condition::OperatorOnly },
            behavior: TimeoutBehavior::AutoResumeWithTimeoutSignal,
            reason,
            allow_operator_resume,
            suspended_at: now,
            ..Default::default()
        }
    }

    /// The suspension of an execution that waits for the answer to a budget's question. No signal ends it.
    pub fn of_budget(id: SuspensionId, now: i64) -> Self {
        Self { allow_operator_resume: true, ..Self::of_waits(id, Vec::new(), SuspendReason::Budget, now) }
    }

    /// Whether it waits for the answer to a budget's question. A worker may name the same reason for a suspension of its
    /// own, but that one has a waitpoint, and what its worker wants to hear ends it.
    pub fn waits_for_budget(&self) -> bool {
        self.reason == SuspendReason::Budget && self.waitpoints.is_empty()
    }

    /// A suspension that begins now.
    pub fn new(request: NewSuspension, now: i64) -> Result<Self> {
        request.validate()?;
        Ok(Self {
            id: request.id,
            waitpoints: request.waitpoints,
            condition: request.condition,
            timeout_at: request.timeout_ms.map(|timeout_ms| now + timeout_ms),
            behavior: request.behavior,
            reason: request.reason,
            requested_by: request.requested_by,
            allow_operator_resume: request.allow_operator_resume,
            suspended_at: now,
            idempotency_key: request.idempotency_key,
            question: request.ask.question,
            schema: request.ask.schema,
            assignees: request.ask.assignees,
            ..Default::default()
        })
    }

    /// Whether it waits for people, and so belongs into the list of open questions. An execution that waits for a
    /// budget's question does not, because the budget asks once for all of them.
    pub fn asks(&self) -> bool {
        if self.waits_for_budget() {
            return false;
        }
        self.takes_decisions() || self.reason.blocking_reason() == BlockingReason::WaitingForDecision
    }

    /// Whether a signal `approve` or `reject` decides it.
    pub fn takes_decisions(&self) -> bool {
        self.reason == SuspendReason::Approval || !self.question.is_empty()
    }

    /// Whether a signal is a refusal that ends the suspension, however many people agreed. If the condition itself
    /// names `reject`, the condition decides.
    fn is_refusal(&self, fact: &SignalFact) -> bool {
        self.takes_decisions()
            && fact.name == REJECT
            && !self.condition.required_names().iter().any(|name| name == REJECT)
    }

    /// Refuses an answer that its schema does not allow. A signal that would not count is not checked, and a refusal
    /// needs no content.
    pub fn check_answer(&self, fact: &SignalFact, payload: Option<&[u8]>) -> Result<()> {
        let decides = fact.name == APPROVE || self.is_refusal(fact);
        if self.schema.is_empty() || !(decides || self.condition.would_contribute(&self.facts, fact)) {
            return Ok(());
        }
        if fact.name == REJECT && payload.is_none() {
            return Ok(());
        }
        let answer = match payload {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|error| {
                Error::invalid("payload", format!("must be JSON, which the question asks for: {error}"))
            })?,
            None => serde_json::Value::Null,
        };
        AnswerSchema::parse(&self.schema)?.check(&answer)
    }

    /// A signal arrives. The caller ends the suspension when it is satisfied.
    pub fn deliver(&mut self, fact: SignalFact) -> Delivery {
        if self.waitpoints.contains(&fact.waitpoint) && self.is_refusal(&fact) {
            let signals = vec![fact.id];
            self.facts.push(fact);
            return Delivery::Satisfied { signals };
        }
        if !self.waitpoints.contains(&fact.waitpoint) || !self.condition.would_contribute(&self.facts, &fact) {
            return Delivery::NoOp;
        }
        self.facts.push(fact);
        let progress = self.condition.evaluate(&self.facts);
        if progress.satisfied { Delivery::Satisfied { signals: progress.contributed } } else { Delivery::Appended }
    }

    /// Signals that were buffered before the suspension began, from one or more waitpoints: taken in the order they
    /// were accepted, up to the one that satisfies the condition.
    pub fn absorb(&mut self, mut buffered: Vec<SignalFact>) -> Delivery {
        buffered.retain(|fact| self.waitpoints.contains(&fact.waitpoint));
        buffered.sort_by_key(|fact| fact.at);
        let refusal = buffered.iter().position(|fact| self.is_refusal(fact)).map(|place| {
            buffered.truncate(place + 1);
            buffered.remove(place)
        });
        let Contributions { counted, progress } = self.condition.take_in_order(&self.facts, &buffered);
        let mut place = 0..;
        buffered.retain(|_| place.next().is_some_and(|place| counted.contains(&place)));
        self.facts.extend(buffered);
        match refusal {
            _ if progress.satisfied => Delivery::Satisfied { signals: progress.contributed },
            Some(refusal) => self.deliver(refusal),
            None if counted.is_empty() => Delivery::NoOp,
            None => Delivery::Appended,
        }
    }

    /// The blocking reason that the execution shows.
    pub fn blocking_reason(&self) -> BlockingReason {
        if self.escalated { BlockingReason::PausedByOperator } else { self.reason.blocking_reason() }
    }

    /// The instant at which the timer must check it. An escalated suspension has no timeout any more.
    pub fn next_timer(&self) -> Option<i64> {
        self.timeout_at.filter(|_| !self.escalated)
    }

    /// Whether its time is up.
    pub fn timeout_due(&self, now: i64) -> bool {
        self.next_timer().is_some_and(|at| at <= now)
    }

    /// Hands it to an operator. Signals may still satisfy it.
    pub fn escalate(&mut self) {
        self.escalated = true;
    }

    /// Refuses an operator unless the suspension allows one. An escalated suspension always does, because it waits for
    /// an operator.
    pub fn check_operator_resume(&self) -> Result<()> {
        if self.allow_operator_resume || self.escalated {
            return Ok(());
        }
        Err(Error::of(Code::OperatorResumeNotAllowed))
    }
}

/// A signal as the worker reads it after its execution was resumed.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct ResumeSignal {
    /// The signal.
    pub signal_id: SignalId,
    /// Its name.
    pub name: String,
    /// Its category, as the sender says.
    pub category: String,
    /// The kind of sender it came from.
    pub source_type: String,
    /// Which sender it came from, as that one says.
    pub source_identity: String,
    /// The caller that brought it: the name of an API token, or `waitpoint_token`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub delivered_by: String,
    /// The sender's own id for what the signal belongs to.
    pub correlation_id: String,
    /// When it was accepted.
    pub accepted_at: i64,
    /// The type of its payload.
    pub content_type: String,
    /// Its payload, if it has one.
    #[serde(rename = "payload_base64")]
    pub payload: Option<Blob>,
}
crate::newer::open_struct!(ResumeSignal);

impl ResumeSignal {
    /// The signal that stands for a timeout.
    pub fn timeout(signal_id: SignalId, at: i64) -> Self {
        Self { signal_id, name: TIMEOUT_SIGNAL.into(), accepted_at: at, ..Default::default() }
    }
}

#[cfg(test)]
mod tests;
