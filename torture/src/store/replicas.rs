//! A primary, its replica, and the replica's replica. One confirmation then means the server that is promoted, and that
//! one has a replica to confirm with at once.

use std::thread;
use std::time::Duration;

use ff_testkit::proxy::{Proxy, Trouble};
use ff_testkit::valkey::{Server, wait_until};

/// Three servers, each of which follows the one before it through a proxy.
#[derive(Debug)]
pub(super) struct Chain {
    servers: Vec<Server>,
    /// What each server hears of the one it follows.
    links: Vec<Proxy>,
    /// The place of the primary; the others follow in order.
    first: usize,
}

impl Chain {
    pub(super) fn start() -> Self {
        let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
        let links = servers.iter().map(|server| Proxy::start(&server.address())).collect();
        let chain = Self { servers, links, first: 0 };
        chain.follow(1, 0);
        chain.follow(2, 1);
        chain
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(Server::address).collect();
        format!("valkey://{}", hosts.join(","))
    }

    pub(super) fn primary(&self) -> &Server {
        &self.servers[self.first]
    }

    /// The replica hears nothing for a while. Then the primary is gone for good and the replica is promoted; the lost
    /// server comes back empty at the end of the chain.
    pub(super) fn fail_over(&mut self, unheard: Duration) {
        let (lost, next, last) = (self.first, (self.first + 1) % 3, (self.first + 2) % 3);
        self.links[next].trouble(Trouble::BlackHole);
        thread::sleep(unheard);
        self.servers[lost].kill();
        self.links[next].trouble(Trouble::Cut);
        self.servers[next].promote();
        self.links[next].trouble(Trouble::None);
        self.first = next;
        self.servers[lost].restart();
        self.follow(lost, last);
    }

    fn follow(&self, follower: usize, of: usize) {
        self.links[follower].redirect(&self.servers[of].address());
        self.servers[follower].command(&format!("REPLICAOF 127.0.0.1 {}", self.links[follower].port()));
        let following = || self.servers[follower].info("master_link_status").as_deref() == Some("up");
        wait_until("a replica follows", following);
    }
}
