//! State that all requests share: the engine, the configuration, and places in the pools.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ff_core::op::OperationInfo;
use ff_core::{Code, Error, Result};
use ff_engine::{Caller, Engine};
use hyper::StatusCode;
use tokio::sync::watch;

use crate::config::Config;
use crate::feeds::Feeds;
use crate::queues::Queues;
use crate::shares::{Full, Place, Shares};
use crate::strangers::Strangers;
use crate::trace::Tracer;

/// The server behind every connection.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    /// Connections by the address that they come from.
    pub(crate) connections: Shares<IpAddr>,
    pub(crate) pools: Pools,
    pub(crate) feeds: Feeds,
    pub(crate) queues: Queues,
    pub(crate) counters: Counters,
    pub(crate) strangers: Strangers,
    /// Where spans go, when that is configured.
    pub(crate) tracer: Option<Tracer>,
    /// Becomes true when the server begins to stop.
    pub(crate) stop: watch::Receiver<bool>,
}

impl App {
    pub(crate) fn new(engine: Engine, config: Config, stop: watch::Receiver<bool>) -> Arc<Self> {
        let pools = Pools::new(&config);
        // Those that wait to be accepted are bounded elsewhere: here it is about who has the others.
        let connections = Shares::new(usize::MAX, config.share_of(config.connections_max));
        let tracer = config.otlp.as_ref().map(|otlp| Tracer::start(otlp.clone()));
        let (feeds, queues, counters) = (Feeds::default(), Queues::default(), Counters::default());
        let strangers = Strangers::default();
        Arc::new(Self { engine, config, connections, pools, feeds, queues, counters, strangers, tracer, stop })
    }

    /// Whether the server is on its way out.
    pub(crate) fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Ends when the server begins to stop.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // A sender that is gone means that the server is, too.
        let _ = stop.wait_for(|stopping| *stopping).await;
    }
}

/// How many calls of a kind may be open at once.
pub(crate) struct Pools {
    /// Every call of a caller with a token, for as long as it takes: a caller has one for each of its connections.
    calls: Pool,
    pub(crate) stream_ops: Pool,
    pub(crate) sse: Pool,
}

impl Pools {
    fn new(config: &Config) -> Self {
        Self {
            calls: Pool::new("calls", config.connections_max, config),
            stream_ops: Pool::new("stream_ops", config.stream_ops_max, config),
            sse: Pool::new("sse", config.sse_max, config),
        }
    }

    /// A place for any call; where no token tells callers apart, connections are all that is counted.
    pub(crate) fn enter_call(&self, config: &Config, caller: &Caller) -> Result<Option<Place<String>>> {
        (!config.open()).then(|| self.calls.enter(caller)).transpose()
    }

    /// A place for an operation; most need none.
    pub(crate) fn enter_operation(&self, info: &OperationInfo, caller: &Caller) -> Result<Option<Place<String>>> {
        info.watching.then(|| self.stream_ops.enter(caller)).transpose()
    }
}

/// A number of places.
pub(crate) struct Pool {
    name: &'static str,
    places: Shares<String>,
}

impl Pool {
    fn new(name: &'static str, max: usize, config: &Config) -> Self {
        Self { name, places: Shares::new(max, config.share_of(max)) }
    }

    /// A place until it is dropped.
    pub(crate) fn enter(&self, caller: &Caller) -> Result<Place<String>> {
        self.places.enter(caller.name.clone()).map_err(|full| {
            let (max, detail) = match full {
                Full::All(max) => (max, format!("all {max} places of the pool {} are taken", self.name)),
                Full::Share(max) => {
                    (max, format!("this token has {max} places of the pool {}, as many as one may have", self.name))
                }
            };
            let refusal = Error::new(Code::ConcurrencyLimitExceeded, detail);
            refusal.with("pool", self.name).with("max", max).retry_after(1_000)
        })
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.places.taken()
    }
}

/// Statuses begin here.
const STATUS_MIN: u16 = 100;
/// And are fewer than this.
const STATUSES: usize = 900;

/// The server's own counters.
pub(crate) struct Counters {
    /// By status, from [`STATUS_MIN`] on.
    responses: Box<[AtomicU64]>,
    refused_connections: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let responses = (0..STATUSES).map(|_| AtomicU64::default()).collect();
        Self { responses, refused_connections: AtomicU64::default() }
    }
}

impl Counters {
    pub(crate) fn answered(&self, status: StatusCode) {
        let place = usize::from(status.as_u16() - STATUS_MIN);
        if let Some(count) = self.responses.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection from an address that has its share; gives how many there were.
    pub(crate) fn refused_connection(&self) -> u64 {
        self.refused_connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Connections that were closed because their address had its share.
    pub(crate) fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Responses by status.
    pub(crate) fn responses(&self) -> BTreeMap<u16, u64> {
        let counts = self.responses.iter().map(|count| count.load(Ordering::Relaxed));
        (STATUS_MIN..).zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}
