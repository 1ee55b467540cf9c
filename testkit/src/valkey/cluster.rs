//! A cluster of three primaries with a replica each.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use super::{Client, Server, Value, free_port, wait_until};

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
/// How long a silent server is waited for before its replica takes over, where a test wants to see that.
const NODE_TIMEOUT_MS: u32 = 2_000;
/// The timeout where a busy machine must not be mistaken for a dead server.
const PATIENT_NODE_TIMEOUT_MS: u32 = 30_000;

/// A slot on its way.
#[derive(Debug)]
pub struct Migration {
    slot: u16,
    from: usize,
    to: usize,
    source: RefCell<Client>,
}

/// Usually six servers: the first three begin as primaries, each followed by the one three places behind it.
#[derive(Debug)]
pub struct Cluster {
    /// The servers.
    pub nodes: Vec<Server>,
    node_timeout_ms: u32,
}

impl Cluster {
    /// Starts the servers and waits until the cluster is whole and the replicas follow. It fails over quickly.
    pub fn start() -> Self {
        Self::primaries(PRIMARIES, NODE_TIMEOUT_MS).with_replicas()
    }

    /// A cluster that does not fail over, however slow the machine is.
    pub fn start_patient() -> Self {
        Self::primaries(PRIMARIES, PATIENT_NODE_TIMEOUT_MS).with_replicas()
    }

    /// So many primaries and no replica, each with its share of the slots.
    pub fn of_primaries(count: usize) -> Self {
        let cluster = Self::primaries(count, PATIENT_NODE_TIMEOUT_MS);
        cluster.wait_until_whole();
        cluster
    }

    fn primaries(count: usize, node_timeout_ms: u32) -> Self {
        let nodes: Vec<Server> = (0..count).map(|_| start_node(node_timeout_ms)).collect();
        let border = |number: usize| SLOTS * number / count;
        for (number, node) in nodes.iter().enumerate() {
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            node.command(&format!("CLUSTER ADDSLOTSRANGE {} {}", border(number), border(number + 1) - 1));
        }
        let cluster = Self { nodes, node_timeout_ms };
        for node in &cluster.nodes[1..] {
            cluster.introduce(node);
        }
        cluster.wait_until_known(count);
        cluster
    }

    fn with_replicas(mut self) -> Self {
        let primaries = self.nodes.len();
        for number in 0..primaries {
            let node = start_node(self.node_timeout_ms);
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", primaries + number + 1));
            self.introduce(&node);
            self.nodes.push(node);
        }
        self.wait_until_known(2 * primaries);
        for number in 0..primaries {
            let primary = self.id(number);
            self.nodes[primaries + number].command(&format!("CLUSTER REPLICATE {primary}"));
        }
        for replica in &self.nodes[primaries..] {
            replica.wait_until_following();
        }
        self.wait_until_whole();
        self
    }

    /// The store address with all servers as seeds.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(Server::address).collect();
        format!("valkey://{}?cluster=true", hosts.join(","))
    }

    /// Adds a primary without slots and returns its position.
    pub fn add_node(&mut self) -> usize {
        let node = start_node(self.node_timeout_ms);
        self.introduce(&node);
        self.nodes.push(node);
        self.wait_until_known(self.nodes.len());
        self.wait_until_whole();
        self.nodes.len() - 1
    }

    /// Adds a replica of the server at a position, and waits until it follows.
    pub fn add_replica(&mut self, of: usize) {
        let number = self.add_node();
        let primary = self.id(of);
        self.nodes[number].command(&format!("CLUSTER REPLICATE {primary}"));
        self.nodes[number].wait_until_following();
    }

    /// The position of the server that has a slot now, as a living server sees it.
    pub fn owner(&self, slot: u16) -> usize {
        self.find_owner(slot).unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    fn find_owner(&self, slot: u16) -> Option<usize> {
        let answer = self.living().command("CLUSTER SLOTS").into_array();
        let owner = answer.into_iter().find_map(|stretch| {
            let stretch = stretch.into_array();
            let range: RangeInclusive<i64> = stretch[0].integer()..=stretch[1].integer();
            range.contains(&i64::from(slot)).then(|| stretch[2].clone().into_array()[1].integer())
        });
        let port = owner?;
        Some(self.nodes.iter().position(|node| i64::from(node.port()) == port).expect("the owner is one of ours"))
    }

    /// Moves a slot with its keys, one key at a time, while the cluster works. `between` runs after each key.
    pub fn migrate_slot(&self, slot: u16, to: usize, mut between: impl FnMut()) {
        let migration = self.begin_migration(slot, to);
        while self.migrate_keys(&migration, 1) > 0 {
            between();
        }
        self.end_migration(&migration);
    }

    /// Puts a slot on its way to another server, with all its keys still to be moved.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Migration {
        let from = self.owner(slot);
        let (from_id, to_id) = (self.id(from), self.id(to));
        self.nodes[to].command(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        self.nodes[from].command(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        Migration { slot, from, to, source: RefCell::new(self.nodes[from].client()) }
    }

    /// Moves up to so many keys; says how many there were.
    pub fn migrate_keys(&self, migration: &Migration, count: usize) -> usize {
        let listing = format!("CLUSTER GETKEYSINSLOT {} {count}", migration.slot);
        let keys = migration.source.borrow_mut().command(&listing).into_array();
        for key in &keys {
            let Value::Bytes(key) = key else { panic!("{key:?} is no key") };
            self.migrate_key(migration, key);
        }
        keys.len()
    }

    /// Moves one key, unless it is gone.
    pub fn migrate_key(&self, migration: &Migration, key: &[u8]) {
        let port = self.nodes[migration.to].port().to_string();
        let parts: [&[u8]; 6] = [b"MIGRATE", b"127.0.0.1", port.as_bytes(), key, b"0", b"5000"];
        match migration.source.borrow_mut().try_command(&parts) {
            Ok(Value::Status(_)) => {}
            other => panic!("MIGRATE: {other:?}"),
        }
    }

    /// Gives the slot to the server that has its keys now.
    pub fn end_migration(&self, migration: &Migration) {
        let Migration { slot, from, to, .. } = *migration;
        let to_id = self.id(to);
        for node in [to, from] {
            self.nodes[node].command(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
        for node in self.running() {
            // Replicas learn it from their primaries.
            let _ = node.client().try_command(&[
                b"CLUSTER",
                b"SETSLOT",
                slot.to_string().as_bytes(),
                b"NODE",
                to_id.as_bytes(),
            ]);
        }
    }

    /// Waits until another server has a slot.
    pub fn wait_until_moved(&self, slot: u16, from: usize) {
        wait_until("a replica takes over", || self.find_owner(slot).is_some_and(|owner| owner != from));
    }

    /// Waits until every replica follows its primary.
    pub fn wait_until_followed(&self) {
        let follows = |node: &Server| node.info("master_link_status").is_none_or(|status| status == "up");
        wait_until("all replicas follow", || self.running().all(follows));
    }

    /// A slot of which the server at a position has a key.
    pub fn slot_in_use(&self, node: usize) -> Option<u16> {
        let mut client = self.nodes[node].client();
        let Value::Bytes(key) = client.command("RANDOMKEY") else { return None };
        let slot = client.try_command(&[b"CLUSTER", b"KEYSLOT", &key]).ok()?;
        u16::try_from(slot.integer()).ok()
    }

    /// Waits until every living server sees all slots served.
    pub fn wait_until_whole(&self) {
        let whole = |node: &Server| node.command("CLUSTER INFO").into_text().contains("cluster_state:ok");
        wait_until("the cluster is whole", || self.running().all(whole));
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.process.is_some())
    }

    fn living(&self) -> &Server {
        self.running().next().expect("a server lives")
    }

    fn id(&self, number: usize) -> String {
        self.nodes[number].command("CLUSTER MYID").into_text()
    }

    fn introduce(&self, node: &Server) {
        let first = self.living();
        let bus = first.info("tcp_port").map(|_| first.command("CONFIG GET cluster-port").into_array());
        let bus = bus.and_then(|pair| pair.into_iter().nth(1)).expect("the server has a bus port").into_text();
        node.command(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", first.port()));
    }

    fn wait_until_known(&self, count: usize) {
        let known = format!("cluster_known_nodes:{count}\r");
        let knows = |node: &Server| node.command("CLUSTER INFO").into_text().contains(&known);
        wait_until("all servers know each other", || self.running().all(knows));
    }
}

fn start_node(node_timeout_ms: u32) -> Server {
    let bus = free_port().to_string();
    Server::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        &node_timeout_ms.to_string(),
        "--cluster-replica-validity-factor",
        "0",
    ])
}
