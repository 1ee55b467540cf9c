//! Configuration: flags, `FF_*` variables and a TOML file say the same things, in that order of strength. Secrets may
//! stand in files of their own. An unknown key is refused: a misspelt one would silently mean its default.

mod namespaces;
mod settings;
mod store;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ff_core::{PartitionConfig, limits};

use crate::certificate::Certificate;
use crate::courier::HttpCourier;
use crate::networks::Reachable;
use crate::token_digest::TokenDigest;
use crate::trace::Otlp;

pub use namespaces::{NamespaceDefault, NamespaceDefaults};
pub use settings::{LogFormat, Settings};

/// A configuration that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// A configured token may do everything, and nothing slows down a caller that tries tokens out.
const API_TOKEN_MIN_CHARS: usize = 16;

fn refused<T>(why: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError(why.into()))
}

/// Threads for a runtime that serves an engine: one less than the machine has cores. The store needs the last core, be it a server
/// on this machine or the threads of SQLite. A call also costs less where fewer threads pass it on to each other.
pub fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    cores.saturating_sub(1).max(1)
}

/// A configuration that can be used.
#[derive(Clone)]
pub struct Config {
    /// Address of the store with all its settings; may hold a password.
    pub store: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Threads of the runtime that the server is to be started on.
    pub threads: usize,
    /// The certificate that the server shows its clients; without one it speaks plain HTTP.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Tokens with the role admin.
    pub api_tokens: Vec<TokenDigest>,
    /// Hosts that requests may address; `None` for any.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins whose pages may call.
    pub cors_origins: Vec<String>,
    /// How the engine is set up.
    pub engine: ff_engine::Options,
    /// Long polls at once.
    pub stream_ops_max: usize,
    /// Viewers at once.
    pub sse_max: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// The most that one token or one address may have of them, in percent.
    caller_share_percent: u8,
    /// For a request's header.
    pub header_timeout: Duration,
    /// For a request's body.
    pub body_timeout: Duration,
    /// For a client to take what it is sent.
    pub write_timeout: Duration,
    /// For what is under way when the server stops.
    pub drain: Duration,
    /// Largest body of batch and graph requests.
    pub batch_body_max_bytes: usize,
    /// Largest body of requests without a payload.
    pub body_max_bytes: usize,
    pub(crate) otlp: Option<Otlp>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which of them are written.
    pub log_level: String,
    effective: Settings,
}

impl Config {
    /// Combines what flags and variables say with what a file says.
    pub fn resolve(stronger: Settings, weaker: Settings) -> Result<Self, ConfigError> {
        let mut settings = stronger.read_secrets()?.or(weaker.read_secrets()?).or(Settings::defaults());
        let store = store::address(&mut settings)?;
        let listen: SocketAddr = match settings.listen.as_deref().unwrap_or_default().parse() {
            Ok(listen) => listen,
            Err(_) => return refused("listen must be an address and a port, such as 127.0.0.1:7171"),
        };
        let api_tokens = api_tokens(&settings)?;
        if api_tokens.is_empty() && !listen.ip().is_loopback() {
            return refused(format!(
                "listening on {listen} needs an API token: set FF_API_TOKEN or FF_API_TOKEN_FILE, or listen on 127.0.0.1"
            ));
        }
        let loopback = || ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        // A client on this machine may name it so, whatever other names are allowed.
        let named = settings.allowed_hosts.clone().map(|mut hosts| {
            let missing = |host: &String| !hosts.contains(host);
            let added: Vec<String> = loopback().into_iter().filter(missing).collect();
            hosts.extend(added);
            hosts
        });
        let allowed_hosts = named.or_else(|| listen.ip().is_loopback().then(loopback));
        Ok(Self {
            store,
            listen,
            threads: positive("threads", settings.threads)?,
            certificate: certificate(&settings)?,
            api_tokens,
            allowed_hosts,
            cors_origins: settings.cors_origins.clone().unwrap_or_default(),
            engine: engine_options(&settings)?,
            stream_ops_max: positive("stream_ops_max", settings.stream_ops_max)?,
            sse_max: positive("sse_max", settings.sse_max)?,
            connections_max: positive("connections_max", settings.connections_max)?,
            caller_share_percent: match settings.caller_share_percent {
                Some(percent @ 1..=100) => percent,
                _ => return refused("caller_share_percent must be 1 to 100"),
            },
            header_timeout: milliseconds("header_timeout_ms", settings.header_timeout_ms)?,
            body_timeout: milliseconds("body_timeout_ms", settings.body_timeout_ms)?,
            write_timeout: milliseconds("write_timeout_ms", settings.write_timeout_ms)?,
            drain: Duration::from_millis(settings.drain_ms.unwrap_or_default()),
            batch_body_max_bytes: body(
                "batch_body_max_bytes",
                settings.batch_body_max_bytes,
                limits::BATCH_BODY_MAX_BYTES,
            )?,
            body_max_bytes: body("body_max_bytes", settings.body_max_bytes, limits::BODY_MAX_BYTES)?,
            otlp: otlp(&settings)?,
            log_format: settings.log_format.unwrap_or_default(),
            log_level: settings.log_level.clone().unwrap_or_default(),
            effective: settings,
        })
    }

    /// Whether every caller that reaches the server is let in: no token is configured.
    pub fn open(&self) -> bool {
        self.api_tokens.is_empty()
    }

    /// The places of so many that one caller may have. Without tokens all callers are one, which has all.
    pub(crate) fn share_of(&self, all: usize) -> usize {
        match self.open() {
            true => all,
            false => (all.saturating_mul(self.caller_share_percent.into()) / 100).max(1),
        }
    }

    /// The largest body of an operation that may have this many bytes at most.
    pub(crate) fn body_max(&self, operation_max: usize) -> usize {
        match operation_max {
            limits::BODY_MAX_BYTES => self.body_max_bytes,
            limits::BATCH_BODY_MAX_BYTES => self.batch_body_max_bytes,
            // The payload is what counts, and has a limit of its own.
            other => other,
        }
    }

    /// The whole configuration in TOML, without its secrets; a last comment names the settings that are not set.
    pub fn redacted(&self) -> String {
        let hide = |secret: &Option<String>| secret.as_ref().map(|_| "[redacted]".to_owned());
        let shown = Settings {
            store: self.effective.store.as_deref().map(ff_stores::redacted),
            api_token: hide(&self.effective.api_token),
            otlp_headers: hide(&self.effective.otlp_headers),
            otlp_endpoint: self.effective.otlp_endpoint.as_deref().map(ff_stores::redacted),
            waitpoint_secret: hide(&self.effective.waitpoint_secret),
            allowed_hosts: self.allowed_hosts.clone(),
            ..self.effective.clone()
        };
        let set = toml::to_string(&shown).unwrap_or_else(|error| format!("# cannot be shown: {error}\n"));
        let is_set = |name: &str| set.lines().any(|line| line.split(" = ").next() == Some(name));
        let names = Settings::VARIABLES.iter().filter_map(|variable| variable.strip_prefix("FF_"));
        let unset: Vec<String> = names.map(str::to_lowercase).filter(|name| !is_set(name)).collect();
        format!("{set}# not set: {}\n", unset.join(", "))
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted())
    }
}

fn api_tokens(settings: &Settings) -> Result<Vec<TokenDigest>, ConfigError> {
    let Some(text) = &settings.api_token else { return Ok(Vec::new()) };
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let tokens: Vec<(&str, &str)> = entries.map(TokenDigest::parts).collect();
    if tokens.is_empty() {
        return refused("api_token must not be empty");
    }
    for (index, (_, token)) in tokens.iter().enumerate() {
        let (number, length) = (index + 1, token.chars().count());
        if length < API_TOKEN_MIN_CHARS {
            return refused(format!(
                "api_token: token {number} has {length} characters and could be guessed; it needs {API_TOKEN_MIN_CHARS} at \
                 least, and `openssl rand -hex 32` makes a good one"
            ));
        }
    }
    check_distinct(&tokens)?;
    Ok(tokens.into_iter().map(|(name, token)| TokenDigest::of(token).named(name)).collect())
}

/// Refuses a token or a name that stands twice: one holder would count as two, or two as one.
fn check_distinct(tokens: &[(&str, &str)]) -> Result<(), ConfigError> {
    for (index, (name, token)) in tokens.iter().enumerate() {
        for (before, (other_name, other_token)) in tokens[..index].iter().enumerate() {
            let places = format!("api_token: tokens {} and {}", before + 1, index + 1);
            if token == other_token {
                return refused(format!("{places} are the same token; remove one of them"));
            }
            if !name.is_empty() && name == other_name {
                return refused(format!("{places} have the same name {name:?}; give one of them another"));
            }
        }
    }
    Ok(())
}

fn certificate(settings: &Settings) -> Result<Option<Arc<Certificate>>, ConfigError> {
    match (&settings.tls_cert_file, &settings.tls_key_file) {
        (None, None) => Ok(None),
        (Some(chain), Some(key)) => Certificate::load(chain, key).map(|read| Some(Arc::new(read))).map_err(ConfigError),
        (Some(_), None) => refused("tls_cert_file needs tls_key_file, the key of the certificate"),
        (None, Some(_)) => refused("tls_key_file needs tls_cert_file, the certificate of the key"),
    }
}

fn engine_options(settings: &Settings) -> Result<ff_engine::Options, ConfigError> {
    let counts = (settings.flow_partitions, settings.budget_partitions, settings.quota_partitions);
    let partitions = match counts {
        (None, None, None) => None,
        (Some(flow), Some(budget), Some(quota)) => Some(PartitionConfig { flow, budget, quota }),
        _ => return refused("flow_partitions, budget_partitions and quota_partitions are set together or not at all"),
    };
    if let Some(partitions) = &partitions {
        partitions.validate().map_err(|error| ConfigError(error.detail))?;
    }
    let duration = |name: &str, value: Option<i64>, least: i64| match value {
        Some(ms) if (least..=limits::DURATION_MAX_MS).contains(&ms) => Ok(ms),
        _ => refused(format!("{name} must be {least} to {}", limits::DURATION_MAX_MS)),
    };
    Ok(ff_engine::Options {
        partitions,
        lanes: settings.lanes.clone(),
        retention_ms: duration("retention_ms", settings.retention_ms, 1)?,
        dedup_window_ms: duration("dedup_window_ms", settings.dedup_window_ms, 1)?,
        sweep_ms: duration("sweep_ms", settings.sweep_ms, 1)?,
        reconcile_ms: duration("reconcile_ms", settings.reconcile_ms, 0)?,
        waitpoint_secret: settings.waitpoint_secret.clone(),
        secret_grace_ms: duration("secret_grace_ms", settings.secret_grace_ms, 0)?,
        services: settings.services.unwrap_or(true),
        policies: settings
            .namespace_defaults
            .as_ref()
            .map(NamespaceDefaults::policies)
            .transpose()?
            .unwrap_or_default(),
        limits: engine_limits(settings)?,
        address: settings.listen.clone().unwrap_or_default(),
        test_clock: None,
        courier: Some(courier(settings)?),
        chunk_max: usize::MAX,
    })
}

fn courier(settings: &Settings) -> Result<Arc<dyn ff_engine::Courier>, ConfigError> {
    let reachable = Reachable::with(settings.webhook_allow_private.as_deref().unwrap_or_default());
    let reachable = reachable.map_err(|why| ConfigError(format!("webhook_allow_private: {why}")))?;
    Ok(Arc::new(HttpCourier::new(reachable)))
}

/// Defaults stand for what is not said.
fn engine_limits(settings: &Settings) -> Result<ff_engine::Limits, ConfigError> {
    let default = ff_engine::Limits::default();
    let page_max = settings.page_max.unwrap_or(default.page_max);
    let limits = ff_engine::Limits {
        input_max_bytes: settings.input_max_bytes.unwrap_or(default.input_max_bytes),
        result_max_bytes: settings.result_max_bytes.unwrap_or(default.result_max_bytes),
        signal_payload_max_bytes: settings.signal_payload_max_bytes.unwrap_or(default.signal_payload_max_bytes),
        frame_max_bytes: settings.frame_max_bytes.unwrap_or(default.frame_max_bytes),
        capabilities_max_tokens: settings.capabilities_max_tokens.unwrap_or(default.capabilities_max_tokens),
        capabilities_max_bytes: settings.capabilities_max_bytes.unwrap_or(default.capabilities_max_bytes),
        lease_ttl_default_ms: settings.lease_ttl_default_ms.unwrap_or(default.lease_ttl_default_ms),
        lease_ttl_min_ms: settings.lease_ttl_min_ms.unwrap_or(default.lease_ttl_min_ms),
        lease_ttl_max_ms: settings.lease_ttl_max_ms.unwrap_or(default.lease_ttl_max_ms),
        grant_ttl_default_ms: settings.grant_ttl_default_ms.unwrap_or(default.grant_ttl_default_ms),
        claim_wait_max_ms: settings.claim_wait_max_ms.unwrap_or(default.claim_wait_max_ms),
        tail_wait_max_ms: settings.tail_wait_max_ms.unwrap_or(default.tail_wait_max_ms),
        stream_read_max: settings.stream_read_max.unwrap_or(default.stream_read_max),
        page_default: settings.page_default.unwrap_or(default.page_default.min(page_max)),
        page_max,
        events_kept: settings.events_kept.unwrap_or(default.events_kept),
    };
    limits.validate().map_err(|error| ConfigError(error.detail))?;
    Ok(limits)
}

fn body(name: &str, value: Option<usize>, max: usize) -> Result<usize, ConfigError> {
    match value {
        Some(value) if (1..=max).contains(&value) => Ok(value),
        _ => refused(format!("{name} must be 1 to {max}")),
    }
}

fn otlp(settings: &Settings) -> Result<Option<Otlp>, ConfigError> {
    let headers = settings.otlp_headers.as_deref().unwrap_or_default();
    match settings.otlp_endpoint.as_deref() {
        None if settings.otlp_headers.is_some() => refused("otlp_headers needs otlp_endpoint"),
        None => Ok(None),
        Some(endpoint) => match Otlp::parse(endpoint, headers) {
            Ok(otlp) => Ok(Some(otlp)),
            Err(why) => refused(format!("otlp_endpoint {why}")),
        },
    }
}

fn positive(name: &str, value: Option<usize>) -> Result<usize, ConfigError> {
    match value {
        Some(value) if (1..=1_000_000).contains(&value) => Ok(value),
        _ => refused(format!("{name} must be 1 to 1000000")),
    }
}

fn milliseconds(name: &str, value: Option<u64>) -> Result<Duration, ConfigError> {
    match value {
        Some(value) if (1..=3_600_000).contains(&value) => Ok(Duration::from_millis(value)),
        _ => refused(format!("{name} must be 1 to 3600000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(settings: Settings) -> String {
        Config::resolve(settings, Settings::default()).unwrap_err().to_string()
    }

    #[test]
    fn flags_and_variables_are_stronger_than_the_file() {
        let flags = Settings { listen: Some("127.0.0.1:1".into()), ..Settings::default() };
        let file = Settings::from_toml("listen = '127.0.0.1:2'\nstore = 'memory://'\nlog_format = 'json'").unwrap();
        let config = Config::resolve(flags, file).unwrap();
        assert_eq!(config.listen.port(), 1);
        assert_eq!((config.store.as_str(), config.log_format), ("memory://", LogFormat::Json));
        assert_eq!(config.stream_ops_max, 1_024);
    }

    #[test]
    fn unknown_keys_and_variables_are_refused_by_name() {
        assert!(Settings::from_toml("lisen = 'x'").err().unwrap().to_string().contains("lisen"));
        let variables = |name: &str| Settings::check_variables([name.to_owned()].into_iter());
        assert!(variables("FF_LISTN").unwrap_err().to_string().contains("FF_LISTN"));
        assert!(variables("FF_LISTEN").is_ok() && variables("FF_TOKEN").is_ok() && variables("PATH").is_ok());
        // An orchestrator names its services so.
        assert_eq!(variables("FF_SERVER_PORT_7171_TCP").unwrap(), ["FF_SERVER_PORT_7171_TCP"]);
        for misspelt in ["FF_LISTENN", "FF_LSITEN", "FF_STORR"] {
            assert!(variables(misspelt).is_err(), "{misspelt}");
        }
    }

    #[test]
    fn a_bad_line_of_the_file_is_not_quoted() {
        let error = Settings::from_toml("api_token = canary-value").err().unwrap().to_string();
        assert!(!error.contains("canary"), "{error}");
    }

    #[test]
    fn another_address_needs_a_token() {
        let outside = Settings { listen: Some("0.0.0.0:7171".into()), ..Settings::default() };
        assert!(why(outside.clone()).contains("FF_API_TOKEN"));
        let empty = Settings { api_token: Some(" ".into()), ..outside.clone() };
        assert!(why(empty).contains("empty"));
        let short = Settings { api_token: Some(format!("{}, canary-t2", "a".repeat(16))), ..outside.clone() };
        let refusal = why(short);
        assert!(refusal.contains("token 2") && refusal.contains("openssl rand"), "{refusal}");
        assert!(!refusal.contains("canary"), "{refusal}");
        let named = Settings { api_token: Some("operations=canary-t3".into()), ..outside.clone() };
        let refusal = why(named);
        assert!(refusal.contains("has 9 characters") && !refusal.contains("canary"), "{refusal}");
        let token = Settings { api_token: Some(format!("{},ci={}", "a".repeat(16), "b".repeat(16))), ..outside };
        let config = Config::resolve(token, Settings::default()).unwrap();
        assert_eq!(config.api_tokens, [TokenDigest::of(&"a".repeat(16)), TokenDigest::of(&"b".repeat(16)).named("ci")]);
        assert!(!config.open() && config.allowed_hosts.is_none());
    }

    #[test]
    fn a_token_and_a_name_stand_for_one_holder() {
        let (one, other) = ("canary-token-of-16", "canary-other-token");
        let configured = |text: String| Settings { api_token: Some(text), ..Settings::default() };
        for twice in [format!("a={one},b={one}"), format!("{one},a={one}"), format!("{one},{other},{one}")] {
            let refusal = why(configured(twice));
            assert!(refusal.contains("the same token") && !refusal.contains("canary"), "{refusal}");
        }
        let refusal = why(configured(format!("a={one},a={other}")));
        assert!(refusal.contains("tokens 1 and 2") && refusal.contains("\"a\""), "{refusal}");
        assert!(Config::resolve(configured(format!("{one},{other}")), Settings::default()).is_ok());
    }

    #[test]
    fn secrets_come_from_files_and_are_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "canary-token-of-16\n").unwrap();
        let settings = Settings {
            api_token_file: Some(file.path().into()),
            store: Some("valkey://u:canary-password@host".into()),
            waitpoint_secret: Some("canary-secret".into()),
            ..Settings::default()
        };
        let config = Config::resolve(settings.clone(), Settings::default()).unwrap();
        assert_eq!(config.api_tokens, [TokenDigest::of("canary-token-of-16")]);
        assert!(!config.redacted().contains("canary"), "{}", config.redacted());
        assert!(config.redacted().contains("listen = \"127.0.0.1:7171\""));
        let unset = config.redacted().lines().last().unwrap().to_owned();
        assert!(unset.starts_with("# not set: ") && unset.contains("flow_partitions"), "{unset}");
        assert!(!unset.contains("listen"), "{unset}");
        let both = Settings { api_token: Some("x".into()), ..settings };
        assert!(why(both).contains("exclude"));
    }
}
