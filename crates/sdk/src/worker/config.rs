//! The configuration of a worker.

use std::collections::BTreeSet;
use std::time::Duration;

use ff_core::tool::ToolDefinition;
use ff_core::{CapabilitySet, limits};

use crate::error::{Result, SdkError};
use crate::identity;

/// The name of a worker, what it serves, and how much at once.
///
/// ```
/// let config = flowfabric::WorkerConfig::new("transcoder")
///     .lanes(["media"])
///     .capabilities(["gpu", "region:eu"])
///     .max_concurrent_tasks(8);
/// assert_eq!(config.lease_ttl.as_secs(), 30);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The worker's logical name; processes that do the same work share it.
    pub worker_id: String,
    /// The name of this very process. No two live processes may have the same.
    pub instance_id: String,
    /// Where it works; the client's namespace when absent.
    pub namespace: Option<String>,
    /// The lanes it serves.
    pub lanes: BTreeSet<String>,
    /// Its capabilities.
    pub capabilities: BTreeSet<String>,
    /// The kinds of work it serves; all when empty. It is never handed another.
    pub kinds: BTreeSet<String>,
    /// How long a lease lasts without a renewal. A crash is noticed after this time.
    pub lease_ttl: Duration,
    /// How many tasks it runs at once.
    pub max_concurrent_tasks: usize,
    /// How long a claim waits for work.
    pub claim_wait: Duration,
    /// The version of the worker's program, in its own words.
    pub version: Option<String>,
    /// Those of its kinds that agents may call.
    pub tools: Vec<ToolDefinition>,
}

impl WorkerConfig {
    /// A worker on the lane `default` that runs ten tasks at once, in a process with an instance id of its own.
    pub fn new(worker_id: impl Into<String>) -> Self {
        let worker_id = worker_id.into();
        // Names have at most 64 bytes, and a UUID takes 36 of them.
        let short: String = worker_id.chars().take_while(char::is_ascii).take(27).collect();
        let instance_id = format!("{short}-{}", identity::unique());
        Self {
            worker_id,
            instance_id,
            namespace: None,
            lanes: ["default".to_owned()].into(),
            capabilities: BTreeSet::new(),
            kinds: BTreeSet::new(),
            lease_ttl: Duration::from_millis(limits::LEASE_TTL_DEFAULT_MS.unsigned_abs()),
            max_concurrent_tasks: 10,
            claim_wait: Duration::from_secs(20),
            version: None,
            tools: Vec::new(),
        }
    }

    /// Names the very process. A name that survives restarts is refused while the old process seems to live.
    #[must_use]
    pub fn instance_id(mut self, instance_id: impl Into<String>) -> Self {
        self.instance_id = instance_id.into();
        self
    }

    /// Where it works.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The lanes it serves, instead of `default`.
    #[must_use]
    pub fn lanes<T: Into<String>>(mut self, lanes: impl IntoIterator<Item = T>) -> Self {
        self.lanes = lanes.into_iter().map(Into::into).collect();
        self
    }

    /// Its capabilities.
    #[must_use]
    pub fn capabilities<T: Into<String>>(mut self, capabilities: impl IntoIterator<Item = T>) -> Self {
        self.capabilities = capabilities.into_iter().map(Into::into).collect();
        self
    }

    /// The kinds of work it serves, instead of all. A [`WorkerRuntime`](crate::WorkerRuntime) serves those of its
    /// functions.
    #[must_use]
    pub fn kinds<T: Into<String>>(mut self, kinds: impl IntoIterator<Item = T>) -> Self {
        self.kinds = kinds.into_iter().map(Into::into).collect();
        self
    }

    /// Names the build of the program, such as a commit: executions whose policy pins them are run to their end by the build
    /// that started them. Workers say it as the capability `build:ID`.
    #[must_use]
    pub fn build_id(mut self, build_id: impl AsRef<str>) -> Self {
        self.capabilities.retain(|token| !token.starts_with("build:"));
        self.capabilities.insert(format!("build:{}", build_id.as_ref()));
        self
    }

    /// How long a lease lasts without a renewal.
    #[must_use]
    pub fn lease_ttl(mut self, lease_ttl: Duration) -> Self {
        self.lease_ttl = lease_ttl;
        self
    }

    /// How many tasks it runs at once.
    #[must_use]
    pub fn max_concurrent_tasks(mut self, max_concurrent_tasks: usize) -> Self {
        self.max_concurrent_tasks = max_concurrent_tasks;
        self
    }

    /// How long a claim waits for work.
    #[must_use]
    pub fn claim_wait(mut self, claim_wait: Duration) -> Self {
        self.claim_wait = claim_wait;
        self
    }

    /// The version of the worker's program, in its own words.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Lets agents call a kind of work; [`tool`](crate::tool) describes a [`Task`](crate::Task). A second description of the
    /// same kind replaces the first.
    #[must_use]
    pub fn tool(mut self, tool: ToolDefinition) -> Self {
        self.tools.retain(|other| other.kind != tool.kind);
        self.tools.push(tool);
        self
    }

    /// Validates the settings and converts them into the types of calls.
    pub(super) fn resolve(&self) -> Result<Resolved> {
        let wrong = |field, message: String| SdkError::config("worker", field, message);
        let capacity = u32::try_from(self.max_concurrent_tasks).unwrap_or(u32::MAX);
        if capacity == 0 || capacity > limits::WORKER_CAPACITY_MAX {
            let message = format!("must be 1 to {}, not {capacity}", limits::WORKER_CAPACITY_MAX);
            return Err(wrong("max_concurrent_tasks", message));
        }
        if self.lanes.is_empty() {
            return Err(wrong("lanes", "must name at least one lane".into()));
        }
        if self.kinds.len() > limits::KINDS_MAX {
            return Err(wrong("kinds", format!("must be at most {}, not {}", limits::KINDS_MAX, self.kinds.len())));
        }
        let lease_ttl_ms = i64::try_from(self.lease_ttl.as_millis()).unwrap_or(i64::MAX);
        if !(limits::LEASE_TTL_MIN_MS..=limits::LEASE_TTL_MAX_MS).contains(&lease_ttl_ms) {
            let (min, max) = (limits::LEASE_TTL_MIN_MS, limits::LEASE_TTL_MAX_MS);
            return Err(wrong("lease_ttl", format!("must be {min} to {max} ms, not {lease_ttl_ms}")));
        }
        let claim_wait_ms = i64::try_from(self.claim_wait.as_millis()).unwrap_or(i64::MAX);
        if claim_wait_ms > limits::CLAIM_WAIT_MAX_MS {
            return Err(wrong("claim_wait", format!("must be at most {} ms", limits::CLAIM_WAIT_MAX_MS)));
        }
        let capabilities = CapabilitySet::new(self.capabilities.iter().cloned())
            .map_err(|error| wrong("capabilities", error.detail))?;
        let digest = capabilities.digest();
        Ok(Resolved { capacity, capabilities, digest, lease_ttl_ms, claim_wait_ms })
    }
}

/// A configuration in the types of calls.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) capacity: u32,
    pub(super) capabilities: CapabilitySet,
    /// A digest that stands for the capabilities in log lines.
    pub(super) digest: String,
    pub(super) lease_ttl_ms: i64,
    pub(super) claim_wait_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(config: WorkerConfig) -> &'static str {
        match config.resolve() {
            Err(SdkError::Config { context: "worker", field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_name() {
        let config = || WorkerConfig::new("w");
        assert!(config().resolve().is_ok());
        assert_eq!(field(config().max_concurrent_tasks(0)), "max_concurrent_tasks");
        assert_eq!(field(config().lanes::<String>([])), "lanes");
        assert_eq!(field(config().kinds((0..257).map(|number| number.to_string()))), "kinds");
        assert_eq!(field(config().lease_ttl(Duration::from_millis(999))), "lease_ttl");
        assert_eq!(field(config().claim_wait(Duration::from_secs(31))), "claim_wait");
        assert_eq!(field(config().capabilities(["gpu,cpu"])), "capabilities");
    }

    #[test]
    fn two_processes_have_two_instance_ids_that_fit() {
        let (one, other) = (WorkerConfig::new("w".repeat(64)), WorkerConfig::new("w".repeat(64)));
        assert_ne!(one.instance_id, other.instance_id);
        assert!(one.instance_id.len() <= limits::NAME_MAX_BYTES);
    }
}
