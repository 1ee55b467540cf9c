//! The subject of a measurement: a client of an engine in this process, directly or through an HTTP server of our own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use ff_core::PartitionConfig;
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_server::{Config, Server, Settings};
use ff_store_valkey::CommandCost;
use flowfabric::Client;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::figures::Figures;
use crate::machine::processor_time;
use crate::open::Opened;

/// The way from the client to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// A call in the same process
    Process,
    /// A request to a server on this machine
    Http,
}

impl Via {
    /// As on the command line and in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Via::Process => "process",
            Via::Http => "http",
        }
    }
}

/// A client in a namespace of its own, the engine it reaches, and what must live as long as they do.
pub(crate) struct Subject {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) engine: Engine,
    pub(crate) opened: Opened,
    /// Where the server listens, if there is one.
    pub(crate) address: Option<SocketAddr>,
    allocations: Option<fn() -> Allocations>,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Subject {
    pub(crate) async fn start(
        opened: Opened,
        partitions: Option<PartitionConfig>,
        via: Via,
        namespace: &str,
        allocations: Option<fn() -> Allocations>,
    ) -> Result<Self> {
        let namespace = namespace.to_owned();
        match via {
            Via::Process => {
                let options = Options { partitions, ..Options::default() };
                let engine = Engine::start(opened.store.clone(), Arc::new(TokioEnv::current()), options).await?;
                let client = Client::connect_with(engine.clone()).await?.in_namespace(&namespace);
                Ok(Self { client, namespace, engine, opened, address: None, allocations, server: None })
            }
            Via::Http => {
                let settings = Settings {
                    store: Some("memory://".into()),
                    listen: Some("127.0.0.1:0".into()),
                    flow_partitions: partitions.map(|partitions| partitions.flow),
                    budget_partitions: partitions.map(|partitions| partitions.budget),
                    quota_partitions: partitions.map(|partitions| partitions.quota),
                    ..Settings::default()
                };
                let config = Config::resolve(settings, Settings::default())?;
                // The store that was opened counts; the address in the configuration is not looked at.
                let server = Server::start_on(config, opened.store.clone()).await?;
                let (engine, address) = (server.engine().clone(), server.address());
                let (stop, stopped) = oneshot::channel::<()>();
                let ended = tokio::spawn(server.run(async {
                    // A sender that is gone says the same.
                    let _ = stopped.await;
                }));
                // A client asks for the deployment at once, so the server has to answer by now.
                let client = Client::connect(&format!("http://{address}")).await?.in_namespace(&namespace);
                let server = Some((stop, ended));
                Ok(Self { client, namespace, engine, opened, address: Some(address), allocations, server })
            }
        }
    }

    /// The spending up to now.
    pub(crate) async fn spent(&self) -> Result<Spent> {
        let metrics = self.engine.metrics();
        Ok(Spent {
            reads: metrics.reads.load(Ordering::Relaxed),
            commits: metrics.commits.snapshot().0.iter().sum(),
            function: self.opened.server_cost().await?,
            processor: processor_time(),
            allocations: self.allocations.map(|read| read()),
        })
    }

    /// Ends the server, if there is one, and the engine.
    pub(crate) async fn close(self) -> Result<()> {
        match self.server {
            Some((stop, ended)) => {
                drop(stop);
                ended.await?;
            }
            None => self.engine.close().await,
        }
        Ok(())
    }
}

/// The engine's calls to its store, and what they and the engine cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spent {
    reads: u64,
    commits: u64,
    /// Calls of Valkey's commit function.
    function: Option<CommandCost>,
    /// Of this process: client, engine and, for SQLite, the store.
    processor: Option<Duration>,
    /// Of this process, where they are counted.
    allocations: Option<Allocations>,
}

/// The allocations of a program so far.
#[derive(Debug, Clone, Copy)]
pub struct Allocations {
    /// How often, moves to a larger place included.
    pub count: u64,
    /// How many bytes were asked for.
    pub bytes: u64,
}

impl Spent {
    /// Reads and commits since an earlier moment.
    pub(crate) fn since(self, earlier: Spent) -> (u64, u64) {
        (self.reads - earlier.reads, self.commits - earlier.commits)
    }

    /// Adds what another engine asked of the same store from this process.
    pub(crate) fn also(&mut self, another: Spent) {
        self.reads += another.reads;
        self.commits += another.commits;
    }

    /// Adds what each of so many tasks cost since an earlier moment. A read and a commit are a round trip each, though
    /// those that happen at once may share one.
    pub(crate) fn each(self, since: Spent, tasks: usize, figures: Figures) -> Figures {
        let tasks = tasks.max(1) as f64;
        let each = |count: u64| count as f64 / tasks;
        let function = self.function.map(|function| {
            let before = since.function.unwrap_or_default();
            (each(function.calls - before.calls), each(function.microseconds - before.microseconds))
        });
        let processor = self.processor.zip(since.processor);
        let allocations = self.allocations.zip(since.allocations);
        figures
            .measured("reads_per_task", each(self.reads - since.reads))
            .measured("commits_per_task", each(self.commits - since.commits))
            .known("function_calls_per_task", function.map(|(calls, _)| calls))
            .known("server_us_per_task", function.map(|(_, us)| us))
            .known("own_us_per_task", processor.map(|(now, then)| now.saturating_sub(then).as_secs_f64() * 1e6 / tasks))
            .known("allocations_per_task", allocations.map(|(now, then)| each(now.count - then.count)))
            .known("allocated_bytes_per_task", allocations.map(|(now, then)| each(now.bytes - then.bytes)))
    }
}
