//! The address of a Valkey deployment, with all its parameters.
//!
//! `valkey://[user:password@]host[:port][,host[:port]...][/]?cluster=true&tier=replicated&replicas=1`, or `valkeys://`
//! for TLS. An unknown parameter is refused: a misspelt one would silently mean its default.

use std::fmt;
use std::time::Duration;

use ff_store::{Result, StoreError};

use crate::Tier;

const PORT: u16 = 6379;
const REPLICAS_MAX: u64 = 16;
const TIMEOUT_MAX_MS: u64 = 600_000;

/// How to reach a deployment and how to behave towards it.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// `host:port` of the servers to begin with.
    pub hosts: Vec<String>,
    /// The user; the server's default user when absent.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// Whether connections use TLS.
    pub tls: bool,
    /// A PEM file with the authorities to trust instead of the system's.
    pub ca_file: Option<String>,
    /// PEM files with the certificate chain and the key by which the servers know this process.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether the servers are a Cluster.
    pub cluster: bool,
    /// What an acknowledged commit survives.
    pub tier: Tier,
    /// Replicas that must have a commit before it is acknowledged.
    pub replicas: u32,
    /// Whether a missing or older function library is loaded; otherwise it is only verified.
    pub load_library: bool,
    /// The time limit for one connection to be ready, and for a call to find a server that can take it.
    pub connect_timeout: Duration,
    /// The time limit for one answer.
    pub request_timeout: Duration,
    /// The time limit for a deployment that is not ready yet when the process starts.
    pub startup_timeout: Duration,
}

/// The certificate for a server that asks its clients for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// A PEM file with the certificate and those that vouch for it.
    pub cert_file: String,
    /// A PEM file with its private key.
    pub key_file: String,
}

/// The password stays out of logs.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("hosts", &self.hosts)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "[redacted]"))
            .field("tls", &self.tls)
            .field("cluster", &self.cluster)
            .field("tier", &self.tier)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Reads an address. The address itself never appears in an error: it may hold a password.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| config("the address needs a scheme"))?;
        let tls = match scheme {
            "valkey" => false,
            "valkeys" => true,
            other => return Err(config(format!("the scheme {other:?} is not valkey or valkeys"))),
        };
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = location.split_once('/').unwrap_or((location, ""));
        if !path.is_empty() {
            return Err(config("a path has no meaning: only database 0 is used"));
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let mut options = Self::with_defaults(hosts.split(',').map(parse_host).collect::<Result<_>>()?, tls);
        if let Some(credentials) = credentials {
            options.set_credentials(credentials)?;
        }
        let mut open = OpenParameters::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            options.set_parameter(name, decode(value)?, &mut open)?;
        }
        options.replicas = replicas_of(options.tier, open.replicas)?;
        options.client_certificate = match (open.cert_file, open.key_file) {
            (Some(cert_file), Some(key_file)) => Some(ClientCertificate { cert_file, key_file }),
            (None, None) => None,
            _ => return Err(config("cert_file and key_file need each other")),
        };
        if (options.ca_file.is_some() || options.client_certificate.is_some()) && !tls {
            return Err(config("ca_file, cert_file and key_file need the scheme valkeys"));
        }
        Ok(options)
    }

    /// An address without credentials and parameters.
    fn with_defaults(hosts: Vec<String>, tls: bool) -> Self {
        Self {
            hosts,
            user: None,
            password: None,
            tls,
            ca_file: None,
            client_certificate: None,
            cluster: false,
            tier: Tier::default(),
            replicas: 0,
            load_library: true,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            startup_timeout: Duration::from_secs(60),
        }
    }

    fn set_credentials(&mut self, credentials: &str) -> Result<()> {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        self.user = Some(decode(user)?).filter(|user| !user.is_empty());
        self.password = Some(decode(password)?).filter(|password| !password.is_empty());
        match self.password {
            Some(_) => Ok(()),
            None => Err(config("a user without a password")),
        }
    }

    fn set_parameter(&mut self, name: &str, value: String, open: &mut OpenParameters) -> Result<()> {
        match name {
            "cluster" => self.cluster = parse_switch(name, &value)?,
            "load_library" => self.load_library = parse_switch(name, &value)?,
            "tier" => {
                self.tier = value
                    .parse()
                    .map_err(|()| config(format!("tier {value:?} is not async, replicated or fsynced")))?;
            }
            "replicas" => open.replicas = Some(parse_number(name, &value, REPLICAS_MAX)?),
            "ca_file" => self.ca_file = Some(value),
            "cert_file" => open.cert_file = Some(value),
            "key_file" => open.key_file = Some(value),
            "connect_timeout_ms" => self.connect_timeout = parse_timeout(name, &value)?,
            "request_timeout_ms" => self.request_timeout = parse_timeout(name, &value)?,
            "startup_timeout_ms" => self.startup_timeout = parse_timeout(name, &value)?,
            other => return Err(config(format!("unknown parameter {other:?}"))),
        }
        Ok(())
    }

    /// Whether a commit is followed by a WAIT.
    pub(crate) fn waits(&self) -> bool {
        self.replicas > 0
    }

    /// Whether one of several standalone servers is in charge, and another one may take over.
    pub(crate) fn may_change_hands(&self) -> bool {
        !self.cluster && self.hosts.len() > 1
    }

    /// Whether a commit is followed by a question whose answer confirms the promise of the tier.
    pub(crate) fn confirms(&self) -> bool {
        self.waits() || self.tier == Tier::Fsynced
    }
}

/// Parameters whose meaning depends on other parameters, so that they are judged when all have been read.
#[derive(Default)]
struct OpenParameters {
    replicas: Option<u64>,
    cert_file: Option<String>,
    key_file: Option<String>,
}

/// The replicas that a tier waits for, of which the address may give the number.
fn replicas_of(tier: Tier, given: Option<u64>) -> Result<u32> {
    match (tier, given) {
        (Tier::Async, Some(1..)) => Err(config("replicas needs tier=replicated or tier=fsynced")),
        (Tier::Replicated, Some(0)) => Err(config("tier=replicated needs at least one replica")),
        (Tier::Replicated, None) => Ok(1),
        (_, given) => u32::try_from(given.unwrap_or(0)).map_err(|_| config("too many replicas")),
    }
}

fn config(why: impl Into<String>) -> StoreError {
    StoreError::Config(why.into())
}

fn parse_host(text: &str) -> Result<String> {
    let bracketed_end = text.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match text[bracketed_end..].rfind(':') {
        Some(at) => {
            let at = bracketed_end + at;
            let port = text[at + 1..].parse().map_err(|_| config(format!("the port of {text:?} is not a port")))?;
            (&text[..at], port)
        }
        None => (text, PORT),
    };
    if host.is_empty() {
        return Err(config("a host name is missing"));
    }
    Ok(format!("{host}:{port}"))
}

fn parse_switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "on" => Ok(true),
        "false" | "off" => Ok(false),
        other => Err(config(format!("{name} is {other:?}, not on or off"))),
    }
}

fn parse_number(name: &str, value: &str, max: u64) -> Result<u64> {
    match value.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(config(format!("{name} must be a number up to {max}, not {value:?}"))),
    }
}

fn parse_timeout(name: &str, value: &str) -> Result<Duration> {
    match parse_number(name, value, TIMEOUT_MAX_MS)? {
        0 => Err(config(format!("{name} must not be 0"))),
        millis => Ok(Duration::from_millis(millis)),
    }
}

fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit =
            || rest.next().and_then(|byte| char::from(byte).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push(high * 16 + low),
            _ => return Err(config("a percent sign is not followed by two hex digits")),
        }
    }
    String::from_utf8(bytes).map_err(|_| config("the address is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_who_and_how() {
        let options = Options::parse(
            "valkeys://ann:p%40ss@one:7000,two,[::1]:7001/?cluster=true&tier=replicated&replicas=2&load_library=off\
             &connect_timeout_ms=100&request_timeout_ms=200",
        )
        .unwrap();
        assert_eq!(options.hosts, ["one:7000", "two:6379", "[::1]:7001"]);
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@ss")));
        assert!(options.tls && options.cluster && !options.load_library);
        assert_eq!((options.tier, options.replicas), (Tier::Replicated, 2));
        assert_eq!(options.request_timeout, Duration::from_millis(200));
        assert!(!format!("{options:?}").contains("p@ss"));
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let options = Options::parse("valkey://localhost").unwrap();
        assert_eq!(options.hosts, ["localhost:6379"]);
        assert_eq!((options.tier, options.replicas, options.cluster), (Tier::Async, 0, false));
        assert_eq!(Options::parse("valkey://h?tier=replicated").unwrap().replicas, 1);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for url in [
            "localhost",
            "redis://localhost",
            "valkey://",
            "valkey://h:port",
            "valkey://h/3",
            "valkey://h?clsuter=true",
            "valkey://h?cluster=maybe",
            "valkey://h?tier=safe",
            "valkey://h?replicas=1",
            "valkey://h?tier=replicated&replicas=0",
            "valkey://h?request_timeout_ms=0",
            "valkey://user@h",
            "valkey://h?ca_file=/x",
            "valkey://h?cert_file=/x&key_file=/y",
            "valkeys://h?cert_file=/x",
            "valkeys://h?key_file=/y",
            "valkey://u:%zz@h",
        ] {
            assert!(matches!(Options::parse(url), Err(StoreError::Config(_))), "{url} was taken");
        }
    }
}
