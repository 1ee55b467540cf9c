//! From an address to a client.

use std::path::PathBuf;
use std::sync::Arc;

use ff_core::Error;
use ff_engine::env::{BoxFuture, TokioEnv};
use ff_engine::{Engine, Options};

use crate::client::Client;
use crate::error::{Result, SdkError};
use crate::retry::RetryPolicy;
use crate::transport::{Connection, Http, InProcess, exposes_token};

impl Client {
    /// Connects to what an address names: `sqlite://./flowfabric.db`, `valkey://host`, `postgres://host/database` or
    /// `memory://` for an engine in this process, `http://host:7171` or `https://...` for a server.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// A builder for a client with a token, a namespace, or other settings.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    /// A client of an engine that the program has started itself, and closes itself.
    pub async fn connect_with(engine: Engine) -> Result<Self> {
        Self::over(Connection::InProcess(InProcess::new(engine, false)), None, RetryPolicy::default()).await
    }
}

/// How a client connects; see [`Client::builder`].
///
/// ```
/// # async fn example() -> flowfabric::Result<()> {
/// let client = flowfabric::Client::builder("memory://").namespace("team-a").connect().await?;
/// # client.close().await; Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClientBuilder {
    url: String,
    token: Option<String>,
    ca_file: Option<PathBuf>,
    namespace: Option<String>,
    retry: RetryPolicy,
    engine: Options,
}

impl ClientBuilder {
    pub(crate) fn new(url: &str) -> Self {
        let engine = Options { address: format!("embedded:{}", std::process::id()), ..Options::default() };
        let (token, ca_file, namespace) = (None, None, None);
        Self { url: url.to_owned(), token, ca_file, namespace, retry: RetryPolicy::default(), engine }
    }

    /// The API token for a server. Without it, `FF_TOKEN` is used where it is set.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A PEM file with the authorities to trust for an `https://` server instead of the system's. Without it,
    /// `FF_CA_FILE` is used where it is set.
    #[must_use]
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// The namespace of every call that names none itself.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How long calls are repeated.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Whether an engine in this process also runs the timers, the resolver and the reconcilers (it does unless
    /// switched off). Without them, another engine on the same store must.
    #[must_use]
    pub fn services(mut self, services: bool) -> Self {
        self.engine.services = services;
        self
    }

    /// How an engine in this process is set up.
    #[must_use]
    pub fn engine_options(mut self, options: Options) -> Self {
        self.engine = options;
        self
    }

    /// Whether the token would be sent to another machine over plain HTTP, where others may read it. Connecting then logs a
    /// warning.
    pub fn exposes_token(&self) -> bool {
        self.token.is_some() && exposes_token(&self.url)
    }

    /// Connects. An engine in this process opens its store and starts; a server is asked what it is.
    pub async fn connect(self) -> Result<Client> {
        self.connecting().await
    }

    /// Boxed, so that programs do not compile all of it again.
    fn connecting(self) -> BoxFuture<'static, Result<Client>> {
        Box::pin(self.connect_to())
    }

    async fn connect_to(self) -> Result<Client> {
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        let connection = match scheme {
            Some("http" | "https") => {
                let token = self.token.or_else(|| std::env::var("FF_TOKEN").ok().filter(|token| !token.is_empty()));
                let set = || std::env::var_os("FF_CA_FILE").filter(|file| !file.is_empty()).map(PathBuf::from);
                let ca_file = self.ca_file.or_else(set);
                Connection::Http(Http::new(&self.url, token.as_deref(), ca_file.as_deref())?)
            }
            _ => {
                if self.token.is_some() {
                    return Err(SdkError::config("connect", "token", "is for servers; a store has its own password"));
                }
                let store = ff_stores::open(&self.url).await.map_err(Error::from)?;
                let engine = Engine::start(store, Arc::new(TokioEnv::current()), self.engine).await?;
                Connection::InProcess(InProcess::new(engine, true))
            }
        };
        Client::over(connection, self.namespace, self.retry).await
    }
}

/// Without the token, and without what the address may hold.
impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = ff_stores::redacted(&self.url);
        f.debug_struct("ClientBuilder").field("url", &url).field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
