//! The servers of a deployment. Each registers in the system partition and keeps its registration by heartbeats. For
//! each partition they are ranked by rendezvous hashing, so that one of them acts first and the others act if it does
//! not.
//!
//! A heartbeat is one request: it renews the server's own registration and removes each registration that it watches,
//! if that has run out. The store refuses a removal with the instant at which the other's registration ends, so a
//! server knows when to look next, and one that was killed is noticed by all at the end of its registration. Its
//! unfinished work may be in any partition, because its hints were lost with it. So whenever a server goes, the others
//! look at everything once.
//!
//! Ranks matter only among several. A server that sees no other registers for a long time and then writes nothing: an
//! idle deployment of one costs its store no commits. Other servers ignore such a long registration when they rank, so
//! the registration of a server that died alone delays nothing. A lone server that lives learns of the others by their
//! hint or at its next look, and heartbeats from then on. Until then both it and another server act as the first, which
//! is safe because every action is guarded.
//!
//! Cost: half a request a second for each server among several; one read in 20 s for a server that is alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::index::{self, kind};
use ff_core::op::ServerView;
use ff_core::partition::digest16;
use ff_core::worker::Server;
use ff_core::{Document, Indexed, Key, Partition, Result};
use ff_store::{Answer, ConflictReason, Fence, Outcome, Query, Scan, ScanPage, StoredDocument};
use tokio::sync::Notify;

use crate::env;
use crate::ranks::Ranks;
use crate::renewal::Renew;
use crate::transaction::{Command, Transactor, Tx};

/// The time between two heartbeats of a server among several.
const BEAT_MS: i64 = 2_000;
/// A server among several that was not heard of for this long is gone.
const TTL_MS: i64 = 2 * BEAT_MS;
/// The time between two reads of the whole list of servers, which find servers whose hint was lost.
const LOOK_MS: i64 = 20_000;
/// The least time between two heartbeats, however the clocks of this process and of the store differ.
const BEAT_MIN_MS: i64 = 100;
/// For this long after the estimated end of a registration, the server checks whether the store agrees that it has
/// ended.
const ENDED_MS: i64 = 1_000;
/// The pause before a heartbeat that failed is tried again.
const RETRY_MS: i64 = 500;
/// How long the registration of a server that is alone lasts.
const LONE_TTL_MS: i64 = 86_400_000;
/// A server that does not answer the appearance of another for this long died alone.
const ANSWER_MS: i64 = TTL_MS;
/// Servers that are ranked in one deployment; further ones may run, and act as if they came last.
const SERVERS_MAX: usize = 1_000;
/// Other servers that one server watches. Each is watched by as many.
const WATCHED_MAX: usize = 16;
/// A closing engine waits this long for its farewell to be written.
const FAREWELL_MS: i64 = 2_000;

/// The servers of a deployment, as this one knows them.
#[derive(Clone)]
pub(crate) struct Servers {
    transactor: Transactor,
    ranking: Arc<Ranking>,
}

/// This engine's ranks, and the servers that the last look found alive.
#[derive(Default)]
struct Ranking {
    ranks: Ranks,
    /// The servers that are alive. They are kept for `get_deployment`, which then costs the store nothing.
    known: Mutex<Vec<Server>>,
    changed: Notify,
}

impl Ranking {
    fn known(&self) -> std::sync::MutexGuard<'_, Vec<Server>> {
        self.known.lock().expect("no holder of this lock panics")
    }
}

/// Another server, as it was last seen.
#[derive(Debug, Clone)]
struct Other {
    server: Server,
    stored: StoredDocument,
    /// When its registration ends, as far as this server knows.
    until: i64,
    /// It has not noticed any other server, and may be dead.
    lone: bool,
}

/// The registered servers, as one look found them.
#[derive(Debug, Default)]
struct Registered {
    /// This server's own registration and when it runs out.
    own: Option<(Server, i64)>,
    others: BTreeMap<String, Other>,
}

impl Registered {
    /// The others whose registration has not run out.
    fn present(&self, now: i64) -> impl Iterator<Item = (&String, &Other)> {
        self.others.iter().filter(move |(_, other)| other.until > now)
    }

    /// The servers that this one ranks itself among.
    fn living(&self, now: i64) -> Vec<String> {
        self.present(now).filter(|(_, other)| !other.lone).map(|(server_id, _)| server_id.clone()).collect()
    }

    /// The servers that this one watches: the next ones after it in the order of their ids, as in a ring.
    fn watched(&self, own: &str) -> BTreeMap<String, StoredDocument> {
        let after = self.others.iter().filter(|(server_id, _)| server_id.as_str() > own);
        let before = self.others.iter().filter(|(server_id, _)| server_id.as_str() < own);
        after.chain(before).take(WATCHED_MAX).map(|(id, other)| (id.clone(), other.stored.clone())).collect()
    }
}

/// The memory of the heartbeat service from one turn to the next. Instants are the process's.
#[derive(Default)]
struct Watch {
    registered: Registered,
    /// Since when each other server is known that has not noticed any other.
    lone_since: BTreeMap<String, i64>,
    look_at: i64,
    beat_at: i64,
    not_before: i64,
}

impl Watch {
    /// How long until there is something to do; `store_now` is the store's time at `now`.
    fn patience(&self, now: i64, store_now: i64) -> i64 {
        if self.registered.others.is_empty() {
            return (self.look_at - now).max(0);
        }
        // A registration that ended long ago is watched by another server; otherwise this one would have removed it.
        let ends = self.registered.others.values().map(|other| other.until - store_now + 1);
        let ends = ends.filter(|left| *left > -ENDED_MS).map(|left| now + left).min();
        let silent = self.lone_since.values().map(|since| since + ANSWER_MS).min();
        let beat_at = [Some(self.beat_at), ends, silent].into_iter().flatten().min().unwrap_or(self.beat_at);
        (beat_at.max(self.not_before).min(self.look_at.max(self.not_before)) - now).max(0)
    }

    /// The lone servers that have been known for too long to be alive.
    fn silent(&mut self, now: i64) -> Vec<String> {
        let others = &self.registered.others;
        self.lone_since.retain(|server_id, _| others.get(server_id).is_some_and(|other| other.lone));
        for (server_id, _) in others.iter().filter(|(_, other)| other.lone) {
            self.lone_since.entry(server_id.clone()).or_insert(now);
        }
        let silent = self.lone_since.iter().filter(|(_, since)| **since + ANSWER_MS <= now);
        silent.map(|(server_id, _)| server_id.clone()).collect()
    }
}

impl Servers {
    pub(crate) fn new(transactor: Transactor) -> Self {
        Self { transactor, ranking: Arc::default() }
    }

    pub(crate) fn transactor(&self) -> &Transactor {
        &self.transactor
    }

    /// Makes the service read the list of servers again, because it may have changed.
    pub(crate) fn look_again(&self) {
        self.ranking.changed.notify_one();
    }

    /// How many live servers act on a partition before this one.
    pub(crate) fn rank(&self, partition: Partition) -> i64 {
        self.ranking.ranks.of(partition)
    }

    /// The ranks, for those that look at them often.
    pub(crate) fn ranks(&self) -> Ranks {
        self.ranking.ranks.clone()
    }

    /// Registers this engine and learns which others are there.
    pub(crate) async fn join(&self) -> Result<()> {
        self.register().await?;
        let registered = self.registered_servers().await?;
        self.rank_among(&registered.living(self.transactor.now()));
        self.remember(&registered);
        Ok(())
    }

    /// Whether this server knows of no other.
    pub(crate) fn is_alone(&self) -> bool {
        self.ranking.known().len() <= 1
    }

    /// The servers that live, as far as this one knows, the oldest first.
    pub(crate) fn known(&self) -> Vec<ServerView> {
        let own = self.server_id();
        let view = |server: &Server| ServerView {
            server_id: server.server_id.clone(),
            address: server.address.clone(),
            version: server.version.clone(),
            started_at: server.started_at,
            answers: server.server_id == own,
        };
        self.ranking.known().iter().map(view).collect()
    }

    fn remember(&self, registered: &Registered) {
        let others = registered.others.values().map(|other| other.server.clone());
        let mut known: Vec<Server> = others.chain(registered.own.iter().map(|(own, _)| own.clone())).collect();
        known.sort_by(|one, other| (one.started_at, &one.server_id).cmp(&(other.started_at, &other.server_id)));
        *self.ranking.known() = known;
    }

    async fn register(&self) -> Result<()> {
        self.transactor
            .transact(Partition::SYSTEM, self.transactor.fresh_command(), &Join { server_id: self.server_id() })
            .await
    }

    /// Heartbeats, for as long as the engine lives.
    pub(crate) async fn run(self) {
        let mut watch = Watch::default();
        let mut heard = true;
        loop {
            let turn = self.watch_over(&mut watch, heard).await;
            let now = self.transactor.env().now_ms();
            watch.not_before = now + BEAT_MIN_MS;
            if let Err(error) = turn {
                if let Some(suppressed) = self.transactor.may_log("this server's heartbeat failed") {
                    tracing::warn!(%error, suppressed, "this server's heartbeat failed; trying again soon");
                }
                watch.not_before = now + RETRY_MS;
                watch.look_at = watch.look_at.max(watch.not_before);
            }
            let patience = watch.patience(now, self.transactor.now());
            heard =
                env::within(self.transactor.env_handle(), patience, self.ranking.changed.notified()).await.is_some();
        }
    }

    /// One turn: a look at the list if a server may have come or gone, and a heartbeat if it is time for one.
    async fn watch_over(&self, watch: &mut Watch, heard: bool) -> Result<()> {
        let look = heard || self.transactor.env().now_ms() >= watch.look_at;
        if look {
            self.look(watch).await?;
        }
        let due = !look || self.transactor.env().now_ms() >= watch.beat_at;
        if due && !watch.registered.others.is_empty() && self.beat(watch).await? {
            self.look(watch).await?;
        }
        Ok(())
    }

    /// Reads the whole list, and announces this server if others need to know of it.
    async fn look(&self, watch: &mut Watch) -> Result<()> {
        let registered = self.registered_servers().await?;
        let now = self.transactor.now();
        watch.look_at = self.transactor.env().now_ms() + LOOK_MS;
        let before = std::mem::replace(&mut watch.registered, registered);
        let gone: Vec<&String> = before
            .present(0)
            .filter(|(server_id, _)| watch.registered.others.get(*server_id).is_none_or(|other| other.until <= now))
            .map(|(server_id, _)| server_id)
            .collect();
        self.part_with(&gone, watch);
        self.dismiss_silent(watch).await?;
        let others = watch.registered.present(now).next().is_some();
        match &watch.registered.own {
            None => {
                tracing::warn!("this server's registration had run out; registering again");
                self.register().await?;
            }
            Some((own, _)) if (own.ttl_ms == LONE_TTL_MS) == others => self.register().await?,
            Some((_, until)) if !others && until - now > LONE_TTL_MS / 2 => {}
            Some((own, _)) if !others => {
                let verb = renewal(own);
                let ((), prepared) =
                    self.transactor.prepare(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?;
                self.transactor.send_all(Partition::SYSTEM, vec![prepared]).await?;
            }
            Some(_) => return Ok(()),
        }
        watch.beat_at = self.transactor.env().now_ms() + BEAT_MS;
        Ok(())
    }

    /// Renews this server's registration and removes those it watches that have run out, in one request. Returns
    /// whether the list must be read again.
    async fn beat(&self, watch: &mut Watch) -> Result<bool> {
        self.dismiss_silent(watch).await?;
        let own = self.server_id();
        let registration = Server { server_id: own.clone(), ttl_ms: TTL_MS, ..Default::default() };
        let watched = watch.registered.watched(&own);
        let ((), renewing) = self
            .transactor
            .prepare(Partition::SYSTEM, self.transactor.fresh_command(), &renewal(&registration))
            .await?;
        let mut prepared = vec![renewing];
        for (server_id, stored) in &watched {
            let verb = Bury { key: Server::key_of(server_id), stored };
            prepared.push(self.transactor.prepare(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?.1);
        }
        let mut outcomes = self.transactor.ask_all(Partition::SYSTEM, prepared).await?.into_iter();
        watch.beat_at = self.transactor.env().now_ms() + BEAT_MS;
        let mut look = outcomes.next().is_none_or(|renewed| renewed.applied().is_none());
        let mut gone = Vec::new();
        for (server_id, outcome) in watched.keys().zip(outcomes) {
            match outcome {
                Outcome::Applied(_) => gone.push(server_id),
                Outcome::Conflict(conflict) => match conflict.why {
                    ConflictReason::LeaseHolds(until) => {
                        if let Some(other) = watch.registered.others.get_mut(server_id) {
                            other.until = until;
                        }
                    }
                    ConflictReason::Missing => gone.push(server_id),
                    _ => look = true,
                },
            }
        }
        look |= !gone.is_empty();
        self.part_with(&gone, watch);
        Ok(look)
    }

    /// Ranks this server among those that are left, and starts a look at everything if some have gone.
    fn part_with(&self, gone: &[&String], watch: &mut Watch) {
        for server_id in gone {
            tracing::info!(server_id, "another server has gone; looking at everything it may have left");
            watch.registered.others.remove(*server_id);
        }
        self.rank_among(&watch.registered.living(self.transactor.now()));
        self.remember(&watch.registered);
        if !gone.is_empty() {
            self.transactor.due().sweep_now();
        }
    }

    /// Removes the registrations of servers that died alone.
    async fn dismiss_silent(&self, watch: &mut Watch) -> Result<()> {
        let silent = watch.silent(self.transactor.env().now_ms());
        if silent.is_empty() {
            return Ok(());
        }
        for server_id in &silent {
            tracing::info!(server_id, "a server that was alone has died; removing its registration");
            let verb = Leave { server_id: server_id.clone() };
            self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &verb).await?;
            watch.lone_since.remove(server_id);
        }
        self.part_with(&silent.iter().collect::<Vec<_>>(), watch);
        Ok(())
    }

    /// Reads the registered servers.
    async fn registered_servers(&self) -> Result<Registered> {
        let answers = self.transactor.read(Partition::SYSTEM, vec![Query::Scan(listing())]).await?;
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
        if self.ranking.ranks.replace(self.transactor.partitions().all().map(rank).collect()) {
            self.transactor.due().ranks_changed();
        }
    }

    /// Removes this server's registration, so that others take over at once.
    pub(crate) async fn leave(&self) {
        if !self.transactor.options().services {
            return;
        }
        let verb = Leave { server_id: self.server_id() };
        let farewell = self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &verb);
        match env::within(self.transactor.env_handle(), FAREWELL_MS, farewell).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "this server could not deregister; it counts as live for a while")
            }
            None => tracing::warn!("this server had no time to deregister; it counts as live for a while"),
        }
    }

    fn server_id(&self) -> String {
        self.transactor.origin().to_string()
    }
}

/// The highest weight for a partition ranks first.
fn weight(server_id: &str, partition: Partition) -> [u8; 16] {
    digest16(&[b"rank", server_id.as_bytes(), partition.to_string().as_bytes()])
}

fn listing() -> Scan {
    Scan::first(index::listing(kind::SERVER, ""), SERVERS_MAX).with_documents()
}

fn renewal(own: &Server) -> Renew {
    let held = own.document_lease();
    let fence = Fence { epoch: held.epoch, lease: held.lease_id };
    Renew { key: own.key(), fence, ttl_ms: own.ttl_ms }
}

fn sort_out(page: ScanPage, own: &str, now: i64) -> Registered {
    let mut registered = Registered::default();
    for stored in page.entries.into_iter().filter_map(|entry| entry.document) {
        let Ok(server) = Server::decode(&stored.body) else { continue };
        let until = stored.lease_until;
        if server.server_id != own {
            let lone = server.ttl_ms == LONE_TTL_MS;
            registered.others.insert(server.server_id.clone(), Other { server, stored, until, lone });
        } else if until > now {
            registered.own = Some((server, until));
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
        let others = sort_out(page, &self.server_id, tx.now).present(tx.now).next().is_some();
        let ttl_ms = if others { TTL_MS } else { LONE_TTL_MS };
        let known = tx.load::<Server>(Server::key_of(&self.server_id)).await?;
        let address = &tx.transactor.options().address;
        let server = match known {
            Some(known) => Server { ttl_ms, ..known.document },
            None => {
                let version = env!("CARGO_PKG_VERSION").to_owned();
                Server { version, ..Server::start(&self.server_id, address, ttl_ms, tx.now)? }
            }
        };
        tx.save(&server);
        tx.renew(&server);
        Ok(())
    }
}

/// Removes a registration, as it was last read, if it has run out.
struct Bury<'a> {
    key: Key,
    stored: &'a StoredDocument,
}

impl Command for Bury<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        tx.adopt::<Server>(self.key.clone(), Some(self.stored.clone()))?;
        tx.require_expired(&self.key);
        tx.delete(&self.key);
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
