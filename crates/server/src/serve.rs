//! Listens, serves connections within their limits, and stops without losing anything.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ff_core::{Error, Result};
use ff_engine::env::{BoxFuture, TokioEnv};
use ff_engine::{Engine, TestClock};
use ff_store::Store;
use ff_store::memory::MemoryStore;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::config::Config;
use crate::http;
use crate::metrics::Observer;
use crate::write_timeout::WriteTimeout;

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    stopping: watch::Sender<bool>,
    store: Arc<dyn Store>,
}

impl Server {
    /// Opens the store the configuration names, starts the engine and begins to listen.
    pub async fn start(config: Config) -> Result<Self> {
        let store = ff_stores::open(&config.store).await?;
        Self::start_on(config, store).await
    }

    /// Starts in memory, under a clock that shows the present time and stands still until a test moves it.
    pub async fn start_on_test_clock(mut config: Config) -> Result<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = TestClock::starting_at(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX));
        config.engine.test_clock = Some(clock.clone());
        Self::start_on(config, Arc::new(MemoryStore::with_clock(clock.source()))).await
    }

    /// Starts on a store that is open.
    pub async fn start_on(config: Config, store: Arc<dyn Store>) -> Result<Self> {
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| Error::invalid("listen", format!("{} cannot be listened on: {error}", config.listen)))?;
        let address = listener.local_addr().map_err(|error| Error::invalid("listen", error))?;
        let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), config.engine.clone()).await?;
        let (stopping, stopped) = watch::channel(false);
        let app = App::new(engine, config, stopped);
        Ok(Self { listener, address, app, stopping, store })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.app.engine
    }

    /// Its counters, for a registry of the program around it.
    pub fn observer(&self) -> Observer {
        Observer(self.app.clone())
    }

    /// Serves until `stop` ends, then finishes what is under way.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.announce();
        let Self { listener, app, stopping, store, .. } = self;
        let places = Arc::new(Semaphore::new(app.config.connections_max));
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = async {
                let place = places.clone().acquire_owned().await;
                (listener.accept().await, place)
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_ended) = connections.join_next() => {}
                (accepted, place) = accepted => match accepted {
                    Ok((stream, peer)) => {
                        let serving = connection(app.clone(), stream, peer.ip());
                        connections.spawn(async move {
                            let _place = place;
                            serving.await;
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, as a rule: connections that end will free some.
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                },
            }
        }
        drop(listener);
        tracing::info!(connections = connections.len(), "stopping");
        // The order matters: first every waiting call is answered, then connections end after their present answer, and
        // when nothing more is acknowledged the other servers learn that they take over.
        app.engine.stop_waits();
        stopping.send_replace(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(app.config.drain, drained).await.is_err() {
            tracing::warn!(connections = connections.len(), "cut off after the drain time");
            connections.shutdown().await;
        }
        app.engine.close().await;
        if let Some(tracer) = &app.tracer {
            tracer.finish().await;
        }
        store.close().await;
        tracing::info!("stopped");
    }

    fn announce(&self) {
        let config = &self.app.config;
        let info = self.app.engine.store().info();
        let partitions = self.app.engine.partitions();
        let lanes = config.engine.lanes.as_ref().map_or_else(|| "open".to_owned(), |lanes| lanes.join(","));
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            store = ff_stores::redacted(&config.store),
            store_version = info.version,
            durability = info.durability,
            partitions = format!("{}/{}/{}", partitions.flow, partitions.budget, partitions.quota),
            lanes,
            address = %self.address,
            "FlowFabric is ready"
        );
        if config.open() {
            tracing::warn!(
                "no API token is configured: every program on this machine may do everything, also administer; \
                 set FF_API_TOKEN to ask for a token"
            );
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Serves one connection until it ends, or until the server stops and the present answer is given. Boxed, because
/// [`Server::run`] is compiled by its callers, and this should not be.
fn connection(app: Arc<App>, stream: TcpStream, peer: IpAddr) -> BoxFuture<'static, ()> {
    Box::pin(serve(app, stream, peer))
}

async fn serve(app: Arc<App>, stream: TcpStream, peer: IpAddr) {
    // Answers are small and written at once; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(WriteTimeout::new(stream, app.config.write_timeout));
    let for_requests = app.clone();
    let service = service_fn(move |request| {
        let app = for_requests.clone();
        async move { Ok::<_, Infallible>(http::respond(app, peer, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.config.header_timeout).max_buf_size(64 * 1024);
    let mut serving = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = app.stopped() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
