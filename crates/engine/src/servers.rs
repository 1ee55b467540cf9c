//! The servers of a deployment. Each registers in the system partition and lives by heartbeats; for each partition
//! they are ranked by rendezvous hashing, so that one of them acts first and the others are there if it does not.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ff_core::index::{self, kind};
use ff_core::partition::digest16;
use ff_core::worker::Server;
use ff_core::{Document, Indexed, Partition, Result};
use ff_store::{Answer, Fence, Query, Scan};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::env;
use crate::renewal::Renew;
use crate::transaction::{Command, Tx};

/// Between two heartbeats.
const HEARTBEAT_MS: i64 = 20_000;
/// A server that was not heard of for this long is gone.
const TTL_MS: i64 = 60_000;
/// Servers one deployment is shared out among; more may run, and act as if they came last.
const SERVERS_MAX: usize = 1_000;
/// A closing engine waits this long for its farewell to be written.
const FAREWELL_MS: i64 = 2_000;

/// This engine's rank for each partition, as of the last look at who lives.
#[derive(Default)]
pub(crate) struct Servers {
    ranks: Mutex<BTreeMap<Partition, i64>>,
    changed: Notify,
}

impl Servers {
    /// The list of servers may have changed.
    pub(crate) fn look_again(&self) {
        self.changed.notify_one();
    }

    fn ranks(&self) -> std::sync::MutexGuard<'_, BTreeMap<Partition, i64>> {
        self.ranks.lock().expect("no holder of this lock panics")
    }
}

impl Engine {
    /// How many live servers act on a partition before this one.
    pub(crate) fn rank(&self, partition: Partition) -> i64 {
        self.servers().ranks().get(&partition).copied().unwrap_or(0)
    }

    /// Registers this engine and learns who else is there.
    pub(crate) async fn join_servers(&self) -> Result<()> {
        self.transact(Partition::SYSTEM, self.fresh_command(), &Join { server_id: self.server_id() }).await?;
        self.refresh_servers().await
    }

    /// Heartbeats, for as long as the engine lives.
    pub(crate) async fn run_heartbeats(self) {
        let mut beat_at = self.env().now_ms() + HEARTBEAT_MS;
        loop {
            let left = (beat_at - self.env().now_ms()).max(0);
            let hinted = env::within(self.env_handle(), left, self.servers().changed.notified()).await.is_some();
            let outcome = if hinted {
                self.refresh_servers().await
            } else {
                beat_at = self.env().now_ms() + HEARTBEAT_MS;
                self.heartbeat().await
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "this server's heartbeat failed; trying again at the next one");
            }
        }
    }

    async fn heartbeat(&self) -> Result<()> {
        let server = Server { server_id: self.server_id(), ttl_ms: TTL_MS, ..Default::default() };
        let held = server.held();
        let fence = Fence { epoch: held.epoch, lease: held.lease_id };
        let verb = Renew { key: server.key(), fence, ttl_ms: TTL_MS };
        let ((), prepared) = self.prepare(Partition::SYSTEM, self.fresh_command(), &verb).await?;
        let conflicts = self.send_all(Partition::SYSTEM, vec![prepared]).await?;
        if conflicts.into_iter().flatten().next().is_some() {
            tracing::warn!("this server's registration had run out; registering again");
            return self.join_servers().await;
        }
        self.refresh_servers().await
    }

    /// Reads who lives and ranks this engine among them.
    async fn refresh_servers(&self) -> Result<()> {
        let scan = Scan::first(index::listing(kind::SERVER, ""), SERVERS_MAX).with_documents();
        let answers = self.read(Partition::SYSTEM, vec![Query::Scan(scan)]).await?;
        let now = answers.at;
        let page = answers.into_only(Answer::into_scan)?;
        let living = page.entries.into_iter().filter_map(|entry| entry.document).filter(|one| one.lease_until > now);
        let living: Vec<String> = living
            .filter_map(|stored| Server::decode(&stored.body).ok())
            .map(|server| server.server_id)
            .filter(|server_id| *server_id != self.server_id())
            .collect();
        let own = self.server_id();
        let rank = |partition: Partition| {
            let mine = weight(&own, partition);
            let ahead = living.iter().filter(|other| weight(other, partition) > mine).count();
            (partition, i64::try_from(ahead).unwrap_or(i64::MAX))
        };
        *self.servers().ranks() = self.partitions().all().map(rank).collect();
        Ok(())
    }

    /// Says goodbye, so that others take over at once.
    pub(crate) async fn leave(&self) {
        if !self.options().services {
            return;
        }
        let verb = Leave { server_id: self.server_id() };
        let farewell = self.transact(Partition::SYSTEM, self.fresh_command(), &verb);
        match env::within(self.env_handle(), FAREWELL_MS, farewell).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "this server could not deregister; it counts as live for a while")
            }
            None => tracing::warn!("this server had no time to deregister; it counts as live for a while"),
        }
    }

    fn server_id(&self) -> String {
        self.origin().to_string()
    }
}

/// The highest weight for a partition ranks first.
fn weight(server_id: &str, partition: Partition) -> [u8; 16] {
    digest16(&[b"rank", server_id.as_bytes(), partition.to_string().as_bytes()])
}

struct Join {
    server_id: String,
}

impl Command for Join {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let known = tx.load::<Server>(Server::key_of(&self.server_id)).await?;
        let address = &tx.engine.options().address;
        let server = match known {
            Some(known) => known.document,
            None => Server::start(&self.server_id, address, TTL_MS, tx.now)?,
        };
        tx.save(&server);
        tx.renew(&server);
        Ok(())
    }
}

struct Leave {
    server_id: String,
}

impl Command for Leave {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let key = Server::key_of(&self.server_id);
        if tx.load::<Server>(key.clone()).await?.is_some() {
            tx.delete(&key);
        }
        Ok(())
    }
}
