//! New executions: the request with every default filled in, its checks, and the document that it becomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Execution, Hold};
use crate::capability::CapabilitySet;
use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, FlowId};
use crate::payload::Payload;
use crate::policy::Policy;
use crate::schedule::ScheduledRun;
use crate::sharing::Sharing;
use crate::state::BlockingReason;
use crate::{limits, text};

/// A request for a new execution, with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct NewExecution {
    /// Minted before the commit, so that a repeat names the same one.
    pub id: ExecutionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Which lane it waits in.
    pub lane: String,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// Clamped to 0..=9000.
    pub priority: i64,
    /// The creator that the submission names.
    pub creator: String,
    /// The API token that submits it, if that token may do no more than submit.
    pub submitted_by: String,
    /// The idempotency key it is created with; empty for none.
    pub idempotency_key: String,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// Its policy: retries, timeouts, limits, routing.
    pub policy: Arc<Policy>,
    /// Required in addition to the capabilities of the policy's routing.
    pub capabilities: CapabilitySet,
    /// Charged in addition to the policy's budgets.
    pub budgets: Vec<String>,
    /// Replaces the policy's quota.
    pub quota: Option<String>,
    /// Its input.
    pub input: Payload,
    /// It does not start before this instant.
    pub delay_until: Option<i64>,
    /// Expires at this instant; the policy's deadline counts from now when this is absent.
    pub deadline_at: Option<i64>,
    /// The flow it is made for.
    pub flow: Option<FlowId>,
    /// Its name in the flow's graph.
    pub node: String,
    /// A digest of sixteen bytes that tells a repeated request from a different one.
    pub request_hash: Blob,
    /// Trace context of the submitter.
    pub trace_context: String,
    /// The schedule that makes it.
    pub schedule: Option<Box<ScheduledRun>>,
    /// How it shares its lane, and keys, with others.
    pub sharing: Sharing,
}

impl NewExecution {
    /// Takes over from the execution that spawns it: the parent's tags in addition to its own as far as there is room,
    /// and the parent's budgets and deadline where the request has none.
    pub fn inherit(&mut self, parent: &Execution) {
        for (name, value) in &parent.tags {
            if self.tags.len() < limits::TAGS_MAX {
                self.tags.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        if self.budgets.is_empty() && self.policy.budget_ids.is_empty() {
            self.budgets.clone_from(&parent.budgets);
        }
        if self.deadline_at.is_none() && self.policy.timeout.execution_deadline_ms.is_none() {
            self.deadline_at = Some(parent.deadline_at).filter(|at| *at > 0);
        }
    }

    /// Checks every field; nothing is created from a request that fails.
    pub fn validate(&self) -> Result<()> {
        text::name("namespace", &self.namespace)?;
        text::name("lane", &self.lane)?;
        text::kind("kind", &self.kind)?;
        text::optional_label("creator", &self.creator)?;
        text::tags("tags", &self.tags)?;
        text::optional_label("node", &self.node)?;
        text::trace_context("trace_context", &self.trace_context)?;
        text::optional_content_type("content_type", &self.input.content_type)?;
        if self.input.size > limits::INPUT_MAX_BYTES as u64 {
            let size = usize::try_from(self.input.size).unwrap_or(usize::MAX);
            return Err(Error::too_large("input", size, limits::INPUT_MAX_BYTES));
        }
        self.policy.validate()?;
        self.capabilities.check_field("required_capabilities")?;
        if self.budgets.len() > limits::BUDGETS_PER_EXECUTION_MAX {
            return Err(text::too_many("budget_ids", self.budgets.len(), limits::BUDGETS_PER_EXECUTION_MAX));
        }
        for budget in &self.budgets {
            text::budget_name("budget_ids", budget)?;
        }
        if let Some(quota) = &self.quota {
            text::name("quota_policy_id", quota)?;
        }
        self.sharing.validate()?;
        for (field, instant) in [("delay_until", self.delay_until), ("deadline_at", self.deadline_at)] {
            if let Some(instant) = instant {
                text::instant(field, instant)?;
            }
        }
        match &self.flow {
            Some(flow) if flow.partition != self.id.partition => {
                Err(Error::of(Code::PartitionMismatch).with("execution_id", self.id).with("flow_id", flow))
            }
            _ => Ok(()),
        }
    }
}

impl Execution {
    /// A new execution. A request that breaks a rule is refused.
    pub fn create(request: NewExecution, now: i64) -> Result<Self> {
        request.validate()?;
        let mut capabilities: Vec<String> = request.capabilities.tokens().map(str::to_owned).collect();
        capabilities.extend(request.policy.routing.required_capabilities.tokens().map(str::to_owned));
        let mut budgets = request.budgets;
        budgets.extend(request.policy.budget_ids.iter().cloned());
        budgets.sort();
        budgets.dedup();
        if budgets.len() > limits::BUDGETS_PER_EXECUTION_MAX {
            return Err(text::too_many("budget_ids", budgets.len(), limits::BUDGETS_PER_EXECUTION_MAX));
        }
        let from_policy = request.policy.timeout.execution_deadline_ms.map(|deadline_ms| now + deadline_ms);
        let sharing = Some(request.sharing.sorted()).filter(|sharing| *sharing != Sharing::default());
        let mut execution = Self {
            id: request.id,
            namespace: request.namespace,
            lane: request.lane,
            kind: request.kind,
            priority: request.priority.clamp(0, limits::PRIORITY_MAX),
            creator: request.creator,
            submitted_by: request.submitted_by,
            idempotency_key: request.idempotency_key,
            tags: request.tags,
            capabilities: {
                let named = |refusal: Error| refusal.with("field", "required_capabilities");
                let required = CapabilitySet::new(capabilities).map_err(named)?;
                if request.policy.pin_build {
                    // The set must have room for the build that the execution will be pinned to.
                    required.with_build(&"b".repeat(limits::NAME_MAX_BYTES)).map_err(named)?;
                }
                required
            },
            budgets,
            quota: request.quota.or_else(|| request.policy.quota_policy_id.clone()),
            policy: request.policy,
            input: request.input,
            created_at: now,
            updated_at: now,
            deadline_at: request.deadline_at.or(from_policy).unwrap_or(0),
            deadline_chosen: request.deadline_at.is_some() && from_policy.is_some(),
            request_hash: request.request_hash,
            flow: request.flow,
            node: request.node,
            trace_context: request.trace_context,
            schedule: request.schedule,
            queued_by_kind: true,
            sharing: sharing.map(Box::new),
            ..Default::default()
        };
        if let Some(delay_until) = request.delay_until.filter(|until| *until > now) {
            execution.not_before = delay_until;
            execution.time_reason = BlockingReason::WaitingForDelay;
            execution.holds.set(Hold::Time);
        }
        execution.settle();
        let long = execution.sharing.as_ref().map_or(0, |_| execution.queue().as_bytes().len());
        if long > limits::INDEX_NAME_MAX_BYTES {
            return Err(Error::too_large("concurrency", long, limits::INDEX_NAME_MAX_BYTES));
        }
        Ok(execution)
    }
}
