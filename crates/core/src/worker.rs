//! Workers and servers, as they announce themselves. A registration lives like a lease: the instant beside the
//! document is its end, heartbeats move it without rewriting the document, and its `due` entry removes what died.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::capability::CapabilitySet;
use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::id::{LeaseEpoch, LeaseId};
use crate::index::{self, DocumentLease, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::op::parts;
use crate::partition::digest16;
use crate::tool::ToolDefinition;
use crate::{document, limits, text};

/// The registration of a process as a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The namespace it works in.
    pub namespace: String,
    /// The worker: several processes may be the same one.
    pub worker_id: String,
    /// The process, unique in the namespace.
    pub instance_id: String,
    /// The lanes it serves.
    pub lanes: BTreeSet<String>,
    /// Its capabilities.
    pub capabilities: CapabilitySet,
    /// The kinds it serves; all when empty.
    pub kinds: BTreeSet<String>,
    /// Tasks it runs at once.
    pub capacity: u32,
    /// The version of its program; may be empty.
    pub version: String,
    /// Chosen anew by each process, so that a second one with the same instance id is noticed.
    pub nonce: String,
    /// The TTL of its leases, from which the life of the registration follows.
    pub lease_ttl_ms: i64,
    /// Those of its kinds that agents may call.
    pub tools: Vec<ToolDefinition>,
}

impl Registration {
    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        text::name("namespace", &self.namespace)?;
        text::name("worker_id", &self.worker_id)?;
        text::name("instance_id", &self.instance_id)?;
        check_lanes(&self.lanes)?;
        self.capabilities.check()?;
        check_kinds(&self.kinds)?;
        text::within("capacity", self.capacity, 1..=limits::WORKER_CAPACITY_MAX)?;
        text::optional_label("version", &self.version)?;
        text::label("nonce", &self.nonce)?;
        text::lease_ttl("lease_ttl_ms", self.lease_ttl_ms)?;
        check_tools(&self.tools, &self.lanes, &self.kinds)
    }
}

/// The lanes that a worker or a claim names: at least one, not too many, each with a proper name.
pub fn check_lanes(lanes: &BTreeSet<String>) -> Result<()> {
    if lanes.is_empty() {
        return Err(Error::of(Code::NoLanes).with("field", "lanes"));
    }
    if lanes.len() > limits::LANES_MAX {
        return Err(text::too_many("lanes", lanes.len(), limits::LANES_MAX));
    }
    lanes.iter().try_for_each(|lane| text::name("lanes", lane))
}

/// The kinds that a worker or a claim names: not too many, each with a proper name.
pub fn check_kinds(kinds: &BTreeSet<String>) -> Result<()> {
    if kinds.len() > limits::KINDS_MAX {
        return Err(text::too_many("kinds", kinds.len(), limits::KINDS_MAX));
    }
    kinds.iter().try_for_each(|kind| text::kind("kinds", kind))
}

/// The tools that a worker defines: not too many, each once, of a kind and in a lane that it serves.
pub fn check_tools(tools: &[ToolDefinition], lanes: &BTreeSet<String>, kinds: &BTreeSet<String>) -> Result<()> {
    if tools.len() > limits::TOOLS_PER_WORKER_MAX {
        return Err(text::too_many("tools", tools.len(), limits::TOOLS_PER_WORKER_MAX));
    }
    let mut defined = BTreeSet::new();
    parts::items("tools", tools, |tool| {
        tool.validate()?;
        let refused = |field: &str, why: &str| Err(Error::invalid(field, why).with("kind", &tool.kind));
        if !defined.insert(tool.kind.clone()) {
            return refused("kind", "is defined more than once");
        }
        if !kinds.is_empty() && !kinds.contains(&tool.kind) {
            return refused("kind", "is not among the kinds that the worker serves");
        }
        if tool.lane.as_ref().is_some_and(|lane| !lanes.contains(lane)) {
            return refused("lane", "is not among the lanes that the worker serves");
        }
        Ok(())
    })
}

/// How long a registration lives without a heartbeat: two lease TTLs, and not too short.
pub fn registration_ttl(lease_ttl_ms: i64) -> i64 {
    lease_ttl_ms.saturating_mul(2).max(limits::WORKER_TTL_MIN_MS)
}

document! {
    /// A registered worker process.
    pub struct Worker {
        /// The namespace it works in.
        "n" namespace: String,
        /// The worker: several processes may be the same one.
        "w" worker_id: String,
        /// The process, unique in the namespace.
        "i" instance_id: String,
        /// The lanes it serves.
        "l" lanes: BTreeSet<String>,
        /// Its capabilities.
        "c" capabilities: CapabilitySet,
        /// Tasks it runs at once.
        "p" capacity: u32,
        /// The version of its program.
        "v" version: String,
        /// The session that holds the registration.
        "s" nonce: String,
        /// Counts the sessions under this instance id; with the nonce it fences off old ones.
        "e" epoch: LeaseEpoch,
        /// When this session registered first.
        "r" registered_at: i64,
        /// How long it lives after each heartbeat.
        "t" ttl_ms: i64,
        /// The kinds it serves; all when empty.
        "k" kinds: BTreeSet<String>,
    }
}

impl Document for Worker {
    const KIND: u8 = kind::WORKER;
    crate::encoding::compiled_here!();
}

impl Indexed for Worker {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.instance_id)
    }

    fn index_entries(&self, lease_until: i64) -> Vec<Entry> {
        let listing = index::listing(kind::WORKER, &self.namespace);
        living_entries(&self.key(), listing, index::name_score(&self.instance_id), lease_until)
    }

    /// The condition that keeps an old session from renewing a registration that was taken over.
    fn document_lease(&self) -> DocumentLease {
        let lease_id = LeaseId(Uuid::from_bytes(digest16(&[b"session", self.nonce.as_bytes()])));
        DocumentLease { epoch: self.epoch, lease_id, ttl_ms: Some(self.ttl_ms) }
    }
}

impl Worker {
    /// The key of a worker process by its instance id.
    pub fn key_of(namespace: &str, instance_id: &str) -> Key {
        Key::new(kind::WORKER, &[&digest16(&[namespace.as_bytes(), instance_id.as_bytes()])])
    }

    /// Registers a process. The same session replaces what it said before; a registration that ran out is taken over;
    /// one that lives belongs to another process. `existing` comes with the instant its registration ends.
    pub fn register(existing: Option<(&Worker, i64)>, registration: Registration, now: i64) -> Result<Worker> {
        registration.validate()?;
        let mut registered = Worker {
            ttl_ms: registration_ttl(registration.lease_ttl_ms),
            namespace: registration.namespace,
            worker_id: registration.worker_id,
            instance_id: registration.instance_id,
            lanes: registration.lanes,
            capabilities: registration.capabilities,
            kinds: registration.kinds,
            capacity: registration.capacity,
            version: registration.version,
            nonce: registration.nonce,
            epoch: LeaseEpoch(1),
            registered_at: now,
            ..Default::default()
        };
        if let Some((existing, lease_until)) = existing {
            let same_session = existing.nonce == registered.nonce;
            let lives = lease_until > now;
            if lives && !same_session {
                return Err(existing.duplicate().retry_after(lease_until - now));
            }
            if lives {
                registered.epoch = existing.epoch;
                registered.registered_at = existing.registered_at;
            } else {
                registered.epoch = existing.epoch.next();
            }
        }
        Ok(registered)
    }

    /// Whether it serves a kind of work.
    pub fn serves(&self, kind: &str) -> bool {
        self.kinds.is_empty() || self.kinds.contains(kind)
    }

    /// Whether this session may keep the registration alive. Renewal itself moves only the instant beside the
    /// document, guarded by [`Indexed::held`].
    pub fn check_heartbeat(&self, nonce: &str, lease_until: i64, now: i64) -> Result<()> {
        if self.nonce != nonce {
            return Err(self.duplicate());
        }
        if lease_until <= now {
            return Err(Error::of(Code::WorkerNotFound).with("instance_id", &self.instance_id));
        }
        Ok(())
    }

    /// Whether a session may end the registration; an operator (no nonce) always may.
    pub fn check_deregister(&self, nonce: Option<&str>) -> Result<()> {
        match nonce {
            Some(nonce) if nonce != self.nonce => Err(self.duplicate()),
            _ => Ok(()),
        }
    }

    /// The view of it, given when the registration ends and how many leases the process holds.
    pub fn view(&self, lease_until: i64, leases_held: u64) -> WorkerView {
        WorkerView {
            namespace: self.namespace.clone(),
            worker_id: self.worker_id.clone(),
            instance_id: self.instance_id.clone(),
            lanes: self.lanes.clone(),
            capabilities: self.capabilities.clone(),
            kinds: self.kinds.clone(),
            capacity: self.capacity,
            version: self.version.clone(),
            registered_at: self.registered_at,
            last_heartbeat_at: lease_until.saturating_sub(self.ttl_ms).max(self.registered_at),
            expires_at: lease_until,
            leases_held,
        }
    }

    fn duplicate(&self) -> Error {
        let detail = format!("another live process is registered as {}", self.instance_id);
        Error::new(Code::DuplicateWorkerInstance, detail).with("instance_id", &self.instance_id)
    }
}

/// A worker process as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerView {
    /// The namespace it works in.
    pub namespace: String,
    /// The worker.
    pub worker_id: String,
    /// The process.
    pub instance_id: String,
    /// The lanes it serves.
    pub lanes: BTreeSet<String>,
    /// Its capabilities.
    pub capabilities: CapabilitySet,
    /// The kinds it serves; all when empty.
    #[serde(default)]
    pub kinds: BTreeSet<String>,
    /// Tasks it runs at once.
    pub capacity: u32,
    /// The version of its program.
    pub version: String,
    /// When its session registered first.
    pub registered_at: i64,
    /// When it last said that it lives.
    pub last_heartbeat_at: i64,
    /// When it counts as gone without another heartbeat.
    pub expires_at: i64,
    /// Leases it holds.
    pub leases_held: u64,
}

document! {
    /// A server process; partitions are shared out among those that live.
    pub struct Server {
        /// Minted anew by each process.
        "i" server_id: String,
        /// Where it listens; may be empty for one that does not.
        "a" address: String,
        /// The version of its program.
        "v" version: String,
        /// When it started.
        "s" started_at: i64,
        /// How long it lives after each heartbeat.
        "t" ttl_ms: i64,
    }
}

impl Document for Server {
    const KIND: u8 = kind::SERVER;
    crate::encoding::compiled_here!();
}

impl Indexed for Server {
    fn key(&self) -> Key {
        Self::key_of(&self.server_id)
    }

    fn index_entries(&self, lease_until: i64) -> Vec<Entry> {
        let listing = index::listing(kind::SERVER, "");
        living_entries(&self.key(), listing, self.started_at, lease_until)
    }

    fn document_lease(&self) -> DocumentLease {
        let lease_id = LeaseId(Uuid::from_bytes(digest16(&[b"server", self.server_id.as_bytes()])));
        DocumentLease { epoch: LeaseEpoch(1), lease_id, ttl_ms: Some(self.ttl_ms) }
    }
}

impl Server {
    /// The key of a server by its id.
    pub fn key_of(server_id: &str) -> Key {
        Key::new(kind::SERVER, &[&digest16(&[server_id.as_bytes()])])
    }

    /// A server that starts now.
    pub fn start(server_id: &str, address: &str, ttl_ms: i64, now: i64) -> Result<Self> {
        text::name("server_id", server_id)?;
        text::optional_label("address", address)?;
        text::within("ttl_ms", ttl_ms, limits::WORKER_TTL_MIN_MS..=limits::DURATION_MAX_MS)?;
        let (server_id, address) = (server_id.to_owned(), address.to_owned());
        Ok(Self { server_id, address, started_at: now, ttl_ms, ..Default::default() })
    }
}

/// The entries of something that lives by heartbeats.
fn living_entries(key: &Key, listing: crate::IndexName, score: i64, lease_until: i64) -> Vec<Entry> {
    let mut entries = vec![Entry { index: listing, member: key.clone(), score }];
    if lease_until != 0 {
        entries.push(Due::Lease.entry(key, lease_until));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            namespace: "team".into(),
            worker_id: "w".into(),
            instance_id: "w-1".into(),
            lanes: BTreeSet::from(["default".into()]),
            capabilities: CapabilitySet::new(["gpu"]).unwrap(),
            kinds: BTreeSet::new(),
            capacity: 4,
            version: "1.0".into(),
            nonce: "first".into(),
            lease_ttl_ms: 30_000,
            tools: Vec::new(),
        }
    }

    fn refused(change: impl FnOnce(&mut Registration)) -> Error {
        let mut registration = registration();
        change(&mut registration);
        Worker::register(None, registration, 1_000).unwrap_err()
    }

    #[test]
    fn the_same_session_replaces_what_it_said_also_by_nothing() {
        let first = Worker::register(None, registration(), 1_000).unwrap();
        assert_eq!((first.registered_at, first.ttl_ms, first.epoch), (1_000, 60_000, LeaseEpoch(1)));
        let lanes = BTreeSet::from(["other".to_owned()]);
        let capabilities = CapabilitySet::default();
        let change = Registration { lanes: lanes.clone(), capabilities: capabilities.clone(), ..registration() };
        let again = Worker::register(Some((&first, 61_000)), change, 2_000).unwrap();
        assert_eq!((&again.lanes, &again.capabilities), (&lanes, &capabilities));
        assert_eq!((again.registered_at, again.document_lease()), (1_000, first.document_lease()));
    }

    #[test]
    fn another_live_session_is_refused_and_a_dead_one_is_taken_over() {
        let first = Worker::register(None, registration(), 1_000).unwrap();
        let second = Registration { nonce: "second".into(), ..registration() };
        let error = Worker::register(Some((&first, 61_000)), second.clone(), 60_999).unwrap_err();
        assert_eq!((error.code, error.retry_after_ms), (Code::DuplicateWorkerInstance, Some(1)));
        let taken = Worker::register(Some((&first, 61_000)), second, 61_000).unwrap();
        assert_eq!((taken.registered_at, taken.epoch), (61_000, LeaseEpoch(2)));
        assert_ne!(taken.document_lease(), first.document_lease());
        assert_eq!(taken.key(), first.key());
        assert_eq!(taken.check_heartbeat("first", 99_000, 62_000).unwrap_err().code, Code::DuplicateWorkerInstance);
        assert_eq!(taken.check_deregister(Some("first")).unwrap_err().code, Code::DuplicateWorkerInstance);
        taken.check_deregister(Some("second")).unwrap();
        taken.check_deregister(None).unwrap();
    }

    #[test]
    fn a_heartbeat_after_the_end_asks_to_register_again() {
        let worker = Worker::register(None, registration(), 1_000).unwrap();
        worker.check_heartbeat("first", 61_000, 60_999).unwrap();
        let error = worker.check_heartbeat("first", 61_000, 61_000).unwrap_err();
        assert_eq!((error.code, error.code.retryable()), (Code::WorkerNotFound, true));
    }

    #[test]
    fn a_registration_ends_by_its_due_entry_and_shows_its_last_heartbeat() {
        let worker = Worker::register(None, registration(), 1_000).unwrap();
        assert!(worker.index_entries(71_000).contains(&Due::Lease.entry(&worker.key(), 71_000)));
        assert_eq!(worker.index_entries(0).len(), 1);
        let view = worker.view(71_000, 3);
        assert_eq!((view.last_heartbeat_at, view.expires_at, view.leases_held), (11_000, 71_000, 3));
        assert_eq!(Worker::decode(&worker.encode()).unwrap(), worker);
    }

    #[test]
    fn lanes_hold_at_their_limit_and_not_one_past_it_and_none_has_its_own_code() {
        let of = |count: usize| (0..count).map(|n| format!("lane-{n}")).collect::<BTreeSet<_>>();
        check_lanes(&of(1)).unwrap();
        check_lanes(&of(limits::LANES_MAX)).unwrap();
        assert_eq!(refused(|r| r.lanes = of(limits::LANES_MAX + 1)).details["problem"], "too_many");
        assert_eq!(refused(|r| r.lanes = of(0)).code, Code::NoLanes);
        assert_eq!(refused(|r| r.lanes = BTreeSet::from(["a b".into()])).details["field"], "lanes");
    }

    #[test]
    fn the_other_fields_hold_at_their_limits_and_not_one_past_them() {
        for capacity in [1, limits::WORKER_CAPACITY_MAX] {
            Registration { capacity, ..registration() }.validate().unwrap();
        }
        for capacity in [0, limits::WORKER_CAPACITY_MAX + 1] {
            assert_eq!(refused(|r| r.capacity = capacity).details["field"], "capacity");
        }
        assert_eq!(refused(|r| r.lease_ttl_ms = limits::LEASE_TTL_MIN_MS - 1).details["field"], "lease_ttl_ms");
        assert_eq!(refused(|r| r.nonce = String::new()).details["field"], "nonce");
        let unchecked: CapabilitySet = serde_json::from_str(r#"["a b"]"#).unwrap();
        assert_eq!(refused(|r| r.capabilities = unchecked).code, Code::InvalidCapabilities);
    }

    #[test]
    fn a_registration_lives_two_lease_ttls_and_never_too_short() {
        let least = limits::WORKER_TTL_MIN_MS;
        assert_eq!([1, least / 2, least / 2 + 1, 30_000].map(registration_ttl), [least, least, least + 2, 60_000]);
    }

    #[test]
    fn servers_live_the_same_way() {
        let server = Server::start("s-1", "127.0.0.1:7171", limits::WORKER_TTL_MIN_MS, 5).unwrap();
        assert!(server.index_entries(9).contains(&Due::Lease.entry(&server.key(), 9)));
        assert_eq!(Server::decode(&server.encode()).unwrap(), server);
        assert!(Server::start("s-1", "", limits::WORKER_TTL_MIN_MS - 1, 5).is_err());
        assert_ne!(server.document_lease(), Server { server_id: "s-2".into(), ..server.clone() }.document_lease());
    }
}
