//! A policy as a submission writes it: whatever it leaves out is the default of its namespace, then that of the policy.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::budget::Amounts;
use crate::capability::CapabilitySet;
use crate::error::Result;
use crate::policy::{Backoff, FallbackTier, NoProgressPolicy, Policy, SuspensionPolicy, TimeoutPolicy};

/// Declares a part of a policy in which nothing has to be said.
macro_rules! said {
    ($(#[$meta:meta])* pub struct $name:ident { $( $(#[$fmeta:meta])* $field:ident : $ty:ty ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(remote = "Self", default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[$fmeta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$ty>,
            )*
        }
        crate::newer::open_struct!($name);
    };
}

said! {
    /// Retries, timeouts and the rest. A field that is absent is the namespace's default.
    pub struct PolicyRequest {
        /// When a failed attempt is tried again.
        retry: RetryRequest,
        /// How long an attempt and the whole execution may take.
        timeout: TimeoutPolicy,
        /// Leases that may be lost before the execution fails; 100 unless the namespace says otherwise.
        max_reclaim_count: u32,
        /// Times a finished execution may be run again; 10 unless the namespace says otherwise.
        max_replay_count: u32,
        /// The defaults of a suspension.
        suspension: SuspensionPolicy,
        /// Which workers may run it.
        routing: RoutingRequest,
        /// How much its stream keeps.
        stream: StreamRequest,
        /// Signals the execution accepts in its life; 10,000 unless the namespace says otherwise.
        max_signals_per_execution: u32,
        /// How long it is kept once it has ended; the namespace's or the deployment's default when absent.
        retention_ms: i64,
        /// Budgets it is charged to.
        budget_ids: Vec<String>,
        /// The quota it runs under.
        quota_policy_id: String,
        /// Which model to use at which retry.
        fallback: Vec<FallbackTier>,
        /// After its first start, only workers of the same build run it.
        pin_build: bool,
        /// When its steps are taken for a loop.
        no_progress: NoProgressPolicy,
        /// The amounts, by dimension, that each claim holds in the execution's budgets before it starts: it starts only if they
        /// fit. Spending under that lease takes from them first, and the rest goes back when the lease ends.
        estimate: Amounts,
    }
}

said! {
    /// When a failed attempt is tried again.
    pub struct RetryRequest {
        /// Retries after the first attempt; 0 is none. 3 unless the namespace says otherwise.
        max_retries: u32,
        /// How long to wait before each.
        backoff: Backoff,
        /// Only failures of these categories are retried; empty means all.
        retryable_categories: Vec<String>,
        /// Failures of these categories are never retried.
        non_retryable_categories: Vec<String>,
        /// Failures of the category `permanent` are not retried, unless this request or the namespace chooses categories.
        spare_permanent: bool,
    }
}

said! {
    /// Which workers may run it.
    pub struct RoutingRequest {
        /// The capabilities that a worker must have.
        required_capabilities: CapabilitySet,
    }
}

said! {
    /// How much a stream keeps.
    pub struct StreamRequest {
        /// Frames kept for each attempt; 10,000 unless the namespace says otherwise.
        retention_maxlen: u64,
        /// How long frames are kept after the attempt ended; as long as the execution when absent.
        retention_ttl_ms: i64,
    }
}

/// Puts what was said in place of what there is.
fn put<T: Clone>(place: &mut T, said: Option<&T>) {
    if let Some(said) = said {
        place.clone_from(said);
    }
}

/// The same for a field that may be absent in both.
fn put_some<T: Clone>(place: &mut Option<T>, said: Option<&T>) {
    if said.is_some() {
        *place = said.cloned();
    }
}

impl PolicyRequest {
    /// The whole policy: what was said, in place of the defaults.
    pub fn over(&self, defaults: &Policy) -> Policy {
        let mut policy = defaults.clone();
        if let Some(retry) = &self.retry {
            put(&mut policy.retry.max_retries, retry.max_retries.as_ref());
            put(&mut policy.retry.backoff, retry.backoff.as_ref());
            put(&mut policy.retry.retryable_categories, retry.retryable_categories.as_ref());
            put(&mut policy.retry.non_retryable_categories, retry.non_retryable_categories.as_ref());
            if retry.spare_permanent == Some(true) {
                policy.retry.spare_permanent();
            }
        }
        if let Some(timeout) = &self.timeout {
            put_some(&mut policy.timeout.attempt_timeout_ms, timeout.attempt_timeout_ms.as_ref());
            put_some(&mut policy.timeout.execution_deadline_ms, timeout.execution_deadline_ms.as_ref());
        }
        put(&mut policy.max_reclaim_count, self.max_reclaim_count.as_ref());
        put(&mut policy.max_replay_count, self.max_replay_count.as_ref());
        if let Some(suspension) = &self.suspension {
            put_some(&mut policy.suspension.default_timeout_ms, suspension.default_timeout_ms.as_ref());
            put_some(&mut policy.suspension.timeout_behavior, suspension.timeout_behavior.as_ref());
        }
        if let Some(routing) = &self.routing {
            put(&mut policy.routing.required_capabilities, routing.required_capabilities.as_ref());
        }
        if let Some(stream) = &self.stream {
            put(&mut policy.stream.retention_maxlen, stream.retention_maxlen.as_ref());
            put_some(&mut policy.stream.retention_ttl_ms, stream.retention_ttl_ms.as_ref());
        }
        put(&mut policy.max_signals_per_execution, self.max_signals_per_execution.as_ref());
        put_some(&mut policy.retention_ms, self.retention_ms.as_ref());
        put(&mut policy.budget_ids, self.budget_ids.as_ref());
        put_some(&mut policy.quota_policy_id, self.quota_policy_id.as_ref());
        put(&mut policy.fallback, self.fallback.as_ref());
        put(&mut policy.pin_build, self.pin_build.as_ref());
        put_some(&mut policy.no_progress, self.no_progress.as_ref());
        put(&mut policy.estimate, self.estimate.as_ref());
        policy
    }

    /// Refuses what no engine could keep.
    pub fn validate(&self) -> Result<()> {
        self.over(&Policy::default()).validate()
    }

    /// Whether it asks for nothing but the defaults.
    pub fn says_nothing(&self) -> bool {
        self.over(&Policy::default()) == Policy::default()
    }
}

/// A policy says what differs from the defaults: the rest of a struct is filled up with them, and not chosen.
impl From<Policy> for PolicyRequest {
    fn from(policy: Policy) -> Self {
        let defaults = Policy::default();
        fn differs<T: PartialEq>(value: T, default: T) -> Option<T> {
            (value != default).then_some(value)
        }
        let retry = RetryRequest {
            max_retries: differs(policy.retry.max_retries, defaults.retry.max_retries),
            backoff: differs(policy.retry.backoff, defaults.retry.backoff),
            retryable_categories: differs(policy.retry.retryable_categories, Vec::new()),
            non_retryable_categories: differs(policy.retry.non_retryable_categories, Vec::new()),
            spare_permanent: None,
        };
        let routing = RoutingRequest {
            required_capabilities: differs(policy.routing.required_capabilities, CapabilitySet::default()),
        };
        let stream = StreamRequest {
            retention_maxlen: differs(policy.stream.retention_maxlen, defaults.stream.retention_maxlen),
            retention_ttl_ms: policy.stream.retention_ttl_ms,
        };
        Self {
            retry: differs(retry, RetryRequest::default()),
            timeout: differs(policy.timeout, TimeoutPolicy::default()),
            max_reclaim_count: differs(policy.max_reclaim_count, defaults.max_reclaim_count),
            max_replay_count: differs(policy.max_replay_count, defaults.max_replay_count),
            suspension: differs(policy.suspension, SuspensionPolicy::default()),
            routing: differs(routing, RoutingRequest::default()),
            stream: differs(stream, StreamRequest::default()),
            max_signals_per_execution: differs(policy.max_signals_per_execution, defaults.max_signals_per_execution),
            retention_ms: policy.retention_ms,
            budget_ids: differs(policy.budget_ids, Vec::new()),
            quota_policy_id: policy.quota_policy_id,
            fallback: differs(policy.fallback, Vec::new()),
            pin_build: differs(policy.pin_build, false),
            no_progress: policy.no_progress,
            estimate: differs(policy.estimate, Amounts::new()),
        }
    }
}

/// JSON has what was said. Everything else, such as the digest that tells two requests apart, has the whole policy, so that a
/// default that was said is the same as one that was not.
pub(crate) fn serialize<S: Serializer>(said: &Option<PolicyRequest>, serializer: S) -> Result<S::Ok, S::Error> {
    match said {
        Some(said) if serializer.is_human_readable() => serializer.serialize_some(said),
        Some(said) => serializer.serialize_some(&said.over(&Policy::default())),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PolicyRequest>, D::Error> {
    if deserializer.is_human_readable() {
        return Option::deserialize(deserializer);
    }
    Ok(Option::<Policy>::deserialize(deserializer)?.map(PolicyRequest::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(value: serde_json::Value) -> PolicyRequest {
        serde_json::from_value(value).unwrap()
    }

    fn namespace() -> Policy {
        serde_json::from_value(json!({
            "retry": { "max_retries": 1, "backoff": { "fixed": { "delay_ms": 5 } }, "non_retryable_categories": ["auth"] },
            "timeout": { "attempt_timeout_ms": 1_000 }, "max_replay_count": 2, "budget_ids": ["team"], "retention_ms": 7,
            "stream": { "retention_maxlen": 9 }, "suspension": { "default_timeout_ms": 8 }, "estimate": { "tokens": 6 },
        }))
        .unwrap()
    }

    #[test]
    fn what_is_not_said_is_the_default_of_the_namespace() {
        assert_eq!(request(json!({})).over(&namespace()), namespace());
        let said = json!({
            "retry": { "max_retries": 3 }, "timeout": { "execution_deadline_ms": 60_000 }, "budget_ids": [],
            "stream": { "retention_ttl_ms": 4 }, "suspension": { "timeout_behavior": "cancel" },
        });
        let policy = request(said).over(&namespace());
        assert_eq!(policy.retry.max_retries, 3, "a default that is said is said");
        assert_eq!((policy.retry.delay_ms(0, 0), policy.retry.non_retryable_categories.len()), (5, 1));
        assert_eq!(
            (policy.timeout.attempt_timeout_ms, policy.timeout.execution_deadline_ms),
            (Some(1_000), Some(60_000))
        );
        assert_eq!((policy.max_replay_count, policy.retention_ms, policy.budget_ids.len()), (2, Some(7), 0));
        assert_eq!((policy.stream.retention_maxlen, policy.stream.retention_ttl_ms), (9, Some(4)));
        assert_eq!(policy.suspension.default_timeout_ms, Some(8));
        assert!(policy.suspension.timeout_behavior.is_some());
    }

    #[test]
    fn permanent_failures_are_spared_unless_categories_were_chosen() {
        let spares = json!({ "retry": { "spare_permanent": true } });
        let open = request(spares.clone()).over(&Policy::default());
        assert_eq!(open.retry.non_retryable_categories, ["permanent"]);
        assert_eq!(request(spares).over(&namespace()).retry.non_retryable_categories, ["auth"]);
        let chosen = json!({ "retry": { "spare_permanent": true, "retryable_categories": ["network"] } });
        assert!(request(chosen).over(&Policy::default()).retry.non_retryable_categories.is_empty());
    }

    #[test]
    fn a_policy_says_what_differs_and_comes_back_whole() {
        let said = PolicyRequest::from(namespace());
        assert_eq!(said.over(&Policy::default()), namespace());
        assert_eq!(PolicyRequest::from(Policy::default()), PolicyRequest::default());
        let text = serde_json::to_value(&said).unwrap();
        assert!(text.get("fallback").is_none(), "{text}");
        assert_eq!(serde_json::from_value::<PolicyRequest>(text).unwrap(), said);
        assert!(serde_json::from_value::<PolicyRequest>(json!({ "retries": 1 })).is_err());
        assert!(serde_json::from_value::<PolicyRequest>(json!({ "retry": { "max": 1 } })).is_err());
        assert!(request(json!({ "retry": { "max_retries": 3 } })).says_nothing());
    }
}
