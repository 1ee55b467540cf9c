//! A submission in the making.

mod child_names;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_core::op::CreateExecution;
use ff_core::op::create_execution::Args;
use ff_core::op::{Debounce, Dependency, ParentLink, ScheduleTemplate, Singleton};
use ff_core::{
    Blob, CapabilitySet, ConcurrencyLimit, ExecutionId, FlowId, JoinPolicy, JsonText, PolicyRequest, RetryRequest,
};
use serde::Serialize;

pub(crate) use child_names::ChildNames;

use crate::client::Client;
use crate::error::{Result, SdkError};
use crate::execution::Execution;
use child_names::ChildName;

/// A submission, from [`Client::submit`]; nothing happens before [`send`](Submission::send).
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// let execution = client
///     .submit("transcode")
///     .input(&serde_json::json!({ "video": "s3://in/42.mov" }))
///     .lane("media")
///     .priority(10)
///     .tag("customer", "acme")
///     .idempotency_key("video-42")
///     .send()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is submitted before `send`"]
pub struct Submission {
    client: Client,
    args: Args,
    /// The input could not be written; `send` says so.
    broken: Option<SdkError>,
    /// Names a child of a task in hand that is not named otherwise.
    names: Option<Arc<ChildNames>>,
}

impl Submission {
    pub(crate) fn new(client: Client, kind: String) -> Self {
        Self { client, args: Args { kind, ..Args::default() }, broken: None, names: None }
    }

    /// The input for the worker, as JSON.
    pub fn input(mut self, input: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(input) {
            Ok(text) => self.args.input = Some(JsonText(text)),
            Err(source) => self.broken = Some(SdkError::Payload { what: "input", source }),
        }
        self
    }

    /// The input for the worker, as bytes of some content type.
    pub fn input_bytes(mut self, bytes: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        self.args.input_base64 = Some(Blob(bytes.into()));
        self.args.content_type = Some(content_type.into());
        self
    }

    /// The lane it queues in.
    pub fn lane(mut self, lane: impl Into<String>) -> Self {
        self.args.lane = Some(lane.into());
        self
    }

    /// Higher goes first.
    pub fn priority(mut self, priority: i64) -> Self {
        self.args.priority = Some(priority);
        self
    }

    /// Adds a tag.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.args.tags.insert(key.into(), value.into());
        self
    }

    /// Retries, timeouts and the rest. Whatever it does not say is the namespace's default. A [`Policy`](crate::Policy) becomes
    /// a request for what differs from the defaults by `into()`.
    pub fn policy(mut self, policy: PolicyRequest) -> Self {
        self.args.policy = Some(policy);
        self
    }

    /// Retries after the first attempt; 0 is none.
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.retry().max_retries = Some(max_retries);
        self
    }

    /// Failures of these categories are final; see [`category`](crate::category) for those of the runtime.
    pub fn never_retry<T: Into<String>>(mut self, categories: impl IntoIterator<Item = T>) -> Self {
        let categories = categories.into_iter().map(Into::into);
        self.retry().non_retryable_categories.get_or_insert_default().extend(categories);
        self
    }

    fn retry(&mut self) -> &mut RetryRequest {
        self.args.policy.get_or_insert_default().retry.get_or_insert_default()
    }

    /// The same key means the same execution, for a day.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.args.idempotency_key = Some(key.into());
        self
    }

    /// Not before this instant, in milliseconds since the epoch.
    pub fn delay_until(mut self, instant_ms: i64) -> Self {
        self.args.delay_until = Some(instant_ms);
        self
    }

    /// It expires at this instant, in milliseconds since the epoch.
    pub fn deadline_at(mut self, instant_ms: i64) -> Self {
        self.args.deadline_at = Some(instant_ms);
        self
    }

    /// The capabilities that a worker must have.
    pub fn require(mut self, capabilities: CapabilitySet) -> Self {
        self.args.required_capabilities = capabilities;
        self
    }

    /// Adds a budget it is charged to.
    pub fn budget(mut self, name: impl Into<String>) -> Self {
        self.args.budget_ids.push(name.into());
        self
    }

    /// Adds what it may spend of a dimension: each claim holds that amount in its budgets, and it starts only if it fits.
    /// Spending takes from it first, and the rest goes back when the lease ends.
    pub fn estimate(mut self, dimension: impl Into<String>, amount: i64) -> Self {
        let policy = self.args.policy.get_or_insert_default();
        policy.estimate.get_or_insert_default().insert(dimension.into(), amount);
        self
    }

    /// The quota it runs under.
    pub fn quota(mut self, name: impl Into<String>) -> Self {
        self.args.quota_policy_id = Some(name.into());
        self
    }

    /// Adds a key that it holds while it runs: it is claimed only while fewer than `limit` others hold the key.
    pub fn concurrency(mut self, key: impl Into<String>, limit: u32) -> Self {
        self.args.concurrency.push(ConcurrencyLimit { key: key.into(), limit, ..Default::default() });
        self
    }

    /// Work of different keys takes turns in its lane, whatever the number that waits under each.
    pub fn fair_key(mut self, key: impl Into<String>) -> Self {
        self.args.fair_key = Some(key.into());
        self
    }

    /// Its fair key gets so many turns for each turn of another.
    pub fn fair_weight(mut self, weight: u32) -> Self {
        self.args.fair_weight = Some(weight);
        self
    }

    /// While an execution with this key waits or runs, that one is the answer, and no other is created.
    pub fn singleton(mut self, key: impl Into<String>) -> Self {
        self.args.singleton = Some(Singleton { key: key.into() });
        self
    }

    /// Of a burst of submissions with this key only the last one runs, when no other came for `wait`; the burst is put off
    /// for at most ten times that, unless [`max_wait`](Submission::max_wait) says otherwise.
    pub fn debounce(mut self, key: impl Into<String>, wait: Duration) -> Self {
        self.args.debounce = Some(Debounce { key: key.into(), wait_ms: milliseconds(wait), max_wait_ms: None });
        self
    }

    /// A debounced burst starts no later than this after its first submission.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        match &mut self.args.debounce {
            Some(debounce) => debounce.max_wait_ms = Some(milliseconds(max_wait)),
            None => self.broken = Some(SdkError::config("submission", "max_wait", "needs a debounce")),
        }
        self
    }

    /// The flow it joins, and its name there.
    pub fn in_flow(mut self, flow_id: FlowId, node: impl Into<String>) -> Self {
        self.args.flow_id = Some(flow_id);
        self.args.node = Some(node.into());
        self
    }

    /// Adds something in the same flow that it waits for.
    pub fn depends_on(mut self, upstream: ExecutionId) -> Self {
        self.args.dependencies.push(Dependency { upstream, kind: None, data_ref: None });
        self
    }

    /// When its dependencies let it run; all of them unless this says otherwise.
    pub fn join(mut self, join: JoinPolicy) -> Self {
        self.args.join = Some(join);
        self
    }

    /// Makes it a child of a running execution, which may wait for it; see
    /// [`Client::call`] with [`ParentLink`].
    pub fn child_of(mut self, parent: ParentLink) -> Self {
        self.args.parent = Some(parent);
        self
    }

    pub(crate) fn named_by(mut self, names: Arc<ChildNames>) -> Self {
        self.names = Some(names);
        self
    }

    /// Names a child among the children of its parent: the same key means the same child, whichever attempt spawns it,
    /// until the parent is replayed or continues as new. Only for [`spawn_child`](crate::ClaimedTask::spawn_child).
    pub fn child_key(mut self, key: impl Into<String>) -> Self {
        match &mut self.args.parent {
            Some(parent) => parent.key = Some(key.into()),
            None => self.broken = Some(SdkError::config("submission", "child_key", "needs a parent")),
        }
        self
    }

    /// The child takes over no tags, budgets and deadline of its parent.
    pub fn detached(mut self) -> Self {
        match &mut self.args.parent {
            Some(parent) => parent.detached = true,
            None => self.broken = Some(SdkError::config("submission", "detached", "needs a parent")),
        }
        self
    }

    /// Changes any other argument.
    pub fn with(mut self, change: impl FnOnce(&mut Args)) -> Self {
        change(&mut self.args);
        self
    }

    /// The arguments as they stand, for a batch or a flow's graph.
    pub fn into_args(self) -> Result<Args> {
        let (args, name) = self.named()?;
        name.into_iter().for_each(ChildName::used);
        Ok(args)
    }

    /// The template of a schedule that submits this at each of its instants; see
    /// [`Client::schedule`](crate::Client::schedule).
    pub fn into_template(self) -> Result<ScheduleTemplate> {
        Ok(ScheduleTemplate::Execution(Box::new(self.into_args()?)))
    }

    /// The arguments, and the name they got if they are for a child that the handler did not name.
    fn named(self) -> Result<(Args, Option<ChildName>)> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let mut args = self.args;
        let unnamed = args.execution_id.is_none() && args.idempotency_key.is_none();
        let name = match args.parent.as_ref().filter(|parent| unnamed && parent.key.is_none()) {
            Some(_) => self.names.map(|names| names.name(&args)),
            None => None,
        };
        if let (Some(name), Some(parent)) = (&name, &mut args.parent) {
            parent.key = Some(name.key());
        }
        Ok((args, name))
    }

    /// Submits it.
    pub async fn send(self) -> Result<Execution> {
        let client = self.client.clone();
        let (args, name) = self.named()?;
        let created = client.call::<CreateExecution>(args).await?;
        name.into_iter().for_each(ChildName::used);
        Ok(Execution::new(client, created.execution_id))
    }
}

/// A span that does not fit is longer than any that is accepted.
fn milliseconds(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
