//! How an engine is set up.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::policy::Policy;
use ff_core::{PartitionConfig, Result, limits};

use crate::courier::Courier;
use crate::limits::Limits;
use crate::test_clock::TestClock;

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Partition counts; `None` adopts what is stored, or the store's default at the first start.
    pub partitions: Option<PartitionConfig>,
    /// Only these lanes exist; `None`: using a lane creates it.
    pub lanes: Option<Vec<String>>,
    /// How long terminal executions are kept when their policy says nothing.
    pub retention_ms: i64,
    /// How long idempotency and dedup keys are remembered.
    pub dedup_window_ms: i64,
    /// One full look at every partition takes this long.
    pub sweep_ms: i64,
    /// One full check of every document takes this long; 0 switches it off.
    pub reconcile_ms: i64,
    /// The first waitpoint secret in hex; generated when absent.
    pub waitpoint_secret: Option<String>,
    /// How long a rotated waitpoint secret still verifies.
    pub secret_grace_ms: i64,
    /// Run timers, resolver, sweeps and reconcilers here. Without them another engine must.
    pub services: bool,
    /// The policy of executions that bring none, by namespace.
    pub policies: BTreeMap<String, Policy>,
    /// The limits of one call.
    pub limits: Limits,
    /// The address of this process in the registry of servers.
    pub address: String,
    /// The clock that the store is on, where only a test moves it.
    pub test_clock: Option<Arc<TestClock>>,
    /// The sender of webhooks; without it they wait for an engine that has one.
    pub courier: Option<Arc<dyn Courier>>,
    /// Entries that one read or commit of the engine's own work takes at the most, where its own limit is higher. Tests
    /// draw it tight, so that a small graph is larger than every chunk.
    pub chunk_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: None,
            lanes: None,
            retention_ms: limits::RETENTION_DEFAULT_MS,
            dedup_window_ms: limits::DEDUP_WINDOW_MS,
            sweep_ms: 120_000,
            reconcile_ms: 300_000,
            waitpoint_secret: None,
            secret_grace_ms: limits::SECRET_GRACE_DEFAULT_MS,
            services: true,
            policies: BTreeMap::new(),
            limits: Limits::default(),
            address: String::new(),
            test_clock: None,
            courier: None,
            chunk_max: usize::MAX,
        }
    }
}

impl Options {
    /// Refuses what no engine can be set up with.
    pub(crate) fn validate(&self) -> Result<()> {
        if let Some(partitions) = &self.partitions {
            partitions.validate()?;
        }
        self.limits.validate()?;
        for (namespace, policy) in &self.policies {
            ff_core::text::name("namespace", namespace)?;
            policy.validate().map_err(|error| error.with("namespace", namespace))?;
        }
        Ok(())
    }
}
