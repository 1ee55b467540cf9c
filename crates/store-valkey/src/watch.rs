//! Hints from all processes, by pub/sub on connections of their own.
//!
//! On a standalone server there is one channel. In a cluster each partition has a channel that hashes to its slot, and
//! each primary has a listener of its own for the partitions it has, so that a primary that is away silences no other.
//! Whenever a subscription had to be renewed, hints may have been lost, and the watchers are told to look at everything
//! once.
//!
//! A process that listens alone at a server publishes nothing there: its hints would only come back to it. See
//! [`HintGate`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use ff_core::{Partition, PartitionConfig};
use ff_store::{Hint, HintSender, Hints, Result, StoreError, WatchEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::call::{CHANNEL, slot_channel};
use crate::hint_gate::{HintGate, Place};
use crate::refusal::Refusal;
use crate::resp::{Frame, command, take_frame};
use crate::topology::{Topology, slot_of};

/// A silent connection is asked for a sign of life this often, and given up when none came until the next time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Partitions beyond the default ones are used for the first time one after another; the subscriptions of those that
/// come within this time are made together.
const GATHER: Duration = Duration::from_millis(50);

/// The listener of the whole process.
pub(crate) struct Watcher {
    sender: Mutex<Option<HintSender>>,
    partitions: Arc<Partitions>,
    hint_gates: Arc<HintGates>,
    task: AbortHandle,
}

/// The gates for hints, by the address of the server.
#[derive(Default)]
struct HintGates(Mutex<BTreeMap<String, Arc<HintGate>>>);

impl HintGates {
    /// Whether hints must be published at a server. They must at a server without a listener, because its other
    /// listeners are not known.
    fn is_open(&self, address: &str) -> bool {
        self.known().get(address).is_none_or(|gate| gate.is_open())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Arc<HintGate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The partitions that are listened to in a cluster.
struct Partitions {
    sharded: bool,
    more: Mutex<BTreeSet<Partition>>,
    grown: Notify,
}

impl Partitions {
    /// The store does not know how many partitions the deployment has: it listens to the default ones and to every
    /// other that this process has used.
    fn add(&self, partition: Partition) {
        let limit = match partition.family {
            ff_core::Family::Flow => PartitionConfig::CLUSTER.flow,
            ff_core::Family::Budget => PartitionConfig::CLUSTER.budget,
            ff_core::Family::Quota => PartitionConfig::CLUSTER.quota,
            ff_core::Family::System => 1,
        };
        if !self.sharded || u32::from(partition.number) < limit {
            return;
        }
        if self.more.lock().unwrap_or_else(PoisonError::into_inner).insert(partition) {
            self.grown.notify_one();
        }
    }

    fn all(&self) -> Vec<Partition> {
        let more = self.more.lock().unwrap_or_else(PoisonError::into_inner);
        PartitionConfig::CLUSTER.all().chain(more.iter().copied()).collect()
    }
}

impl Watcher {
    /// Begins to listen; returns when each subscription is made or was tried once, or after the connect timeout. It
    /// fails if the user has no right to listen.
    pub(crate) async fn start(topology: Arc<Topology>) -> Result<Self> {
        let sender = HintSender::default();
        let sharded = topology.dialer.options.cluster;
        let partitions = Arc::new(Partitions { sharded, more: Mutex::default(), grown: Notify::new() });
        let patience = topology.dialer.options.connect_timeout;
        let (ready, tried) = oneshot::channel();
        let hint_gates = Arc::<HintGates>::default();
        let (for_all, of_partitions) = (hint_gates.clone(), partitions.clone());
        let listening = Listening { topology, sender: sender.clone(), partitions: of_partitions, hint_gates: for_all };
        let task = tokio::spawn(listening.run(ready)).abort_handle();
        let watcher = Self { sender: Mutex::new(Some(sender)), partitions, hint_gates, task };
        // A process that cannot hear hints yet works all the same, only slower.
        match timeout(patience, tried).await {
            Ok(Ok(Some(denied))) => Err(StoreError::Config(denied)),
            _ => Ok(watcher),
        }
    }

    /// Whether hints of commits at a server must be published, because other processes may listen there.
    pub(crate) fn has_other_listeners(&self, address: &str) -> bool {
        self.hint_gates.is_open(address)
    }

    /// Passes a hint to the watchers of this process.
    pub(crate) fn tell(&self, hint: &Hint) {
        if let Some(sender) = self.sender.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            sender.send(WatchEvent::Hint(hint.clone()));
        }
    }

    /// Makes sure that the hints of a partition are heard.
    pub(crate) fn touch(&self, partition: Partition) {
        self.partitions.add(partition);
    }

    pub(crate) fn subscribe(&self) -> Hints {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        // After closing, the sender of this receiver is gone, so its stream ends at once.
        sender.as_ref().map_or_else(|| HintSender::default().subscribe(), HintSender::subscribe)
    }

    /// Ends listening and the streams of all watchers.
    pub(crate) fn stop(&self) {
        self.task.abort();
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The result of a listener's first attempt.
enum Tried {
    Standing,
    Failed,
    /// The user has no right to listen.
    Denied(String),
}

struct Listening {
    topology: Arc<Topology>,
    sender: HintSender,
    partitions: Arc<Partitions>,
    hint_gates: Arc<HintGates>,
}

/// The listener at one server, and its channels. It ends with this handle.
struct Listened {
    channels: Vec<Vec<u8>>,
    task: AbortHandle,
}

impl Drop for Listened {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listening {
    /// Keeps a listener at each server that has something to hear. Never ends.
    async fn run(self, ready: oneshot::Sender<Option<String>>) {
        let mut changes = self.topology.changes();
        let mut listened = BTreeMap::<String, Listened>::new();
        changes.mark_unchanged();
        let assignments = self.assignments();
        let (tried, mut first) = mpsc::channel(assignments.len().max(1));
        for (address, channels) in assignments {
            let task = self.listen(address.clone(), channels.clone(), Some(tried.clone()));
            listened.insert(address, Listened { channels, task });
        }
        drop(tried);
        let mut denied = None;
        while let Some(tried) = first.recv().await {
            if let Tried::Denied(why) = tried {
                denied = Some(why);
            }
        }
        // An error here means that the caller gave up before the store was open.
        let _ = ready.send(denied);
        loop {
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = self.partitions.grown.notified() => sleep(GATHER).await,
            }
            let assignments = self.assignments();
            listened.retain(|address, known| assignments.get(address) == Some(&known.channels));
            self.hint_gates.known().retain(|address, _| listened.contains_key(address));
            for (address, channels) in assignments {
                if let Entry::Vacant(unheard) = listened.entry(address) {
                    let task = self.listen(unheard.key().clone(), channels.clone(), None);
                    unheard.insert(Listened { channels, task });
                }
            }
        }
    }

    /// Starts a listener that begins again whenever it ends.
    fn listen(&self, address: String, channels: Vec<Vec<u8>>, mut tried: Option<mpsc::Sender<Tried>>) -> AbortHandle {
        let gate = Arc::<HintGate>::default();
        self.hint_gates.known().insert(address.clone(), gate.clone());
        let listener = Listener { sharded: self.partitions.sharded, channels, sender: self.sender.clone(), gate };
        let topology = self.topology.clone();
        let listening = async move {
            let mut backoff = BACKOFF_MIN;
            loop {
                let mut stood = false;
                let ended = listener.run(&topology, &address, &mut tried, &mut stood).await;
                listener.gate.assume();
                let why = ended.err().unwrap_or_default();
                tracing::debug!(address, why, "a subscription ended");
                // Only the first attempt is waited for.
                if let Some(tried) = tried.take() {
                    let denied = matches!(Refusal::parse(&why), Refusal::Denied);
                    let first = if denied { Tried::Denied(format!("{address}: {why}")) } else { Tried::Failed };
                    let _ = tried.send(first).await;
                }
                if stood {
                    backoff = BACKOFF_MIN;
                }
                topology.doubt();
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        };
        tokio::spawn(listening).abort_handle()
    }

    /// Which channels to hear from which server.
    fn assignments(&self) -> BTreeMap<String, Vec<Vec<u8>>> {
        let map = self.topology.map();
        let mut assignments = BTreeMap::<String, Vec<Vec<u8>>>::new();
        if !self.partitions.sharded {
            if let Some(primary) = map.primary(0) {
                assignments.insert(primary.address.clone(), vec![CHANNEL.to_vec()]);
            }
            return assignments;
        }
        for partition in self.partitions.all() {
            if let Some(primary) = map.primary(slot_of(partition)) {
                assignments.entry(primary.address.clone()).or_default().push(slot_channel(partition));
            }
        }
        assignments
    }
}

/// One connection that only listens.
struct Listener {
    sharded: bool,
    channels: Vec<Vec<u8>>,
    sender: HintSender,
    gate: Arc<HintGate>,
}

impl Listener {
    /// Listens until the connection breaks. Once it is subscribed, it also keeps track of other listeners.
    async fn run(
        &self,
        topology: &Topology,
        address: &str,
        tried: &mut Option<mpsc::Sender<Tried>>,
        stood: &mut bool,
    ) -> std::result::Result<(), String> {
        let standing = Notify::new();
        let looking = async {
            standing.notified().await;
            let node = topology.node(address);
            let place = Place { node: &node, sharded: self.sharded, channels: &self.channels };
            self.gate.keep_looking(&place).await;
        };
        tokio::select! {
            biased;
            ended = self.hear(topology, address, tried, stood, &standing) => ended,
            () = looking => Ok(()),
        }
    }

    async fn hear(
        &self,
        topology: &Topology,
        address: &str,
        tried: &mut Option<mpsc::Sender<Tried>>,
        stood: &mut bool,
        standing: &Notify,
    ) -> std::result::Result<(), String> {
        let mut stream = topology.dialer.dial(address).await.map_err(|why| why.to_string())?.stream;
        let verb: &[u8] = if self.sharded { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
        let requests: Vec<u8> = self.channels.iter().flat_map(|channel| command(&[verb, channel])).collect();
        stream.write_all(&requests).await.map_err(|why| why.to_string())?;
        let mut inbox = BytesMut::with_capacity(16 * 1024);
        let mut missing = self.channels.len();
        let mut asked = false;
        loop {
            match timeout(SIGN_OF_LIFE, stream.read_buf(&mut inbox)).await {
                Ok(Ok(0)) => return Err("the server closed the connection".into()),
                Ok(Ok(_)) => asked = false,
                Ok(Err(why)) => return Err(why.to_string()),
                Err(_) if asked => return Err("the server gave no sign of life".into()),
                Err(_) => {
                    stream.write_all(&command(&[b"PING"])).await.map_err(|why| why.to_string())?;
                    asked = true;
                }
            }
            while let Some(frame) = take_frame(&mut inbox)? {
                if self.take(frame)? {
                    missing -= 1;
                    if missing == 0 {
                        *stood = true;
                        standing.notify_one();
                        match tried.take() {
                            // Before the store was opened no watcher can have missed a hint.
                            Some(tried) => drop(tried.send(Tried::Standing).await),
                            None => self.sender.send(WatchEvent::Resync),
                        }
                    }
                }
            }
        }
    }

    /// Passes a hint on; returns whether the frame confirms a subscription.
    fn take(&self, frame: Frame) -> std::result::Result<bool, String> {
        let items = match frame {
            Frame::Array(items) => items,
            Frame::Error(text) => return Err(text),
            _ => return Ok(false),
        };
        match (items.first().and_then(Frame::text), items.get(2)) {
            (Some("message" | "smessage"), Some(Frame::Bulk(payload))) => {
                let channel = if let Some(Frame::Bulk(channel)) = items.get(1) { &channel[..] } else { b"" };
                match parse_hint(payload) {
                    Some(hint) => self.sender.send(WatchEvent::Hint(hint)),
                    None if self.gate.heard(channel, payload) => self.sender.send(WatchEvent::Resync),
                    None => {}
                }
                Ok(false)
            }
            (Some("subscribe" | "ssubscribe"), _) => Ok(true),
            (Some("unsubscribe" | "sunsubscribe"), _) => Err("the channel moved to another server".into()),
            _ => Ok(false),
        }
    }
}

fn parse_hint(payload: &bytes::Bytes) -> Option<Hint> {
    let ordinal = i64::from_be_bytes(payload.get(..8)?.try_into().ok()?);
    Some(Hint { partition: Partition::from_ordinal(ordinal)?, payload: payload.slice(8..) })
}
