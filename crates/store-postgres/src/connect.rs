//! Connections: how they are set up, the two pools, and what the server says of itself.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use ff_store::{Result, StoreError};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error;
use crate::options::{Encryption, Options};
use crate::tls;

/// PostgreSQL 13 brought 64-bit transaction ids.
const SERVER_VERSION_MIN: i32 = 130_000;
/// When nothing was said for so long, either end asks whether the other is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How soon it asks again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How often it asks.
const KEEPALIVE_RETRIES: u32 = 3;
/// A connection on which nothing arrives for so long is lost, whatever the system would still try.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A connection with its socket still in hand, for a caller that wants its notifications.
pub(crate) type RawConnection =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

/// Opens connections of one kind.
#[derive(Clone)]
pub(crate) struct Connector {
    config: tokio_postgres::Config,
    tls: MakeRustlsConnect,
    /// The whole of connecting, with all hosts and greetings; the configuration's own limit is for one address.
    limit: Duration,
}

impl Connector {
    /// `settings` are server settings for every connection.
    pub(crate) fn new(options: &Options, settings: &[(&str, &str)]) -> Result<Self> {
        let mut config = options.server.clone();
        let mut flags = format!("-c search_path={}", options.schema);
        for (name, value) in settings {
            flags.push_str(&format!(" -c {name}={value}"));
        }
        config.options(flags);
        config.application_name("flowfabric");
        config.connect_timeout(options.connect_timeout);
        // Of several hosts, the one that takes writes now: the others are its standbys.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.keepalives_idle(KEEPALIVE_IDLE);
        config.keepalives_interval(KEEPALIVE_INTERVAL);
        config.keepalives_retries(KEEPALIVE_RETRIES);
        config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
        config.ssl_mode(match options.encryption {
            Encryption::Disable => SslMode::Disable,
            Encryption::Prefer => SslMode::Prefer,
            Encryption::Require | Encryption::VerifyFull => SslMode::Require,
        });
        let hosts = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX);
        let limit = options.connect_timeout.saturating_mul(hosts).saturating_add(options.answer_timeout());
        Ok(Self { config, tls: tls::connector(options)?, limit })
    }

    /// A connection outside of any pool.
    pub(crate) async fn connect(&self) -> Result<(Client, RawConnection)> {
        let connect = async { self.config.connect(self.tls.clone()).await.map_err(|error| error::connecting(&error)) };
        within(self.limit, connect).await
    }
}

/// The settings of every connection that works for the store. Our statements are few and all of them want the plan
/// that goes through an index row by row; a plan made while a table was small must not read all of it later.
fn settings(options: &Options) -> Vec<(&'static str, String)> {
    let off = ["jit", "enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"];
    let mut settings: Vec<_> = off.into_iter().map(|name| (name, "off".to_owned())).collect();
    settings.push(("plan_cache_mode", "force_generic_plan".into()));
    settings.push(("statement_timeout", options.request_timeout.as_millis().to_string()));
    settings.push(("idle_in_transaction_session_timeout", options.request_timeout.as_millis().to_string()));
    // A server that has lost us lets go of our locks, and of our place among those that listen.
    settings.push(("tcp_keepalives_idle", KEEPALIVE_IDLE.as_secs().to_string()));
    settings.push(("tcp_keepalives_interval", KEEPALIVE_INTERVAL.as_secs().to_string()));
    settings.push(("tcp_keepalives_count", KEEPALIVE_RETRIES.to_string()));
    settings.push(("default_transaction_isolation", "read\\ committed".into()));
    settings
}

/// The connector of everything but migrations.
pub(crate) fn connector(options: &Options) -> Result<Connector> {
    let settings = settings(options);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Connector::new(options, &settings)
}

/// A pool of at most `size` connections, opened as they are needed.
pub(crate) fn pool(options: &Options, connector: &Connector, size: usize) -> Result<Pool> {
    let manager = Manager::from_config(
        connector.config.clone(),
        connector.tls.clone(),
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(options.request_timeout))
        // Every host must have its turn: the first may be gone without a word.
        .create_timeout(Some(connector.limit))
        .recycle_timeout(Some(options.connect_timeout))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::Config(error.to_string()))
}

/// A connection of the pool.
pub(crate) async fn take(pool: &Pool) -> Result<Object> {
    pool.get().await.map_err(error::pool)
}

/// Gives a connection back to its pool, unless what was done on it failed: its answer may still be under way.
pub(crate) fn give_back<T>(client: Object, done: Result<T>) -> Result<T> {
    if done.is_err() {
        drop(Object::take(client));
    }
    done
}

/// Waits for an answer no longer than `limit`: a connection may be dead without a word.
pub(crate) async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(StoreError::Unavailable("no answer in time".into()));
    tokio::time::timeout(limit, answer).await.unwrap_or_else(late)
}

/// The server at the other end, as it describes itself.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) durability: String,
}

/// Looks at the server, and refuses one that cannot serve.
pub(crate) async fn inspect(client: &Client) -> Result<Server> {
    let row = client
        .query_one(
            "SELECT current_setting('server_version_num')::integer, current_setting('server_version'), \
             current_setting('fsync'), current_setting('synchronous_commit'), \
             current_setting('transaction_read_only') = 'on'",
            &[],
        )
        .await
        .map_err(|error| error::reading(&error))?;
    let (number, version): (i32, String) = (row.get(0), row.get(1));
    if number < SERVER_VERSION_MIN {
        return Err(StoreError::TooOld { found: version, required: "13".into() });
    }
    if row.get(4) {
        return Err(error::takes_only_reads());
    }
    let (fsync, synchronous): (String, String) = (row.get(2), row.get(3));
    let durability = match (fsync.as_str(), synchronous.as_str()) {
        ("on", "off") => {
            "kill -9 of our process; a crash of the server may take the last moments (synchronous_commit = off)".into()
        }
        ("on", synchronous) => format!("power loss (fsync = on, synchronous_commit = {synchronous})"),
        _ => "kill -9; power loss may damage the database (fsync = off)".into(),
    };
    Ok(Server { version, durability })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_dead_without_a_word_is_noticed_by_the_system() {
        let options = Options::parse("postgres://ada@host/db?sslmode=disable").unwrap();
        let config = connector(&options).unwrap().config;
        assert!(config.get_keepalives());
        assert_eq!(config.get_keepalives_idle(), KEEPALIVE_IDLE);
        assert_eq!(config.get_keepalives_interval(), Some(KEEPALIVE_INTERVAL));
        assert_eq!(config.get_keepalives_retries(), Some(KEEPALIVE_RETRIES));
        assert_eq!(config.get_tcp_user_timeout(), Some(&UNACKNOWLEDGED_MAX));
    }
}
