//! Which server has which slot now. A background task asks the servers again whenever a call finds that something
//! changed.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::{Family, Partition};
use ff_store::{Result, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Body, CallError, Connection, Reply, Request};
use crate::health::Health;
use crate::primary;
use crate::resp::{Frame, command};
use crate::transport::Dialer;

/// Slots of a Cluster.
pub(crate) const SLOTS: u16 = 16_384;
/// Connections to one node for reads, and for commits.
const CONNECTIONS: usize = 2;
/// Connections for commits that wait for replicas. A WAIT blocks its connection, so more connections are needed to keep
/// the server busy.
const WAITING_CONNECTIONS: usize = 4;
/// A node that does not answer a question about the topology within this time is skipped.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest time between two discoveries of the topology.
const DISCOVERY_PAUSE: Duration = Duration::from_millis(50);

/// How long commits wait for a moving slot, counted from the first commit that was refused because of the move.
const MOVE_PATIENCE: Duration = Duration::from_secs(3);
/// If no call has met a moving slot for this long, its move has ended.
const MOVE_FORGOTTEN: Duration = Duration::from_secs(1);

/// The purpose of a call, which decides the connection that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Commit,
}

impl Purpose {
    pub(crate) fn of(body: &Body) -> Self {
        match body {
            Body::Command(_) => Purpose::Read,
            Body::Commit(_) => Purpose::Commit,
        }
    }
}

/// A server and our connections to it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: String,
    /// Names the server's clock.
    pub(crate) clock: u64,
    health: Arc<Health>,
    reads: Vec<Connection>,
    commits: Vec<Connection>,
}

impl Node {
    fn new(address: &str, dialer: &Arc<Dialer>) -> Self {
        let health = Arc::<Health>::default();
        let connection = || Connection::new(address.to_owned(), dialer.clone(), health.clone());
        let connections = |count: usize| (0..count).map(|_| connection()).collect::<Vec<_>>();
        let commits = if dialer.options.confirms() { WAITING_CONNECTIONS } else { CONNECTIONS };
        let (reads, commits) = (connections(CONNECTIONS), connections(commits));
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Self { address: address.to_owned(), clock: hasher.finish(), health, reads, commits }
    }

    /// For how long every attempt to connect has failed.
    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        self.health.unreachable_for()
    }

    /// This process of the server was found to be in charge.
    pub(crate) fn trust(&self, run_id: &str) {
        self.health.trust(run_id);
    }

    /// Sends a request; calls of one slot share a connection, so that they travel together and in order.
    pub(crate) async fn call(&self, slot: u16, request: Request) -> std::result::Result<Reply, CallError> {
        let pool = match Purpose::of(&request.body) {
            Purpose::Read => &self.reads,
            Purpose::Commit => &self.commits,
        };
        pool[usize::from(slot) % pool.len()].call(request).await
    }

    /// A command about the server itself.
    pub(crate) async fn ask(&self, parts: &[&[u8]]) -> std::result::Result<Frame, CallError> {
        match self.call(0, Request::plain(command(parts))).await? {
            Reply::Frame(frame) => Ok(frame),
            Reply::Committed(_) => Err(CallError::Lost("a command was answered as a commit".into())),
        }
    }
}

/// A stretch of slots and the servers that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) primary: String,
    pub(crate) replicas: Vec<String>,
}

/// A view of the deployment.
#[derive(Debug, Default)]
pub(crate) struct Map {
    shards: Vec<Shard>,
    /// The primary of each shard, in the order of the shards. It is kept here because it is looked up several times for
    /// every task.
    primaries: Vec<Arc<Node>>,
}

impl Map {
    /// The primary of a slot.
    pub(crate) fn primary(&self, slot: u16) -> Option<&Arc<Node>> {
        let at = self.shards.partition_point(|shard| shard.last < slot);
        self.shards.get(at).filter(|shard| shard.first <= slot)?;
        self.primaries.get(at)
    }

    /// All primaries, in a fixed order.
    pub(crate) fn primaries(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.primaries.clone();
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes.dedup_by(|a, b| a.address == b.address);
        nodes
    }

    /// The addresses of all replicas.
    pub(crate) fn replicas(&self) -> Vec<String> {
        let mut replicas: Vec<String> = self.shards.iter().flat_map(|shard| shard.replicas.clone()).collect();
        replicas.sort();
        replicas.dedup();
        replicas
    }

    /// The number of slots that no server has.
    pub(crate) fn uncovered(&self) -> usize {
        let covered: usize = self.shards.iter().map(|shard| usize::from(shard.last - shard.first) + 1).sum();
        usize::from(SLOTS) - covered.min(usize::from(SLOTS))
    }
}

/// The deployment as it is known now.
pub(crate) struct Topology {
    pub(crate) dialer: Arc<Dialer>,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    map: watch::Sender<Arc<Map>>,
    stale: Notify,
    /// Slots that are on their way to another server.
    moving: Mutex<HashMap<u16, Move>>,
    /// The primary of a standalone deployment that was taken last.
    pub(crate) reign: Mutex<Option<primary::Reign>>,
    /// Nothing is written at the servers, not even the reign of a new primary.
    pub(crate) only_looks: bool,
}

/// The instants at which the first and the latest commit met a moving slot.
struct Move {
    since: Instant,
    latest: Instant,
}

impl Topology {
    pub(crate) fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            nodes: Mutex::default(),
            map: watch::Sender::default(),
            stale: Notify::new(),
            moving: Mutex::default(),
            reign: Mutex::default(),
            only_looks: false,
        }
    }

    /// Makes it a topology for an inspection that changes nothing.
    pub(crate) fn only_looking(self) -> Self {
        Self { only_looks: true, ..self }
    }

    /// The present view.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.borrow().clone()
    }

    /// A receiver of new views.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Map>> {
        self.map.subscribe()
    }

    /// Asks for a fresh view soon.
    pub(crate) fn doubt(&self) {
        self.stale.notify_one();
    }

    /// Notes that a commit met a moving slot; returns whether the move has taken too long to wait for it.
    pub(crate) fn is_stuck(&self, slot: u16) -> bool {
        let now = Instant::now();
        let mut moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let known = moving.entry(slot).or_insert(Move { since: now, latest: now });
        if now - known.latest > MOVE_FORGOTTEN {
            known.since = now;
        }
        known.latest = now;
        now - known.since > MOVE_PATIENCE
    }

    /// A server by its address.
    pub(crate) fn node(&self, address: &str) -> Arc<Node> {
        let mut nodes = self.nodes();
        nodes.entry(address.to_owned()).or_insert_with(|| Arc::new(Node::new(address, &self.dialer))).clone()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<String, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discovers the deployment anew whenever a call doubts the present view. Never ends.
    pub(crate) async fn keep_fresh(self: Arc<Self>) {
        let mut told = String::new();
        loop {
            self.stale.notified().await;
            match self.discover().await {
                Ok(()) => told.clear(),
                Err(why) => {
                    let why = why.to_string();
                    if told != why {
                        tracing::warn!(why, "no view of the deployment");
                        told = why;
                    }
                    self.doubt();
                }
            }
            sleep(DISCOVERY_PAUSE).await;
        }
    }

    /// Makes a new view from the servers' answers.
    pub(crate) async fn discover(&self) -> Result<()> {
        let shards =
            if self.dialer.options.cluster { self.cluster_shards().await? } else { primary::find(self).await? };
        if self.map.borrow().shards == shards {
            return Ok(());
        }
        let primaries: Vec<Arc<Node>> = shards.iter().map(|shard| self.node(&shard.primary)).collect();
        let addresses: HashSet<&str> = shards.iter().map(|shard| shard.primary.as_str()).collect();
        // Servers that left keep their connections only as long as a call still uses them.
        let seeds = &self.dialer.options.hosts;
        self.nodes().retain(|address, _| addresses.contains(address.as_str()) || seeds.contains(address));
        tracing::info!(primaries = ?addresses, "servers of the store");
        self.map.send_replace(Arc::new(Map { shards, primaries }));
        Ok(())
    }

    /// The servers to ask: those we know, then those we were given.
    pub(crate) fn candidates(&self) -> Vec<Arc<Node>> {
        let mut candidates = self.map().primaries();
        for address in &self.dialer.options.hosts {
            if !candidates.iter().any(|node| node.address == *address) {
                candidates.push(self.node(address));
            }
        }
        candidates
    }

    async fn cluster_shards(&self) -> Result<Vec<Shard>> {
        let mut last = StoreError::Unavailable("no server to ask".into());
        let mut best: Option<Vec<Shard>> = None;
        for node in self.candidates() {
            match ask(&node, &[b"CLUSTER", b"SLOTS"]).await {
                Ok(Frame::Error(text)) if text.contains("cluster support disabled") => {
                    return Err(StoreError::Config(format!("{} is not part of a cluster", node.address)));
                }
                Ok(Frame::Error(text)) => last = StoreError::Unavailable(format!("{}: {text}", node.address)),
                Ok(frame) => match parse_shards(&node.address, frame) {
                    // A server that still names an unreachable primary knows less than one that names another.
                    Some(shards) if self.is_promising(&shards) => return Ok(shards),
                    Some(shards) => best = best.or(Some(shards)),
                    None => last = StoreError::Unavailable(format!("{} gave no slots", node.address)),
                },
                Err(error @ StoreError::Config(_)) => return Err(error),
                Err(error) => last = error,
            }
        }
        best.ok_or(last)
    }

    /// Whether a view differs from the present one, which a call has just found wrong.
    fn is_promising(&self, shards: &[Shard]) -> bool {
        self.map.borrow().shards != shards
    }
}

/// Asks a node about the deployment, with a short time limit.
pub(crate) async fn ask(node: &Node, parts: &[&[u8]]) -> Result<Frame> {
    match timeout(DISCOVERY_TIMEOUT, node.ask(parts)).await {
        Ok(Ok(frame)) => Ok(frame),
        Ok(Err(CallError::Denied(text))) => Err(StoreError::Config(text)),
        Ok(Err(why)) => Err(StoreError::Unavailable(why.at(&node.address))),
        Err(_) => Err(StoreError::Unavailable(format!("{} did not answer", node.address))),
    }
}

/// The answer of CLUSTER SLOTS: `[first, last, primary, replica...]` for each stretch.
fn parse_shards(asked: &str, frame: Frame) -> Option<Vec<Shard>> {
    let mut shards = Vec::new();
    for stretch in frame.into_array()? {
        let mut items = stretch.into_array()?.into_iter();
        let mut number = || u16::try_from(items.next()?.integer()?).ok().filter(|slot| *slot < SLOTS);
        let (first, last) = (number()?, number()?);
        let primary = address_of(asked, items.next()?)?;
        let replicas = items.filter_map(|replica| address_of(asked, replica)).collect();
        shards.push(Shard { first, last, primary, replicas });
    }
    shards.sort_by_key(|shard| shard.first);
    (!shards.is_empty()).then_some(shards)
}

/// `[host, port, ...]`; a server that does not know its own host is where we asked.
pub(crate) fn address_of(asked: &str, frame: Frame) -> Option<String> {
    let mut items = frame.into_array()?.into_iter();
    let host = items.next()?;
    let port = items.next()?;
    let port = port.integer().map(|port| port.to_string()).or_else(|| port.text().map(str::to_owned))?;
    Some(join_address(asked, host.text().unwrap_or_default(), &port))
}

/// An address in a MOVED or ASK error: `host:port`, the host perhaps missing.
pub(crate) fn redirect_address(asked: &str, address: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    Some(join_address(asked, host, port))
}

fn join_address(asked: &str, host: &str, port: &str) -> String {
    if host.is_empty() || host == "?" {
        let (host, _) = asked.rsplit_once(':').unwrap_or((asked, ""));
        return format!("{host}:{port}");
    }
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The hash slot of a partition's keys: CRC-16 (XMODEM) of what stands in the braces.
pub(crate) fn slot_of(partition: Partition) -> u16 {
    let mut crc = crc_of(0, partition.family.tag().as_bytes());
    if partition.family != Family::System {
        // The slot is computed many times for every task, and a formatter would cost more than the checksum.
        let mut digits = [0; 5];
        let (mut number, mut first) = (partition.number, digits.len());
        while first == digits.len() || number > 0 {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        crc = crc_of(crc, &digits[first..]);
    }
    crc % SLOTS
}

/// The checksum after more bytes.
fn crc_of(sum: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(sum, |sum, byte| {
        let [high, _] = sum.to_be_bytes();
        (sum << 8) ^ CRC_OF_BYTE[usize::from(high ^ byte)]
    })
}

/// The contribution of each byte to the checksum.
const CRC_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_hash_to_the_servers_slots() {
        // As CLUSTER KEYSLOT says.
        assert_eq!(slot_of(Partition::flow(7)), 2_729);
        assert_eq!(slot_of(Partition::SYSTEM), 15_725);
        for number in [0, 9, 10, 99, 255, 1_000, 65_535] {
            for partition in [Partition::flow(number), Partition::budget(number), Partition::quota(number)] {
                let tag = partition.to_string();
                assert_eq!(slot_of(partition), crc_of(0, tag.trim_matches(['{', '}']).as_bytes()) % SLOTS, "{tag}");
            }
        }
    }

    #[test]
    fn addresses_without_a_host_mean_the_server_that_was_asked() {
        assert_eq!(redirect_address("10.0.0.1:7000", ":7001").as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(redirect_address("a:1", "b:2").as_deref(), Some("b:2"));
        assert_eq!(redirect_address("a:1", "::1:2").as_deref(), Some("[::1]:2"));
    }

    #[test]
    fn slots_between_the_shards_have_no_primary() {
        let shard = |first, last| Shard { first, last, primary: "a:1".into(), replicas: Vec::new() };
        let map = Map { shards: vec![shard(0, 9), shard(20, 29)], primaries: Vec::new() };
        assert_eq!(map.uncovered(), usize::from(SLOTS) - 20);
        assert!(map.primary(15).is_none() && map.primary(40).is_none());
    }
}
