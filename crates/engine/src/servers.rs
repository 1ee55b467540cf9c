//! The servers of a deployment. Each registers in the system partition and lives by heartbeats; for each partition
//! they are ranked by rendezvous hashing, so that one of them acts first and the others are there if it does not.
//!
//! Ranks matter only among several. A server that sees no other registers for a long time and then writes nothing:
//! an idle deployment of one costs its store no commits. Others pass over such a long registration when they rank, so
//! the trace of a server that died alone delays nothing; one that lives learns of them by their hint or its next look,
//! and heartbeats from then on. Until it does both act first, which is safe: every action is guarded.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ff_core::index::{self, kind};
use ff_core::partition::digest16;
use ff_core::worker::Server;
use ff_core::{Document, Indexed, Partition, Result};
use ff_store::{Answer, Fence, Query, Scan, ScanPage};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::env;
use crate::renewal::Renew;
use crate::transaction::{Command, Tx};

/// Between two heartbeats.
const HEARTBEAT_MS: i64 = 20_000;
/// A server among several that was not heard of for this long is gone.
const TTL_MS: i64 = 60_000;
/// How long the registration of a server that is alone lasts.
const LONE_TTL_MS: i64 = 86_400_000;
/// A server that does not answer the appearance of another for this long died alone.
const ANSWER_MS: i64 = 60_000;
/// Servers one deployment is shared out among; more may run, and act as if they came last.
const SERVERS_MAX: usize = 1_000;
/// A closing engine waits this long for its farewell to be written.
const FAREWELL_MS: i64 = 2_000;

/// This engine's rank for each partition, as of the last look at who lives.
#[derive(Default)]
pub(crate) struct Servers {
    ranks: Mutex<BTreeMap<Partition, i64>>,
    /// Since when, by the process's clock, each other server is known that has not noticed anybody.
    lone: Mutex<BTreeMap<String, i64>>,
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

    /// Those of these lone servers that have been known for too long to be alive.
    fn silent(&self, lone: &[String], now_ms: i64) -> Vec<String> {
        let mut known = self.lone.lock().expect("no holder of this lock panics");
        known.retain(|server_id, _| lone.contains(server_id));
        let mut silent = Vec::new();
        for server_id in lone {
            let since = *known.entry(server_id.clone()).or_insert(now_ms);
            if since + ANSWER_MS <= now_ms {
                silent.push(server_id.clone());
            }
        }
        silent
    }
}

/// Who is registered, as one look found it.
#[derive(Debug, Default)]
struct Registered {
    /// This server's own registration and when it runs out.
    own: Option<(Server, i64)>,
    /// Servers that heartbeat.
    living: Vec<String>,
    /// Servers that have not noticed anybody, and may be dead.
    lone: Vec<String>,
}

impl Registered {
    fn others(&self) -> bool {
        !self.living.is_empty() || !self.lone.is_empty()
    }
}

impl Engine {
    /// How many live servers act on a partition before this one.
    pub(crate) fn rank(&self, partition: Partition) -> i64 {
        self.servers().ranks().get(&partition).copied().unwrap_or(0)
    }

    /// Registers this engine and learns who else is there.
    pub(crate) async fn join_servers(&self) -> Result<()> {
        self.join().await?;
        let registered = self.registered_servers().await?;
        self.rank_among(&registered.living);
        Ok(())
    }

    async fn join(&self) -> Result<()> {
        self.transact(Partition::SYSTEM, self.fresh_command(), &Join { server_id: self.server_id() }).await
    }

    /// Heartbeats, for as long as the engine lives.
    pub(crate) async fn run_heartbeats(self) {
        let mut beat_at = self.env().now_ms() + HEARTBEAT_MS;
        loop {
            let left = (beat_at - self.env().now_ms()).max(0);
            env::within(self.env_handle(), left, self.servers().changed.notified()).await;
            if self.env().now_ms() >= beat_at {
                beat_at = self.env().now_ms() + HEARTBEAT_MS;
            }
            if let Err(error) = self.heartbeat().await {
                tracing::warn!(%error, "this server's heartbeat failed; trying again at the next one");
            }
        }
    }

    /// Looks who is there, and says that this server is, as far as anybody needs to know.
    async fn heartbeat(&self) -> Result<()> {
        let registered = self.registered_servers().await?;
        self.rank_among(&registered.living);
        for server_id in self.servers().silent(&registered.lone, self.env().now_ms()) {
            tracing::info!(server_id, "a server that was alone has died; removing its registration");
            self.transact(Partition::SYSTEM, self.fresh_command(), &Leave { server_id }).await?;
        }
        let others = registered.others();
        match registered.own {
            None => {
                tracing::warn!("this server's registration had run out; registering again");
                self.join().await
            }
            Some((own, _)) if (own.ttl_ms == LONE_TTL_MS) == others => self.join().await,
            Some((_, until)) if !others && until - self.now() > LONE_TTL_MS / 2 => Ok(()),
            Some((own, _)) => self.renew_server(&own).await,
        }
    }

    async fn renew_server(&self, own: &Server) -> Result<()> {
        let held = own.held();
        let fence = Fence { epoch: held.epoch, lease: held.lease_id };
        let verb = Renew { key: own.key(), fence, ttl_ms: own.ttl_ms };
        let ((), prepared) = self.prepare(Partition::SYSTEM, self.fresh_command(), &verb).await?;
        let conflicts = self.send_all(Partition::SYSTEM, vec![prepared]).await?;
        if conflicts.into_iter().flatten().next().is_some() {
            tracing::warn!("this server's registration had run out; registering again");
            return self.join().await;
        }
        Ok(())
    }

    /// Reads who is registered.
    async fn registered_servers(&self) -> Result<Registered> {
        let answers = self.read(Partition::SYSTEM, vec![Query::Scan(listing())]).await?;
        let now = answers.at;
        Ok(sort_out(answers.into_only(Answer::into_scan)?, &self.server_id(), now))
    }

    /// Ranks this engine among the others that heartbeat.
    fn rank_among(&self, living: &[String]) {
        let own = self.server_id();
        let rank = |partition: Partition| {
            let mine = weight(&own, partition);
            let ahead = living.iter().filter(|other| weight(other, partition) > mine).count();
            (partition, i64::try_from(ahead).unwrap_or(i64::MAX))
        };
        *self.servers().ranks() = self.partitions().all().map(rank).collect();
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

fn listing() -> Scan {
    Scan::first(index::listing(kind::SERVER, ""), SERVERS_MAX).with_documents()
}

fn sort_out(page: ScanPage, own: &str, now: i64) -> Registered {
    let mut registered = Registered::default();
    for stored in page.entries.into_iter().filter_map(|entry| entry.document).filter(|one| one.lease_until > now) {
        let Ok(server) = Server::decode(&stored.body) else { continue };
        if server.server_id == own {
            registered.own = Some((server, stored.lease_until));
        } else if server.ttl_ms == LONE_TTL_MS {
            registered.lone.push(server.server_id);
        } else {
            registered.living.push(server.server_id);
        }
    }
    registered
}

struct Join {
    server_id: String,
}

impl Command for Join {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let page = tx.scan(listing()).await?;
        let others = sort_out(page, &self.server_id, tx.now).others();
        let ttl_ms = if others { TTL_MS } else { LONE_TTL_MS };
        let known = tx.load::<Server>(Server::key_of(&self.server_id)).await?;
        let address = &tx.engine.options().address;
        let server = match known {
            Some(known) => Server { ttl_ms, ..known.document },
            None => Server::start(&self.server_id, address, ttl_ms, tx.now)?,
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
