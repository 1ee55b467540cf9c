//! What is measured: a client of an engine in this process, directly or through an HTTP server of our own.

use std::sync::Arc;

use clap::ValueEnum;
use ff_core::PartitionConfig;
use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_server::{Config, Server, Settings};
use flowfabric::Client;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Result;
use crate::open::Opened;

/// The way from the client to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// A call in the same process
    Process,
    /// A request to a server on this machine
    Http,
}

impl Via {
    /// As on the command line and in results.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Via::Process => "process",
            Via::Http => "http",
        }
    }
}

/// A client, the engine it reaches, and what must live as long as they do.
pub(crate) struct Subject {
    pub(crate) client: Client,
    pub(crate) engine: Engine,
    pub(crate) opened: Opened,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Subject {
    pub(crate) async fn start(opened: Opened, partitions: Option<PartitionConfig>, via: Via) -> Result<Self> {
        match via {
            Via::Process => {
                let options = Options { partitions, ..Options::default() };
                let engine = Engine::start(opened.store.clone(), Arc::new(TokioEnv::current()), options).await?;
                let client = Client::connect_with(engine.clone()).await?;
                Ok(Self { client, engine, opened, server: None })
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
                let engine = server.engine().clone();
                let client = Client::connect(&format!("http://{}", server.address())).await?;
                let (stop, stopped) = oneshot::channel::<()>();
                let ended = tokio::spawn(server.run(async {
                    // A sender that is gone says the same.
                    let _ = stopped.await;
                }));
                Ok(Self { client, engine, opened, server: Some((stop, ended)) })
            }
        }
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
