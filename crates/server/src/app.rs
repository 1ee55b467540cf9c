//! State that all requests share: the engine, the configuration, and places in the pools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use ff_core::op::OperationInfo;
use ff_core::{Code, Error, Result};
use ff_engine::Engine;
use hyper::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::Config;
use crate::feeds::Feeds;
use crate::queues::Queues;
use crate::strangers::Strangers;
use crate::trace::Tracer;

/// The server behind every connection.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
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
        let pools = Pools::new(config.stream_ops_max, config.sse_max);
        let tracer = config.otlp.as_ref().map(|otlp| Tracer::start(otlp.clone()));
        let (feeds, queues, counters) = (Feeds::default(), Queues::default(), Counters::default());
        let strangers = Strangers::default();
        Arc::new(Self { engine, config, pools, feeds, queues, counters, strangers, tracer, stop })
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
    pub(crate) stream_ops: Pool,
    pub(crate) sse: Pool,
}

impl Pools {
    fn new(stream_ops: usize, sse: usize) -> Self {
        Self { stream_ops: Pool::new("stream_ops", stream_ops), sse: Pool::new("sse", sse) }
    }

    /// A place for an operation; most need none.
    pub(crate) fn enter_operation(&self, info: &OperationInfo) -> Result<Option<OwnedSemaphorePermit>> {
        info.watching.then(|| self.stream_ops.enter()).transpose()
    }
}

/// A number of places.
pub(crate) struct Pool {
    name: &'static str,
    max: usize,
    places: Arc<Semaphore>,
}

impl Pool {
    fn new(name: &'static str, max: usize) -> Self {
        Self { name, max, places: Arc::new(Semaphore::new(max)) }
    }

    /// A place until the permit is dropped.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("all {} places of the pool {} are taken", self.max, self.name);
            let refusal = Error::new(Code::ConcurrencyLimitExceeded, detail);
            refusal.with("pool", self.name).with("max", self.max).retry_after(1_000)
        })
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.max.saturating_sub(self.places.available_permits())
    }
}

/// The server's own counters.
#[derive(Default)]
pub(crate) struct Counters {
    responses: Mutex<BTreeMap<u16, u64>>,
}

impl Counters {
    pub(crate) fn answered(&self, status: StatusCode) {
        *self.responses.lock().expect("no holder of this lock panics").entry(status.as_u16()).or_default() += 1;
    }

    /// Responses by status.
    pub(crate) fn responses(&self) -> BTreeMap<u16, u64> {
        self.responses.lock().expect("no holder of this lock panics").clone()
    }
}
