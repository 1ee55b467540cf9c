//! Listens, serves connections within their limits, and stops without losing anything.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ff_core::{Error, Result};
use ff_engine::env::{BoxFuture, TokioEnv};
use ff_engine::{Engine, TestClock};
use ff_store::Store;
use ff_store::memory::MemoryStore;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::answer;
use crate::app::App;
use crate::certificate::H2;
use crate::config::Config;
use crate::explained::{Answering, Explained};
use crate::http;
use crate::http2;
use crate::metrics::Observer;
use crate::shares::{Place, network};
use crate::write_timeout::WriteTimeout;

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
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
    pub fn start_on(config: Config, store: Arc<dyn Store>) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::listen(config, store))
    }

    async fn listen(config: Config, store: Arc<dyn Store>) -> Result<Self> {
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|error| Error::invalid("listen", format!("{} cannot be listened on: {error}", config.listen)))?;
        let address = listener.local_addr().map_err(|error| Error::invalid("listen", error))?;
        let acceptor = config.certificate.as_ref().map(|certificate| certificate.acceptor()).transpose();
        let tls = acceptor.map_err(|error| Error::invalid("tls_cert_file", error))?;
        let engine = Engine::start(store.clone(), Arc::new(TokioEnv::current()), config.engine.clone()).await?;
        let (stopping, stopped) = watch::channel(false);
        let app = App::new(engine, config, stopped);
        Ok(Self { listener, address, tls, app, stopping, store })
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

    /// Serves until `stop` ends, then finishes the requests that are under way.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        self.serve(std::pin::pin!(stop)).await;
    }

    /// Boxed, because [`Server::run`] is compiled by its callers, and this should not be.
    fn serve<'s>(self, stop: Pin<&'s mut (dyn Future<Output = ()> + Send)>) -> BoxFuture<'s, ()> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, mut stop: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        self.announce();
        let Self { listener, tls, app, stopping, store, .. } = self;
        let places = Arc::new(Semaphore::new(app.config.connections_max));
        let mut connections = JoinSet::new();
        let mut renewals = follow_certificate(app.clone());
        loop {
            let accepted = async {
                let place = places.clone().acquire_owned().await;
                (listener.accept().await, place)
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_ended) = connections.join_next() => {}
                () = &mut renewals => {}
                (accepted, place) = accepted => match accepted {
                    Ok((stream, peer)) => {
                        let Some(share) = share(&app, peer.ip()) else { continue };
                        let serving = connection(app.clone(), tls.clone(), stream, peer.ip());
                        connections.spawn(async move {
                            let _place = (place, share);
                            serving.await;
                        });
                    }
                    Err(error) => {
                        // The usual reason is a lack of file descriptors; connections that end will free some.
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
            tls = self.tls.is_some(),
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

/// A place for a connection from this address. Without configured tokens all callers are on this machine, and the
/// places are not divided between addresses.
fn share(app: &App, peer: IpAddr) -> Option<Option<Place<IpAddr>>> {
    if app.config.open() {
        return Some(None);
    }
    let share = app.connections.enter(network(peer)).ok().map(Some);
    // A flood of connections must not become a flood of log lines.
    if share.is_none() && app.counters.refused_connection().is_power_of_two() {
        let refused = app.counters.refused_connections();
        tracing::warn!(%peer, refused, "an address has as many connections as one may have: further ones are closed");
    }
    share
}

/// Watches the certificate's files and uses a changed certificate for new connections. Never ends.
fn follow_certificate(app: Arc<App>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        match &app.config.certificate {
            Some(certificate) => certificate.follow().await,
            None => std::future::pending().await,
        }
    })
}

/// Serves one connection until it ends, or until the server stops and the present answer is given.
fn connection(app: Arc<App>, tls: Option<TlsAcceptor>, stream: TcpStream, peer: IpAddr) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        // Answers are small and written at once; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        let ended = match tls {
            Some(tls) => encrypted(app, tls, stream, peer).await,
            None => {
                let io = WriteTimeout::new(stream, app.config.write_timeout);
                http1(app, io, peer).await.map_err(std::io::Error::other)
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    })
}

/// Serves a connection over TLS, with the protocol that its client and the server agree on.
async fn encrypted(app: Arc<App>, tls: TlsAcceptor, stream: TcpStream, peer: IpAddr) -> std::io::Result<()> {
    let limit = app.config.header_timeout;
    let shake_hands = async {
        let mut first = [0];
        if stream.peek(&mut first).await? > 0 && first[0] != TLS_HANDSHAKE {
            return refuse_plain(&app, stream).await.map(|()| None);
        }
        tls.accept(WriteTimeout::new(stream, app.config.write_timeout)).await.map(Some)
    };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(limit, shake_hands) => shaken,
        () = app.stopped() => return Ok(()),
    };
    let Some(stream) = shaken?? else { return Ok(()) };
    let ended = match stream.get_ref().1.alpn_protocol() {
        Some(H2) => http2::serve(app, stream, peer).await,
        _ => http1(app, stream, peer).await,
    };
    ended.map_err(std::io::Error::other)
}

/// The first byte that a client with TLS sends.
const TLS_HANDSHAKE: u8 = 22;

/// Tells a client without TLS to use it, because a connection that merely breaks would not say why.
async fn refuse_plain(app: &App, stream: TcpStream) -> std::io::Result<()> {
    let refuse = service_fn(|_request: Request<Incoming>| async {
        let refusal = Error::invalid("scheme", "must be https: this server speaks TLS");
        Ok::<_, Infallible>(answer::problem(&refusal, None))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.config.header_timeout).keep_alive(false);
    builder.serve_connection(TokioIo::new(stream), refuse).await.map_err(std::io::Error::other)
}

async fn http1<I>(app: Arc<App>, io: I, peer: IpAddr) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let for_requests = app.clone();
    let answering = Answering::default();
    let io = Explained::new(io, answering.clone());
    let service = service_fn(move |request| {
        let (app, answer) = (for_requests.clone(), answering.begin());
        async move { Ok::<_, Infallible>(http::respond(app, peer, request).await.map(|body| answer.with(body))) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.config.header_timeout).max_buf_size(64 * 1024);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    tokio::select! {
        ended = serving.as_mut() => ended,
        () = app.stopped() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}
