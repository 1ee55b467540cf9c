//! Everything that can be said about a server, by name: each setting is a flag, an `FF_*` variable and a key of the
//! TOML file at once.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::namespaces::NamespaceDefaults;
use super::{ConfigError, refused};

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $name:ident: $kind:ty, $env:literal $([$($extra:tt)+])?; )*) => {
        /// All settings of one place: flags, variables or a file. An absent one is set elsewhere, or has its default.
        #[derive(Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $(
                $(#[doc = $doc])+
                #[arg(long, env = $env, hide_env_values = true $(, $($extra)+)?)]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $name: Option<$kind>,
            )*
        }

        impl Settings {
            /// The settings of this place, and those of the weaker one where they are absent here.
            #[must_use]
            pub(super) fn or(self, weaker: Self) -> Self {
                Self { $( $name: self.$name.or(weaker.$name), )* }
            }

            pub(super) const VARIABLES: &[&str] = &[ $( $env, )* ];
        }
    };
}

settings! {
    /// Address of the store: memory://, sqlite://path, valkey://host, valkeys://host or postgres://host/db.
    store: String, "FF_STORE";
    /// File that holds the address of the store.
    store_file: PathBuf, "FF_STORE_FILE";
    /// What an acknowledged commit survives on Valkey: async, replicated or fsynced.
    durability: String, "FF_DURABILITY";
    /// Replicas that must have a commit before Valkey acknowledges it.
    replicas: u32, "FF_REPLICAS";
    /// Whether the Valkey servers are a Cluster.
    cluster: bool, "FF_CLUSTER";
    /// Load a missing or older function library into Valkey; off where ACLs forbid it: then it is only verified.
    load_library: bool, "FF_LOAD_LIBRARY";
    /// What an acknowledged commit survives on SQLite: full (a power loss) or normal (the death of the process).
    sqlite_sync: String, "FF_SQLITE_SYNC";
    /// Threads that read from SQLite.
    sqlite_readers: u32, "FF_SQLITE_READERS";
    /// Schema of PostgreSQL that everything lives in.
    postgres_schema: String, "FF_POSTGRES_SCHEMA";
    /// Connections to PostgreSQL.
    postgres_pool_size: u32, "FF_POSTGRES_POOL_SIZE";
    /// Encryption towards PostgreSQL: disable, prefer, require or verify-full.
    postgres_sslmode: String, "FF_POSTGRES_SSLMODE";
    /// PEM file with the authorities to trust for Valkey or PostgreSQL instead of the system's.
    store_ca_file: String, "FF_STORE_CA_FILE";
    /// For a connection to Valkey or PostgreSQL.
    connect_timeout_ms: u64, "FF_CONNECT_TIMEOUT_MS";
    /// For an answer of Valkey or PostgreSQL.
    request_timeout_ms: u64, "FF_REQUEST_TIMEOUT_MS";
    /// For a Valkey that is not ready yet when the server starts.
    startup_timeout_ms: u64, "FF_STARTUP_TIMEOUT_MS";
    /// Address and port to listen on; 127.0.0.1:7171 by default.
    listen: String, "FF_LISTEN";
    /// Threads that answer requests and run the engine; by default one less than the machine has cores, and at least one.
    threads: usize, "FF_THREADS";
    /// PEM file with the certificate of this server and those that lead to its authority; with it the server speaks TLS.
    tls_cert_file: PathBuf, "FF_TLS_CERT_FILE";
    /// PEM file with the key of the certificate, unencrypted.
    tls_key_file: PathBuf, "FF_TLS_KEY_FILE";
    /// Tokens with the role admin, of 16 characters at least, separated by commas, each with or without a name as in ops=TOKEN. Needed to listen on anything but loopback.
    api_token: String, "FF_API_TOKEN";
    /// File that holds the API tokens.
    api_token_file: PathBuf, "FF_API_TOKEN_FILE";
    /// Host names that requests may address, separated by commas; loopback names by default on loopback, any elsewhere.
    allowed_hosts: Vec<String>, "FF_ALLOWED_HOSTS" [value_delimiter = ','];
    /// Origins whose pages may call, separated by commas; none by default.
    cors_origins: Vec<String>, "FF_CORS_ORIGINS" [value_delimiter = ','];
    /// The only lanes there are, separated by commas; by default using a lane creates it.
    lanes: Vec<String>, "FF_LANES" [value_delimiter = ','];
    /// What holds for the executions of a namespace that say nothing, in JSON: {"team-a": {"policy": {"max_replay_count": 3}}}.
    namespace_defaults: NamespaceDefaults, "FF_NAMESPACE_DEFAULTS";
    /// Partitions of executions and flows, fixed at the first start.
    flow_partitions: u32, "FF_FLOW_PARTITIONS";
    /// Partitions of budgets, fixed at the first start.
    budget_partitions: u32, "FF_BUDGET_PARTITIONS";
    /// Partitions of quotas, fixed at the first start.
    quota_partitions: u32, "FF_QUOTA_PARTITIONS";
    /// The first waitpoint secret, in hex; generated by default.
    waitpoint_secret: String, "FF_WAITPOINT_SECRET";
    /// File that holds the first waitpoint secret.
    waitpoint_secret_file: PathBuf, "FF_WAITPOINT_SECRET_FILE";
    /// How long a rotated waitpoint secret still verifies.
    secret_grace_ms: i64, "FF_SECRET_GRACE_MS";
    /// How long terminal executions are kept.
    retention_ms: i64, "FF_RETENTION_MS";
    /// How long idempotency and dedup keys are remembered.
    dedup_window_ms: i64, "FF_DEDUP_WINDOW_MS";
    /// One full look at every partition takes this long.
    sweep_ms: i64, "FF_SWEEP_MS";
    /// One full check of every document takes this long; 0 switches it off.
    reconcile_ms: i64, "FF_RECONCILE_MS";
    /// Run timers, resolver, sweeps and reconcilers in this process.
    services: bool, "FF_SERVICES";
    /// Long polls of streams, events and waits at once.
    stream_ops_max: usize, "FF_STREAM_OPS_MAX";
    /// Viewers over SSE at once.
    sse_max: usize, "FF_SSE_MAX";
    /// Connections at once; further ones wait to be accepted.
    connections_max: usize, "FF_CONNECTIONS_MAX";
    /// The most that one token, or one address, may have of the places for connections, long polls and viewers, in percent.
    caller_share_percent: u8, "FF_CALLER_SHARE_PERCENT";
    /// A client must send its next request's header within this time.
    header_timeout_ms: u64, "FF_HEADER_TIMEOUT_MS";
    /// A client must send a body within this time.
    body_timeout_ms: u64, "FF_BODY_TIMEOUT_MS";
    /// A client must take what it is sent within this time.
    write_timeout_ms: u64, "FF_WRITE_TIMEOUT_MS";
    /// How long a stopping server waits for what is under way.
    drain_ms: u64, "FF_DRAIN_MS";
    /// Largest input of an execution.
    input_max_bytes: usize, "FF_INPUT_MAX_BYTES";
    /// Largest result of an attempt.
    result_max_bytes: usize, "FF_RESULT_MAX_BYTES";
    /// Largest payload of a signal.
    signal_payload_max_bytes: usize, "FF_SIGNAL_PAYLOAD_MAX_BYTES";
    /// Largest payload of a stream frame.
    frame_max_bytes: usize, "FF_FRAME_MAX_BYTES";
    /// Largest body of batch and graph requests.
    batch_body_max_bytes: usize, "FF_BATCH_BODY_MAX_BYTES";
    /// Largest body of requests without a payload.
    body_max_bytes: usize, "FF_BODY_MAX_BYTES";
    /// Most capability tokens in one set.
    capabilities_max_tokens: usize, "FF_CAPABILITIES_MAX_TOKENS";
    /// Most bytes of one capability set.
    capabilities_max_bytes: usize, "FF_CAPABILITIES_MAX_BYTES";
    /// Lease TTL when none is given.
    lease_ttl_default_ms: i64, "FF_LEASE_TTL_DEFAULT_MS";
    /// Shortest lease TTL.
    lease_ttl_min_ms: i64, "FF_LEASE_TTL_MIN_MS";
    /// Longest lease TTL.
    lease_ttl_max_ms: i64, "FF_LEASE_TTL_MAX_MS";
    /// Grant TTL when none is given.
    grant_ttl_default_ms: i64, "FF_GRANT_TTL_DEFAULT_MS";
    /// Longest wait of a claim.
    claim_wait_max_ms: i64, "FF_CLAIM_WAIT_MAX_MS";
    /// Longest wait for frames, events and ends.
    tail_wait_max_ms: i64, "FF_TAIL_WAIT_MAX_MS";
    /// Most frames of one read.
    stream_read_max: usize, "FF_STREAM_READ_MAX";
    /// Page size when none is given.
    page_default: usize, "FF_PAGE_DEFAULT";
    /// Largest page.
    page_max: usize, "FF_PAGE_MAX";
    /// Events the deployment keeps, spread over its partitions.
    events_kept: u64, "FF_EVENTS_KEPT";
    /// Networks beside the Internet that webhooks may go to, separated by commas, such as 10.0.0.0/8; none by default.
    webhook_allow_private: Vec<String>, "FF_WEBHOOK_ALLOW_PRIVATE" [value_delimiter = ','];
    /// Collector that traces are sent to over OTLP/HTTP, such as http://localhost:4318; none by default.
    otlp_endpoint: String, "FF_OTLP_ENDPOINT";
    /// Headers for the collector, as name=value, separated by commas.
    otlp_headers: String, "FF_OTLP_HEADERS";
    /// File that holds the headers for the collector.
    otlp_headers_file: PathBuf, "FF_OTLP_HEADERS_FILE";
    /// text or json.
    log_format: LogFormat, "FF_LOG_FORMAT" [value_enum];
    /// Log level or filter, such as info or ff_engine=debug,info.
    log_level: String, "FF_LOG_LEVEL";
}

/// The variables of other commands, which may be set when the server starts.
const OTHER_VARIABLES: &[&str] = &[
    "FF_CONFIG",
    "FF_PRINT_CONFIG",
    "FF_SERVER",
    "FF_TOKEN",
    "FF_TOKEN_FILE",
    "FF_CA_FILE",
    "FF_PROFILE",
    "FF_NAMESPACE",
    "FF_OUTPUT",
];

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The line and the key that a mistake is about. The line itself is not quoted, nor is a value, because it may be a secret.
fn place(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
    let key = text.lines().nth(before).and_then(|line| line.split_once('=')).map(|(key, _)| key.trim());
    let named = key.filter(|key| error.message().contains("invalid") && !key.is_empty());
    let message = error.message();
    // What was found is the value; what was expected says enough.
    let message = match message.split_once(", expected ") {
        Some((_, "i64" | "u64" | "u32" | "u16" | "u8" | "usize")) => "must be a whole number".to_owned(),
        Some((_, expected)) if message.starts_with("invalid") => format!("must be {expected}"),
        _ => message.to_owned(),
    };
    format!("line {}: {}{message}", before + 1, named.map(|key| format!("{key} ")).unwrap_or_default())
}

impl Settings {
    /// The settings of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError(format!("the configuration file: {}", place(text, &error))))
    }

    /// The settings of the file at this path.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("the configuration file {}: {error}", path.display())))?;
        toml::from_str(&text).map_err(|error| {
            ConfigError(format!("the configuration file {}, {}", path.display(), place(&text, &error)))
        })
    }

    /// Refuses `FF_*` variables that are a setting misspelt, and names those that are unknown. An orchestrator puts
    /// addresses of services into the environment (`FF_SERVER_PORT_7171_TCP`), which must not keep a server from
    /// starting.
    pub fn check_variables(names: impl Iterator<Item = String>) -> Result<Vec<String>, ConfigError> {
        let mut unknown = Vec::new();
        for name in names.filter(|name| name.starts_with("FF_")) {
            if Self::VARIABLES.contains(&name.as_str()) || OTHER_VARIABLES.contains(&name.as_str()) {
                continue;
            }
            if let Some(meant) = Self::VARIABLES.iter().find(|known| is_misspelt(&name, known)) {
                return refused(format!(
                    "the variable {name} is no setting; {meant} is one; see `ff server --help` for those there are"
                ));
            }
            unknown.push(name);
        }
        Ok(unknown)
    }

    /// Puts what stands in files of its own in its place. One setting said in both ways is refused.
    pub(super) fn read_secrets(mut self) -> Result<Self, ConfigError> {
        take_file("store", &mut self.store, self.store_file.take())?;
        take_file("api_token", &mut self.api_token, self.api_token_file.take())?;
        take_file("waitpoint_secret", &mut self.waitpoint_secret, self.waitpoint_secret_file.take())?;
        take_file("otlp_headers", &mut self.otlp_headers, self.otlp_headers_file.take())?;
        Ok(self)
    }
}

/// Whether one name is another with a letter left out, added, changed, or swapped with its neighbour.
fn is_misspelt(name: &str, known: &str) -> bool {
    let (name, known) = (name.as_bytes(), known.as_bytes());
    let same_start = name.iter().zip(known).take_while(|(a, b)| a == b).count();
    let (name, known) = (&name[same_start..], &known[same_start..]);
    let same_end = name.iter().rev().zip(known.iter().rev()).take_while(|(a, b)| a == b).count();
    let (name, known) = (&name[..name.len() - same_end], &known[..known.len() - same_end]);
    match (name, known) {
        ([a, b], [c, d]) => a == d && b == c,
        _ => name.len() <= 1 && known.len() <= 1,
    }
}

fn take_file(name: &str, value: &mut Option<String>, file: Option<PathBuf>) -> Result<(), ConfigError> {
    let Some(file) = file else { return Ok(()) };
    if value.is_some() {
        return refused(format!("{name} and {name}_file exclude each other"));
    }
    let text = std::fs::read_to_string(&file)
        .map_err(|error| ConfigError(format!("{name}_file {}: {error}", file.display())))?;
    *value = Some(text.trim().to_owned());
    Ok(())
}

impl Settings {
    /// The values of settings that are set nowhere.
    pub fn defaults() -> Self {
        let engine = ff_engine::Options::default();
        let limits = engine.limits;
        Self {
            store: Some(ff_stores::DEFAULT_URL.into()),
            listen: Some("127.0.0.1:7171".into()),
            threads: Some(super::default_threads()),
            secret_grace_ms: Some(engine.secret_grace_ms),
            retention_ms: Some(engine.retention_ms),
            dedup_window_ms: Some(engine.dedup_window_ms),
            sweep_ms: Some(engine.sweep_ms),
            reconcile_ms: Some(engine.reconcile_ms),
            services: Some(true),
            stream_ops_max: Some(1_024),
            sse_max: Some(10_000),
            connections_max: Some(16_384),
            caller_share_percent: Some(50),
            header_timeout_ms: Some(30_000),
            body_timeout_ms: Some(30_000),
            write_timeout_ms: Some(30_000),
            drain_ms: Some(15_000),
            log_format: Some(LogFormat::Text),
            log_level: Some("info".into()),
            input_max_bytes: Some(limits.input_max_bytes),
            result_max_bytes: Some(limits.result_max_bytes),
            signal_payload_max_bytes: Some(limits.signal_payload_max_bytes),
            frame_max_bytes: Some(limits.frame_max_bytes),
            batch_body_max_bytes: Some(ff_core::limits::BATCH_BODY_MAX_BYTES),
            body_max_bytes: Some(ff_core::limits::BODY_MAX_BYTES),
            capabilities_max_tokens: Some(limits.capabilities_max_tokens),
            capabilities_max_bytes: Some(limits.capabilities_max_bytes),
            lease_ttl_default_ms: Some(limits.lease_ttl_default_ms),
            lease_ttl_min_ms: Some(limits.lease_ttl_min_ms),
            lease_ttl_max_ms: Some(limits.lease_ttl_max_ms),
            grant_ttl_default_ms: Some(limits.grant_ttl_default_ms),
            claim_wait_max_ms: Some(limits.claim_wait_max_ms),
            tail_wait_max_ms: Some(limits.tail_wait_max_ms),
            stream_read_max: Some(limits.stream_read_max),
            page_default: Some(limits.page_default),
            page_max: Some(limits.page_max),
            events_kept: Some(limits.events_kept),
            ..Self::default()
        }
    }
}
