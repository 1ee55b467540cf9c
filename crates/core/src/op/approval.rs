//! Questions that wait for people, and decisions by people who know nothing but a waitpoint.

use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::budget::BudgetQuestionView;
use crate::condition::Condition;
use crate::encoding::{Blob, JsonText};
use crate::error::Result;
use crate::id::{ExecutionId, SignalId, WaitpointId};
use crate::limits;
use crate::op::parts::{self, Secret};
use crate::op::view::{QuestionView, SignedView};
use crate::op::{DeliverSignalArgs, Minting, operation};
use crate::signal::SignalOutcome;
use crate::suspension::{SuspendReason, TimeoutBehavior};
use crate::text::{self, Tags};

operation! {
    /// Lists what waits for people, what has waited longest first. It is decided with a signal `approve` or `reject`, and a
    /// question about an entry of the journal with `decide_step`.
    ListApprovals(ListApprovalsArgs) -> ListApprovalsOutcome,
    "list_approvals" Get "/v1/approvals" Reader any_role validated filtered namespaced
}

/// The arguments of `list_approvals`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListApprovalsArgs {
    /// Their namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only what this execution asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Only questions for this person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee: Option<String>,
    /// Only executions of these kinds.
    #[serde(default, deserialize_with = "parts::one_or_several", skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// Only with this tag, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// The answer to `list_approvals`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListApprovalsOutcome {
    /// Executions that wait for people.
    pub items: Vec<ApprovalView>,
    /// Questions of budgets, on the first page; `decide_budget` answers them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetQuestionView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// An execution that waits for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApprovalView {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its namespace.
    pub namespace: String,
    /// Its lane.
    pub lane: String,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Its tags.
    pub tags: Tags,
    /// Why it waits.
    pub reason: SuspendReason,
    /// The question for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// A detail of the wait, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The JSON schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<JsonText>,
    /// The people the question is for.
    pub assignees: Vec<String>,
    /// The name that asked for it, as the worker says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Since when it waits.
    pub since: i64,
    /// When it gives up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<i64>,
    /// What happens when its time is up.
    pub timeout_behavior: TimeoutBehavior,
    /// The condition it waits for.
    pub condition: Condition,
    /// The names of the signals that count; any when empty. `reject` ends it in any case.
    pub signals: Vec<String>,
    /// Where signals arrive.
    pub waitpoint_ids: Vec<WaitpointId>,
    /// The signals that have counted so far, with the names behind them.
    pub signed: Vec<SignedView>,
    /// Questions about entries of the journal; `decide_step` answers them, and no signal does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionView>,
}

impl ListApprovalsArgs {
    /// The tag as its key and value.
    pub fn tag(&self) -> Result<Option<(&str, &str)>> {
        parts::tag_filter(self.tag.as_deref())
    }

    /// Refuses filters that can match nothing.
    pub fn validate(&self) -> Result<()> {
        self.tag()?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.assignee.as_deref(), "assignee", text::label)?;
        parts::each("kind", &self.kind, text::kind)?;
        parts::page(self.limit)
    }
}

operation! {
    /// Delivers a signal to a waitpoint, whichever execution it belongs to. Its token is all the authority it takes, also
    /// on a server that asks for API tokens.
    SignalWaitpoint(SignalWaitpointArgs) -> SignalOutcome,
    "signal_waitpoint" Post "/v1/signals/{waitpoint_id}" Operator validated with_roles audited own waitpoint_token identified("idempotency_key") body(crate::op::parts::body_for(limits::SIGNAL_PAYLOAD_MAX_BYTES))
}

/// The arguments of `signal_waitpoint`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalWaitpointArgs {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The waitpoint's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The name of the signal; conditions match it.
    pub name: String,
    /// The category of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The kind of sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// The sender; conditions may count distinct senders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_identity: Option<String>,
    /// The payload. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// The payload as bytes; not beside `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The same key means the same signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// An id the caller minted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_id: Option<SignalId>,
    /// The sender's own id for what the signal belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// When its sender made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// How long the resumed execution waits before it is eligible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_delay_ms: Option<i64>,
}

impl SignalWaitpointArgs {
    /// Mints the id of the signal.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        if self.idempotency_key.is_none() {
            self.signal_id.get_or_insert_with(|| SignalId::mint(&minting.fresh()));
        }
    }

    /// The same signal for the execution that the waitpoint belongs to.
    pub fn for_execution(self, execution_id: ExecutionId) -> DeliverSignalArgs {
        DeliverSignalArgs {
            execution_id,
            waitpoint_id: Some(self.waitpoint_id),
            token: self.token,
            name: self.name,
            category: self.category,
            source_type: self.source_type,
            source_identity: self.source_identity,
            payload: self.payload,
            payload_base64: self.payload_base64,
            content_type: self.content_type,
            idempotency_key: self.idempotency_key,
            signal_id: self.signal_id,
            correlation_id: self.correlation_id,
            created_at: self.created_at,
            resume_delay_ms: self.resume_delay_ms,
        }
    }

    /// See [`DeliverSignalArgs::role`].
    pub fn role(&self) -> Role {
        parts::signal_role(self.token.is_some(), &self.name)
    }

    /// See [`DeliverSignalArgs::is_audited`].
    pub fn is_audited(&self) -> bool {
        self.token.is_none() || parts::is_decision(&self.name)
    }

    /// Refuses what no waitpoint could keep.
    pub fn validate(&self) -> Result<()> {
        self.clone().for_execution(ExecutionId::default()).validate()
    }
}

operation! {
    /// Reads the question that a waitpoint is for. Its token is all the authority it takes, also on a server that asks for
    /// API tokens, so that the page of a link can show people what they decide.
    ReadQuestion(ReadQuestionArgs) -> ReadQuestionOutcome,
    "read_question" Post "/v1/signals/{waitpoint_id}/question" Reader waitpoint_token
}

/// The arguments of `read_question`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadQuestionArgs {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// The waitpoint's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
}

/// The answer to `read_question`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadQuestionOutcome {
    /// Whether the waitpoint still takes an answer.
    pub open: bool,
    /// The execution that asks.
    pub execution_id: ExecutionId,
    /// The kind of its work.
    pub kind: String,
    /// Why it waits, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<SuspendReason>,
    /// The question for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// A detail of the wait, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The JSON schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<JsonText>,
    /// The people the question is for.
    pub assignees: Vec<String>,
    /// Since when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// When it gives up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<i64>,
    /// The names of the signals that count; any when empty. `reject` ends it in any case.
    pub signals: Vec<String>,
}
