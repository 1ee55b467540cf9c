//! Where the database is and how to talk to it, from one URL:
//! `postgres://user:password@host:port/database?schema=flowfabric&pool_size=8&sslmode=verify-full`.

use std::path::PathBuf;
use std::time::Duration;

use ff_store::{Result, StoreError};

use crate::describe::{Describe, View};

/// Connections of one process when the URL says nothing: enough to keep a few commits and a few reads under way.
const POOL_SIZE_DEFAULT: usize = 8;
/// A writer, a reader and one to spare.
const POOL_SIZE_MIN: usize = 3;
/// Past this a server has more connections than it can use.
const POOL_SIZE_MAX: usize = 256;
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Often enough to notice a dead connection before long, and next to no work for the server.
const LISTEN_CHECK_DEFAULT: Duration = Duration::from_secs(15);
/// The server gives up first: its answer says that nothing was applied.
const GRACE: Duration = Duration::from_secs(2);
const SCHEMA_DEFAULT: &str = "flowfabric";
/// PostgreSQL cuts longer names short.
const SCHEMA_MAX_BYTES: usize = 63;

/// How a connection is encrypted, in the words of libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// Never.
    Disable,
    /// Where the server offers it; its certificate is not checked.
    Prefer,
    /// Always; the certificate is not checked.
    Require,
    /// Always; the certificate must be valid for the host.
    VerifyFull,
}

/// The inputs of [`crate::PostgresStore::open`].
#[derive(Clone)]
pub struct Options {
    pub(crate) server: tokio_postgres::Config,
    pub(crate) schema: String,
    pub(crate) pool_size: usize,
    pub(crate) encryption: Encryption,
    pub(crate) root_certificate: Option<PathBuf>,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    /// How long the listening connection may be silent before it is asked whether it lives.
    pub(crate) listen_check: Duration,
    pub(crate) describe: Option<Describe>,
    pub(crate) view: Option<View>,
    /// Whether the address asks for views. They are most of what a commit would write.
    pub(crate) with_view: bool,
}

/// Without the password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("hosts", &self.server.get_hosts())
            .field("database", &self.server.get_dbname())
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("encryption", &self.encryption)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Reads a URL. Parameters it does not know are refused, so that a misspelt one is not silently ignored.
    pub fn parse(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        if !address.starts_with("postgres://") && !address.starts_with("postgresql://") {
            return refused("the address must begin with postgres://");
        }
        // The parser's own message is about syntax and never quotes the password.
        let server: tokio_postgres::Config = address
            .parse()
            .map_err(|error| StoreError::Config(format!("the address is malformed: {}", crate::error::text(&error))))?;
        if server.get_hosts().is_empty() {
            return refused("the address names no host");
        }
        let mut options = Self {
            server,
            schema: SCHEMA_DEFAULT.into(),
            pool_size: POOL_SIZE_DEFAULT,
            encryption: Encryption::Prefer,
            root_certificate: None,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            listen_check: LISTEN_CHECK_DEFAULT,
            describe: None,
            view: None,
            with_view: false,
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            options.set(name, &decode(value)?)?;
        }
        Ok(options)
    }

    /// Fills the columns that people query from the documents as they are written.
    #[must_use]
    pub fn describe(mut self, describe: Describe) -> Self {
        self.describe = Some(describe);
        self
    }

    /// Fills the column `view` as well, where the address asks for it.
    #[must_use]
    pub fn view(mut self, view: View) -> Self {
        self.view = Some(view);
        self
    }

    /// How long to wait for any one answer.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.request_timeout + GRACE
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "schema" => self.schema = schema(value)?,
            "pool_size" => {
                self.pool_size = match value.parse() {
                    Ok(size) if (POOL_SIZE_MIN..=POOL_SIZE_MAX).contains(&size) => size,
                    _ => return refused(format!("pool_size must be {POOL_SIZE_MIN} to {POOL_SIZE_MAX}")),
                }
            }
            "sslmode" => {
                self.encryption = match value {
                    "disable" => Encryption::Disable,
                    "prefer" => Encryption::Prefer,
                    "require" => Encryption::Require,
                    "verify-full" => Encryption::VerifyFull,
                    _ => return refused("sslmode must be disable, prefer, require or verify-full"),
                }
            }
            "view" => {
                self.with_view = match value {
                    "on" => true,
                    "off" => false,
                    _ => return refused("view must be on or off"),
                }
            }
            "sslrootcert" => self.root_certificate = Some(value.into()),
            "connect_timeout_ms" => self.connect_timeout = milliseconds(name, value)?,
            "request_timeout_ms" => self.request_timeout = milliseconds(name, value)?,
            "listen_check_ms" => self.listen_check = milliseconds(name, value)?,
            _ => {
                return refused(format!(
                    "unknown parameter {name:?}; known are schema, pool_size, view, sslmode, sslrootcert, \
                     connect_timeout_ms, request_timeout_ms and listen_check_ms"
                ));
            }
        }
        Ok(())
    }
}

/// A plain name needs no quoting anywhere.
fn schema(value: &str) -> Result<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = value.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if !begins || value.len() > SCHEMA_MAX_BYTES || !value.bytes().all(plain) || value.starts_with("pg_") {
        return refused("schema must be lowercase letters, digits and underscores, not beginning with a digit or pg_");
    }
    Ok(value.into())
}

fn milliseconds(name: &str, value: &str) -> Result<Duration> {
    match value.parse::<u32>() {
        Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds.into())),
        _ => refused(format!("{name} must be a positive number of milliseconds")),
    }
}

/// Undoes percent-encoding.
fn decode(value: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit =
            || rest.next().and_then(|digit| char::from(digit).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push(high * 16 + low),
            _ => return refused(format!("{value:?} is not percent-encoded")),
        }
    }
    String::from_utf8(bytes).map_err(|_| StoreError::Config(format!("{value:?} is not UTF-8")))
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(StoreError::Config(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(url: &str) -> String {
        match Options::parse(url) {
            Err(StoreError::Config(why)) => why,
            other => panic!("{url} gave {other:?}"),
        }
    }

    #[test]
    fn a_url_sets_every_option() {
        let options = Options::parse(
            "postgres://ada:s%40cret@db:6000/work?schema=flows&pool_size=20&view=on&sslmode=verify-full\
             &sslrootcert=%2Fetc%2Fca.pem&connect_timeout_ms=100&request_timeout_ms=2000&listen_check_ms=300",
        )
        .unwrap();
        assert_eq!(options.schema, "flows");
        assert_eq!(options.pool_size, 20);
        assert!(options.with_view && !Options::parse("postgres://host/db").unwrap().with_view);
        assert_eq!(options.encryption, Encryption::VerifyFull);
        assert_eq!(options.root_certificate, Some("/etc/ca.pem".into()));
        assert_eq!(options.connect_timeout, Duration::from_millis(100));
        assert_eq!(options.request_timeout, Duration::from_millis(2000));
        assert_eq!(options.listen_check, Duration::from_millis(300));
        assert_eq!(options.server.get_password(), Some(b"s@cret".as_slice()));
        assert!(!format!("{options:?}").contains("cret"));
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_by_name() {
        for (url, named) in [
            ("mysql://host/db", "postgres://"),
            ("postgres://ada@host/db?scheme=x", "scheme"),
            ("postgres://ada@host/db?pool_size=2", "pool_size"),
            ("postgres://ada@host/db?schema=a;b", "schema"),
            ("postgres://ada@host/db?schema=", "schema"),
            ("postgres://ada@host/db?view=yes", "view"),
            ("postgres://ada@host/db?sslmode=maybe", "sslmode"),
            ("postgres://ada@host/db?request_timeout_ms=0", "request_timeout_ms"),
            ("postgres://ada@host/db?sslrootcert=%zz", "percent"),
            ("postgres:///db", "host"),
        ] {
            assert!(why(url).contains(named), "{url}: {}", why(url));
        }
    }
}
