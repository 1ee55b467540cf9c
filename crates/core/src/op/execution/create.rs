//! Submitting executions.

use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::capability::CapabilitySet;
use crate::encoding::{Blob, JsonText};
use crate::error::{Code, Error, Result};
use crate::id::{AttemptIndex, ExecutionId, FlowId, LeaseEpoch, LeaseId};
use crate::join::JoinPolicy;
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::parts::{self, Content};
use crate::op::{Created, Debounce, Minting, Singleton, create_execution, operation};
use crate::policy_request::PolicyRequest;
use crate::sharing::{ConcurrencyLimit, Sharing, SingleKey, SingleUse, check_concurrency};
use crate::state::PublicState;
use crate::text::{self, Tags};

// Repeating it with the same id or idempotency key and the same content answers with the first one.
operation! {
    /// Submits an execution.
    CreateExecution(CreateExecutionArgs) -> CreateExecutionOutcome,
    "create_execution" Post "/v1/executions" Submitter validated with_roles body(crate::op::parts::body_for(limits::INPUT_MAX_BYTES)) namespaced identified("idempotency_key") gathered(CreateExecutions) creates about_execution
}

/// The arguments of `create_execution`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CreateExecutionArgs {
    /// An id the caller minted; its partition must be that of its flow or parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Where it belongs; the caller's default namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The lane it queues in; `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// The kind of work; workers choose their handler by it.
    pub kind: String,
    /// The input for the worker. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// The input as bytes; not beside `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Higher goes first; clamped to 0..=9000, 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The creator of the execution, for people; it grants no rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// Retries, timeouts and the rest; whatever it does not say is the namespace's default.
    #[serde(default, with = "crate::policy_request", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<PolicyRequest>"))]
    pub policy: Option<PolicyRequest>,
    /// For filters.
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<i64>,
    /// It expires at this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<i64>,
    /// The same key means the same execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// How long the key is remembered; 24 hours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<i64>,
    /// The capabilities that a worker must have, beside those the policy requires.
    #[serde(default, skip_serializing_if = "CapabilitySet::is_empty")]
    pub required_capabilities: CapabilitySet,
    /// Budgets it is charged to, beside the policy's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budget_ids: Vec<String>,
    /// The quota it runs under, instead of the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_policy_id: Option<String>,
    /// The flow it joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its name in the flow's graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The executions of the same flow that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
    /// When its dependencies let it run; all of them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinPolicy>,
    /// The running execution that spawns it and may wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentLink>,
    /// Handed to the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<String>,
    /// Keys that it holds while it runs, at most four: it is claimed only while fewer than `limit` others hold the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrency: Vec<ConcurrencyLimit>,
    /// Work of different keys takes turns in its lane, whatever the number that waits under each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// Its key gets so many turns for each turn of another; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_weight: Option<u32>,
    /// While one with this key waits or runs, the answer is that one, as a duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub singleton: Option<Singleton>,
    /// It starts after a pause, and takes the place of the one before it that has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Debounce>,
}
crate::newer::open_struct!(CreateExecutionArgs);

/// The answer to `create_execution`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateExecutionOutcome {
    /// The execution.
    pub execution_id: ExecutionId,
    /// It existed before.
    pub duplicate: bool,
    /// The flow it is in; a parent without one got its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its state now.
    pub public_state: PublicState,
    /// The execution whose place it took; that one is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded: Option<ExecutionId>,
}

impl CreateExecutionOutcome {
    /// The execution, if this call created it.
    pub fn created(&self) -> Created {
        if self.duplicate { Created::Nothing } else { Created::Id(self.execution_id.to_string()) }
    }

    /// The execution that was created, now or by an earlier call.
    pub fn execution(&self) -> Option<ExecutionId> {
        Some(self.execution_id)
    }
}

/// An upstream that an execution waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Dependency {
    /// The execution that must end first.
    pub upstream: ExecutionId,
    /// The submitter's name for this kind of edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name the worker reads the upstream's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
}
crate::newer::open_struct!(Dependency);

/// The lease holder that spawns a child; the parent gets an edge from the child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ParentLink {
    /// The running execution.
    pub execution_id: ExecutionId,
    /// Its lease.
    pub fence: LeaseFence,
    /// The same key means the same child, whichever lease spawns it, until the parent is replayed or continues as new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The parent's name for this kind of edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under which name it reads the child's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ref: Option<String>,
    /// The child takes over no tags, budgets and deadline of its parent. Otherwise it has the parent's tags beside its own, and
    /// the parent's budgets and deadline where its request names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}
crate::newer::open_struct!(ParentLink);

impl ParentLink {
    /// The request without the parts that differ between two requests for one child: a later lease of the parent spawns
    /// the same child.
    fn without_identity(&self) -> Self {
        let fence = LeaseFence { attempt: AttemptIndex(0), lease_id: LeaseId::default(), epoch: LeaseEpoch(0) };
        Self { fence, key: None, ..self.clone() }
    }
}

impl CreateExecutionArgs {
    /// The bytes of the input, if any.
    pub fn input(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "input",
            json: self.input.as_ref(),
            base64: self.input_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::INPUT_MAX_BYTES,
        }
        .content()
    }

    /// A worker may spawn children of what it holds; everything else takes a submitter.
    pub fn role(&self) -> Role {
        if self.parent.is_some() { Role::Worker } else { Role::Submitter }
    }

    /// Refuses what no deployment could accept.
    pub fn validate(&self) -> Result<()> {
        self.input()?;
        text::kind("kind", &self.kind)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        parts::optional(self.lane.as_deref(), "lane", text::name)?;
        parts::optional(self.creator.as_deref(), "creator", text::label)?;
        parts::optional(self.idempotency_key.as_deref(), "idempotency_key", text::label)?;
        parts::optional(self.quota_policy_id.as_deref(), "quota_policy_id", text::name)?;
        parts::optional(self.node.as_deref(), "node", text::label)?;
        parts::optional(self.trace_context.as_deref(), "trace_context", text::trace_context)?;
        parts::optional_number(self.delay_until, "delay_until", text::instant)?;
        parts::optional_number(self.deadline_at, "deadline_at", text::instant)?;
        parts::optional_number(self.dedup_window_ms, "dedup_window_ms", text::duration_ms)?;
        text::tags("tags", &self.tags)?;
        self.required_capabilities.check_field("required_capabilities")?;
        self.policy.as_ref().map_or(Ok(()), PolicyRequest::validate)?;
        parts::at_most("budget_ids", self.budget_ids.len(), limits::BUDGETS_PER_EXECUTION_MAX)?;
        self.budget_ids.iter().try_for_each(|budget| text::budget_name("budget_ids", budget))?;
        self.validate_sharing()?;
        self.validate_graph()
    }

    fn validate_graph(&self) -> Result<()> {
        self.join.as_ref().map_or(Ok(()), JoinPolicy::validate)?;
        parts::at_most("dependencies", self.dependencies.len(), limits::GRAPH_EDGES_MAX)?;
        parts::items("dependencies", &self.dependencies, |dependency| {
            parts::optional(dependency.kind.as_deref(), "kind", text::kind)?;
            parts::optional(dependency.data_ref.as_deref(), "data_ref", text::label)?;
            match self.execution_id == Some(dependency.upstream) {
                true => Err(Error::of(Code::SelfReferencingEdge).with("field", "upstream")),
                false => Ok(()),
            }
        })?;
        if let Some(parent) = &self.parent {
            parts::optional(parent.key.as_deref(), "parent.key", text::label)?;
            if parent.key.is_some() && (self.execution_id.is_some() || self.idempotency_key.is_some()) {
                let detail = "must not be given with execution_id or idempotency_key: each names the child by itself";
                return Err(Error::invalid("parent.key", detail));
            }
            parts::optional(parent.kind.as_deref(), "parent.kind", text::kind)?;
            parts::optional(parent.data_ref.as_deref(), "parent.data_ref", text::label)?;
        }
        let in_flow = self.flow_id.is_some() || self.parent.is_some();
        if !in_flow && !self.dependencies.is_empty() {
            return Err(Error::invalid("dependencies", "need a flow_id or a parent"));
        }
        if !in_flow && self.node.is_some() {
            return Err(Error::invalid("node", "needs a flow_id or a parent"));
        }
        Ok(())
    }

    /// The digest that two submissions under one key or id must have in common: of everything but the identity itself,
    /// how long it is remembered, the lease of the parent, the trace, and fields that say no more than the defaults.
    /// Nor do instants count for a child that its parent names by a key: a parent that spawns it again reads the clock
    /// at another time.
    pub fn content_digest(&self) -> [u8; 32] {
        use sha2::Digest as _;
        let drop_default = |value: &Option<String>, default: &str| value.clone().filter(|value| value != default);
        let named_by_parent = self.parent.as_ref().is_some_and(|parent| parent.key.is_some());
        let instant = |at: Option<i64>| at.filter(|_| !named_by_parent);
        let content = Self {
            execution_id: None,
            idempotency_key: None,
            dedup_window_ms: None,
            trace_context: None,
            parent: self.parent.as_ref().map(ParentLink::without_identity),
            delay_until: instant(self.delay_until),
            deadline_at: instant(self.deadline_at),
            namespace: drop_default(&self.namespace, parts::DEFAULT_NAMESPACE),
            lane: drop_default(&self.lane, parts::DEFAULT_LANE),
            priority: self.priority.map(|priority| priority.clamp(0, limits::PRIORITY_MAX)).filter(|&p| p != 0),
            policy: self.policy.clone().filter(|policy| !policy.says_nothing()),
            ..self.clone()
        };
        // Maps by name: fields that are absent leave no trace, so new optional fields do not change old digests.
        let mut digest = sha2::Sha256::new();
        content
            .serialize(&mut rmp_serde::Serializer::new(&mut digest).with_struct_map())
            .expect("arguments hold only types that msgpack can express");
        digest.finalize().into()
    }

    /// Mints the id of the execution: an id costs nothing, a key would leave a record. One that a key stands for gets its id
    /// where the key is known, and the key tells its repeat.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        let named_by_parent = self.parent.as_ref().is_some_and(|parent| parent.key.is_some());
        let named = named_by_parent || self.single_key().is_some();
        if self.execution_id.is_some() || self.idempotency_key.is_some() || named {
            return;
        }
        let mint = minting.next();
        self.execution_id = Some(match (&self.flow_id, &self.parent) {
            (Some(flow), _) => ExecutionId::for_flow(flow, &mint),
            (None, Some(parent)) => ExecutionId::in_partition(parent.execution_id.partition(), &mint),
            (None, None) => ExecutionId::solo(minting.partitions, &mint),
        });
    }
}

impl CreateExecutionArgs {
    /// How the execution shares its lane, and keys, with others.
    pub fn sharing(&self) -> Sharing {
        let single = |usage, key: &str| SingleKey { usage, key: key.to_owned(), held: true, ..Default::default() };
        let singleton = self.singleton.as_ref().map(|one| single(SingleUse::Singleton, &one.key));
        let debounce = || self.debounce.as_ref().map(|one| single(SingleUse::Debounce, &one.key));
        Sharing {
            concurrency: self.concurrency.clone(),
            fair_key: self.fair_key.clone().unwrap_or_default(),
            fair_weight: self.fair_weight.unwrap_or(0),
            single: singleton.or_else(debounce),
            ..Default::default()
        }
    }

    /// The key that stands for the execution, which lives in the partition of that key.
    pub fn single_key(&self) -> Option<&str> {
        let debounce = || self.debounce.as_ref().map(|one| one.key.as_str());
        self.singleton.as_ref().map(|one| one.key.as_str()).or_else(debounce)
    }

    fn validate_sharing(&self) -> Result<()> {
        check_concurrency(&self.concurrency)?;
        if let Some(key) = &self.fair_key {
            text::label("fair_key", key)?;
        }
        if let Some(weight) = self.fair_weight {
            text::within("fair_weight", weight, 1..=limits::FAIR_WEIGHT_MAX)?;
            if self.fair_key.is_none() {
                return Err(Error::invalid("fair_weight", "needs a fair_key"));
            }
        }
        if let Some(singleton) = &self.singleton {
            text::label("singleton.key", &singleton.key)?;
        }
        self.debounce.as_ref().map_or(Ok(()), Debounce::validate)?;
        self.validate_single()
    }

    /// The field that has such a key.
    pub(crate) fn single_field(&self) -> &'static str {
        if self.singleton.is_some() { "singleton" } else { "debounce" }
    }

    /// An execution that a key stands for lives in the key's partition, and nowhere else.
    fn validate_single(&self) -> Result<()> {
        if self.single_key().is_none() {
            return Ok(());
        }
        let field = self.single_field();
        if self.singleton.is_some() && self.debounce.is_some() {
            return Err(Error::invalid(field, "must not be given with debounce"));
        }
        let placed = self.execution_id.is_some() || self.flow_id.is_some() || self.parent.is_some();
        if placed || !self.dependencies.is_empty() {
            let detail = "must not be given with execution_id, flow_id, parent or dependencies";
            return Err(Error::invalid(field, detail));
        }
        if self.debounce.is_some() && self.delay_until.is_some() {
            return Err(Error::invalid(
                field,
                "must not be given with delay_until: it decides when the execution starts",
            ));
        }
        Ok(())
    }
}

operation! {
    /// Submits up to 1,000 executions; each is accepted or refused on its own.
    CreateExecutions(CreateExecutionsArgs) -> CreateExecutionsOutcome,
    "create_executions" Post "/v1/executions/batch" Submitter validated with_roles body(limits::BATCH_BODY_MAX_BYTES) namespaced(set_default_namespace) identified
}

/// The arguments of `create_executions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateExecutionsArgs {
    /// The submissions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executions: Vec<create_execution::Args>,
}

/// The answer to `create_executions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateExecutionsOutcome {
    /// The result of each, in the same order.
    pub results: Vec<CreateResult>,
}

/// The result of one submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateResult {
    /// It was accepted, now or before.
    Created(create_execution::Outcome),
    /// It was refused.
    Refused {
        /// The refusal.
        error: Error,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateResult);

impl CreateExecutionsArgs {
    /// A worker may spawn children of what it holds; a batch with anything else in it takes a submitter.
    pub fn role(&self) -> Role {
        let spawns = !self.executions.is_empty() && self.executions.iter().all(|one| one.parent.is_some());
        if spawns { Role::Worker } else { Role::Submitter }
    }

    /// Refuses too many at once. Each submission is checked on its own, because each has its own answer.
    pub fn validate(&self) -> Result<()> {
        parts::some_at_most("executions", self.executions.len(), limits::BATCH_CREATE_MAX)
    }

    /// Names the namespace of every execution that names none.
    pub fn set_default_namespace(&mut self, namespace: &str) {
        for execution in &mut self.executions {
            execution.namespace.get_or_insert_with(|| namespace.to_owned());
        }
    }

    /// Mints the ids of the executions.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.executions.iter_mut().for_each(|execution| execution.identify(minting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debounced(wait_ms: i64, max_wait_ms: Option<i64>) -> CreateExecutionArgs {
        let debounce = Debounce { key: "k".into(), wait_ms, max_wait_ms };
        CreateExecutionArgs { kind: "a".into(), debounce: Some(debounce), ..Default::default() }
    }

    #[test]
    fn a_burst_is_bounded_whatever_is_said() {
        let bound = |args: CreateExecutionArgs| args.debounce.map(|debounce| debounce.bound_ms());
        assert_eq!(bound(debounced(100, None)), Some(1_000));
        assert_eq!(bound(debounced(100, Some(150))), Some(150));
        let longest = limits::DEBOUNCE_WAIT_MAX_MS;
        assert_eq!(bound(debounced(longest, None)), Some(longest));
    }

    #[test]
    fn what_cannot_be_kept_under_a_key_is_refused_by_field() {
        let refused = |args: CreateExecutionArgs| args.validate().unwrap_err().details["field"].clone();
        debounced(100, Some(100)).validate().unwrap();
        assert_eq!(refused(debounced(0, None)), "debounce.wait_ms");
        assert_eq!(refused(debounced(100, Some(99))), "debounce.max_wait_ms");
        let singleton = Some(Singleton { key: "k".into() });
        assert_eq!(refused(CreateExecutionArgs { singleton: singleton.clone(), ..debounced(1, None) }), "singleton");
        let placed =
            CreateExecutionArgs { execution_id: Some(ExecutionId::default()), debounce: None, ..debounced(1, None) };
        placed.validate().unwrap();
        assert_eq!(refused(CreateExecutionArgs { singleton, ..placed }), "singleton");
        assert_eq!(refused(CreateExecutionArgs { delay_until: Some(5), ..debounced(1, None) }), "debounce");
        let weight = CreateExecutionArgs { kind: "a".into(), fair_weight: Some(2), ..Default::default() };
        assert_eq!(refused(weight.clone()), "fair_weight");
        CreateExecutionArgs { fair_key: Some("t".into()), ..weight }.validate().unwrap();
    }
}
