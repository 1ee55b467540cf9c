//! A worker: a registered process that claims tasks and keeps their leases.

mod claim;
mod config;
mod exchange;
mod heartbeat;
mod intake;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ff_core::op::parts::LeaseLoss;
use ff_core::op::{Delay, DeregisterWorker, delay, deregister_worker};
use ff_core::{ExecutionId, PartitionConfig};
use ff_engine::env::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

pub use config::WorkerConfig;
pub use intake::Tasks;

use crate::client::Client;
use crate::error::Result;
use crate::events::Events;
use crate::identity;
use crate::signal::Signaling;
use crate::task::Leases;
use config::Resolved;
use exchange::Exchanges;

/// A worker process. Clones are the same worker.
///
/// It is registered while it lives. In the background one call renews all of its leases. Programs that only want
/// functions called use [`WorkerRuntime`](crate::WorkerRuntime), which is built on this.
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// use flowfabric::{FlowFabricWorker, WorkerConfig};
/// let worker = FlowFabricWorker::connect(&client, WorkerConfig::new("adder")).await?;
/// while let Some(task) = worker.claim_next().await? {
///     let numbers: Vec<i64> = task.input_json()?;
///     task.complete(&numbers.iter().sum::<i64>()).await?;
/// }
/// worker.stop(std::time::Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FlowFabricWorker {
    shared: Arc<Shared>,
}

/// The parts that a worker shares with its tasks.
struct Shared {
    client: Client,
    leases: Leases,
    config: WorkerConfig,
    resolved: Resolved,
    /// Chosen anew by each process, so that a second one with the same instance id is noticed.
    nonce: String,
    permits: Arc<Semaphore>,
    exchanges: Exchanges,
    stopping: CancellationToken,
    heartbeat: OnceLock<AbortHandle>,
}

impl FlowFabricWorker {
    /// Registers a worker. Refused are settings that make no sense, bad capabilities, and an instance id that another
    /// live process has (`duplicate_worker_instance`).
    pub async fn connect(client: &Client, config: WorkerConfig) -> Result<Self> {
        Self::registering(client, config).await
    }

    /// Boxed, so that programs do not compile all of it again.
    fn registering(client: &Client, config: WorkerConfig) -> BoxFuture<'_, Result<Self>> {
        Box::pin(Self::register_with(client, config))
    }

    async fn register_with(client: &Client, config: WorkerConfig) -> Result<Self> {
        let resolved = config.resolve()?;
        let client = match &config.namespace {
            Some(namespace) => client.in_namespace(namespace),
            None => client.clone(),
        };
        let lease_ttl = config.lease_ttl;
        let shared = Arc::new(Shared {
            client,
            leases: Leases::default(),
            permits: Arc::new(Semaphore::new(config.max_concurrent_tasks)),
            exchanges: Exchanges::default(),
            config,
            resolved,
            nonce: identity::unique(),
            stopping: CancellationToken::new(),
            heartbeat: OnceLock::new(),
        });
        shared.register().await?;
        // The whole set of capabilities is logged this once; later lines carry its digest.
        tracing::info!(
            instance = shared.config.instance_id,
            capabilities = shared.resolved.capabilities.route(),
            digest = shared.resolved.digest,
            "the worker is registered"
        );
        let heartbeat = tokio::spawn(heartbeat::run(Arc::downgrade(&shared), lease_ttl));
        let _ = shared.heartbeat.set(heartbeat.abort_handle());
        Ok(Self { shared })
    }

    /// The configuration it was set up with.
    pub fn config(&self) -> &WorkerConfig {
        &self.shared.config
    }

    /// The client it works through, in the worker's namespace.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// How the deployment is partitioned.
    pub fn partition_config(&self) -> &PartitionConfig {
        self.shared.client.partition_config()
    }

    /// The events of the worker's namespace; see [`Client::events`].
    pub fn events(&self) -> Events {
        self.shared.client.events()
    }

    /// How many tasks it could take now.
    pub fn free_permits(&self) -> usize {
        self.shared.permits.available_permits()
    }

    /// A signal to an execution: `worker.deliver_signal(id, "approve").waitpoint(...).send().await?`.
    pub fn deliver_signal(&self, execution_id: ExecutionId, name: impl Into<String>) -> Signaling {
        Signaling::new(self.shared.client.clone(), execution_id, name.into())
    }

    /// Fires when the worker claims nothing more.
    pub fn stopping(&self) -> &CancellationToken {
        &self.shared.stopping
    }

    /// Claims nothing more, waits at most this long for the tasks in hand, hands back those that are left, and
    /// deregisters. A task that is handed back continues elsewhere in the same attempt; here it sees its token fire.
    pub async fn stop(&self, wait_max: Duration) -> Result<()> {
        self.stopping_within(wait_max).await
    }

    /// Boxed for the reason that `registering` gives.
    fn stopping_within(&self, wait_max: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.stop_within(wait_max))
    }

    async fn stop_within(&self, wait_max: Duration) -> Result<()> {
        self.shared.stopping.cancel();
        if tokio::time::timeout(wait_max, self.shared.leases.none_left()).await.is_err() {
            for lease in self.shared.leases.all() {
                lease.lose(LeaseLoss::Stale);
                let args = delay::Args {
                    execution_id: lease.execution_id,
                    fence: lease.fence,
                    until: None,
                    delay_ms: Some(0),
                    entries: Vec::new(),
                    first_number: None,
                };
                if let Err(error) = self.shared.client.call::<Delay>(args).await {
                    tracing::warn!(execution = %lease.execution_id, %error, "a task could not be handed back");
                }
            }
        }
        if let Some(heartbeat) = self.shared.heartbeat.get() {
            heartbeat.abort();
        }
        let args = deregister_worker::Args {
            instance_id: self.config().instance_id.clone(),
            namespace: None,
            nonce: Some(self.shared.nonce.clone()),
        };
        self.shared.client.call::<DeregisterWorker>(args).await?;
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(heartbeat) = self.heartbeat.get() {
            heartbeat.abort();
        }
    }
}

impl std::fmt::Debug for FlowFabricWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowFabricWorker").field("config", &self.shared.config).finish_non_exhaustive()
    }
}
