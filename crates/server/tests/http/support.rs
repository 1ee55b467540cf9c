//! A server in this process and a client that speaks plain HTTP to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ff_server::metrics::Observer;
use ff_server::{Config, Server, Settings};
use ff_store::Store;
use ff_store::memory::MemoryStore;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here may take.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The administrator's token where tokens are on.
pub(crate) const ADMIN: &str = "canary-administrator-token";

/// Waits, but not forever.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it takes too long")
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) observer: Observer,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

/// Settings for a free port.
pub(crate) fn settings() -> Settings {
    Settings {
        store: Some("memory://".into()),
        listen: Some("127.0.0.1:0".into()),
        waitpoint_secret: Some(crate::canary::WAITPOINT_SECRET.into()),
        ..Settings::default()
    }
}

/// Settings with tokens switched on.
pub(crate) fn with_tokens() -> Settings {
    Settings { api_token: Some(ADMIN.into()), ..settings() }
}

impl Running {
    /// Starts a server in memory.
    pub(crate) async fn start(settings: Settings) -> Self {
        Self::start_on(settings, Arc::new(MemoryStore::new())).await
    }

    /// Starts a server on a store.
    pub(crate) async fn start_on(settings: Settings, store: Arc<dyn Store>) -> Self {
        let config = Config::resolve(settings, Settings::default()).unwrap();
        Self::run(within(Server::start_on(config, store)).await.unwrap())
    }

    /// Starts a server in memory whose clock the test moves.
    pub(crate) async fn start_on_test_clock(settings: Settings) -> Self {
        let config = Config::resolve(settings, Settings::default()).unwrap();
        Self::run(within(Server::start_on_test_clock(config)).await.unwrap())
    }

    fn run(server: Server) -> Self {
        crate::canary::watch();
        let (address, observer) = (server.address(), server.observer());
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { address, observer, stop, ended }
    }

    /// Stops it and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        within(self.ended).await.unwrap();
        crate::canary::check();
    }

    /// A client.
    pub(crate) fn client(&self) -> Client {
        Client { address: self.address, headers: Vec::new() }
    }

    /// A client with a token.
    pub(crate) fn client_with(&self, token: &str) -> Client {
        self.client().with("authorization", &format!("Bearer {token}"))
    }
}

/// Sends requests, each on a connection of its own.
#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    /// The error code of a refusal.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or("").to_owned()
    }

    /// The answer, which must be a success.
    pub(crate) fn ok(self) -> Value {
        assert!(matches!(self.status, 200 | 201), "{} {:?}", self.status, self.body);
        self.json()
    }
}

impl Client {
    /// The client with one more header.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.push((name.to_owned(), value.to_owned()));
        Self { address: self.address, headers }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.with("content-type", "application/json").send(Method::POST, path, body.to_string()).await
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
        within(async {
            let response = self.open(method, path, body).await;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer { status: parts.status.as_u16(), headers: parts.headers, body }
        })
        .await
    }

    /// Sends a request and reads the head of the answer.
    pub(crate) async fn open(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", self.address.to_string());
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    }
}
