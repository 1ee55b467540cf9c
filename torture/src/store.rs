//! Stores that end with the campaign, and the faults that are theirs.

mod replicas;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use ff_testkit::proxy::{Proxy, Trouble};
use ff_testkit::valkey::Cluster;
use ff_testkit::{postgres, valkey};

use self::replicas::Chain;
use crate::fault::Fault;

/// A store that was killed is started again after this; one that hangs goes on after it.
pub const DOWN: Duration = Duration::from_secs(3);
/// A piece of ballast on a disk that is to be full.
const BALLAST_BYTES: usize = 256 * 1024;
/// How large a disk is that can be filled.
const SMALL_DISK: &str = "size=192m";
/// How many slots move at a time.
const SLOTS_MOVED: usize = 6;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SQLite with `sync=full`.
    Sqlite,
    /// One Valkey with `tier=fsynced`.
    Valkey,
    /// A chain of three Valkey servers with `tier=replicated`.
    Replicated,
    /// The same with `tier=async`: a failover may lose the last moments.
    Async,
    /// Three primaries with a replica each, with `tier=replicated`.
    Cluster,
    /// PostgreSQL with its defaults.
    Postgres,
    /// A Valkey without persistence that promises nothing: what it forgets must be seen.
    Forgetful,
}

impl Kind {
    /// Those that keep what they acknowledge.
    pub const SOUND: [Kind; 5] = [Kind::Sqlite, Kind::Valkey, Kind::Replicated, Kind::Cluster, Kind::Postgres];
    const ALL: [Kind; 7] =
        [Kind::Sqlite, Kind::Valkey, Kind::Replicated, Kind::Async, Kind::Cluster, Kind::Postgres, Kind::Forgetful];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sqlite => "sqlite",
            Kind::Valkey => "valkey",
            Kind::Replicated => "replicated",
            Kind::Async => "async",
            Kind::Cluster => "cluster",
            Kind::Postgres => "postgres",
            Kind::Forgetful => "forgetful",
        }
    }

    /// The store of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or(format!("{name} is no store"))
    }

    /// The faults that are possible with it.
    pub fn faults(self) -> Vec<Fault> {
        use Fault::*;
        let mut faults = vec![ServerKill, WorkerKill, WorkerStop, ServerStop, Rolling];
        faults.extend([ClientsCut, ClientsMute, ClientsDeaf, ClientsHole, ClientsDelay, ClientsReset]);
        let network =
            [StoreCut, StoreMute, StoreDeaf, StoreHole, StoreDelay, StoreReset, StoreKill, StoreGone, StoreStop];
        match self {
            Kind::Sqlite => faults.push(StoreFull),
            Kind::Valkey => faults.extend(network.into_iter().chain([StoreFull, FunctionFlush, Clock])),
            Kind::Postgres => faults.extend(network.into_iter().chain([Terminate, LockTable, Clock])),
            Kind::Replicated | Kind::Async => faults.extend([Failover, FunctionFlush]),
            Kind::Cluster => faults.extend([PrimaryKill, SlotMove, FunctionFlush]),
            Kind::Forgetful => faults = vec![StoreKill],
        }
        faults
    }

    /// SQLite belongs to one process.
    pub fn servers(self) -> usize {
        if self == Kind::Sqlite { 1 } else { 3 }
    }
}

/// A store that runs.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    running: Running,
    /// Between servers and the store, where there is one place to stand.
    front: Option<Proxy>,
}

#[derive(Debug)]
enum Running {
    Sqlite { folder: PathBuf, mounted: bool },
    Valkey(valkey::Server),
    Chain(Chain),
    Cluster { cluster: Cluster, fresh: Option<usize> },
    Postgres(postgres::Server),
}

impl Store {
    /// Starts an empty one. Only one that is to be filled is on a small disk.
    pub fn start(kind: Kind, folder: &Path, faults: &[Fault]) -> Result<Self, String> {
        let synced = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"];
        let running = match kind {
            Kind::Sqlite => {
                let folder = folder.join("disk");
                std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
                let mut mount = Command::new("mount");
                mount.args(["-t", "tmpfs", "-o", SMALL_DISK, "ff-torture"]).arg(&folder);
                let mounted =
                    faults.contains(&Fault::StoreFull) && mount.output().is_ok_and(|done| done.status.success());
                Running::Sqlite { folder, mounted }
            }
            Kind::Valkey => Running::Valkey(valkey::Server::start_with(&synced)),
            Kind::Forgetful => Running::Valkey(valkey::Server::start()),
            Kind::Replicated | Kind::Async => Running::Chain(Chain::start()),
            Kind::Cluster => Running::Cluster { cluster: Cluster::start(), fresh: None },
            Kind::Postgres => Running::Postgres(postgres::Server::start()),
        };
        let front = match &running {
            Running::Valkey(server) => Some(Proxy::start(&server.address())),
            Running::Postgres(server) => Some(Proxy::start(&format!("127.0.0.1:{}", server.port()))),
            Running::Sqlite { .. } | Running::Chain(_) | Running::Cluster { .. } => None,
        };
        Ok(Self { kind, running, front })
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The address for servers.
    pub fn url(&self) -> String {
        let front = self.front.as_ref().map(Proxy::port).unwrap_or_default();
        match &self.running {
            Running::Sqlite { folder, .. } => format!("sqlite://{}/ff.db", folder.display()),
            Running::Valkey(_) if self.kind == Kind::Forgetful => format!("valkey://127.0.0.1:{front}"),
            Running::Valkey(_) => format!("valkey://127.0.0.1:{front}?tier=fsynced"),
            Running::Chain(chain) => {
                let tier = if self.kind == Kind::Async { "async" } else { "replicated" };
                format!("{}?tier={tier}&request_timeout_ms=2000", chain.url())
            }
            Running::Cluster { cluster, .. } => format!("{}&tier=replicated&request_timeout_ms=2000", cluster.url()),
            Running::Postgres(server) => server.url().replace(&format!(":{}/", server.port()), &format!(":{front}/")),
        }
    }

    /// Why a fault cannot happen here although the store has it.
    pub fn cannot(&self, fault: Fault) -> Option<&'static str> {
        match &self.running {
            Running::Sqlite { mounted: false, .. } if fault == Fault::StoreFull => {
                Some("a small disk can be mounted by root only")
            }
            _ => None,
        }
    }

    /// Whether a server of an older build starts on what a newer one has used. The libraries of Valkey stand beside each
    /// other; a file and a schema are brought up to date once.
    pub fn takes_older_servers_back(&self) -> bool {
        matches!(self.running, Running::Valkey(_) | Running::Chain(_) | Running::Cluster { .. })
    }

    /// Trouble between servers and the store for a while.
    pub fn disturb(&self, trouble: Trouble, time: Duration) {
        if let Some(front) = &self.front {
            front.trouble(trouble);
            thread::sleep(time);
            front.trouble(Trouble::None);
        }
    }

    /// Kills it and starts it again on its files after a while.
    pub fn kill(&mut self, down: Duration) {
        match &mut self.running {
            Running::Valkey(server) => {
                server.kill();
                thread::sleep(down);
                server.restart();
            }
            Running::Postgres(server) => {
                server.kill9();
                thread::sleep(down);
                server.restart();
            }
            Running::Sqlite { .. } | Running::Chain(_) | Running::Cluster { .. } => {}
        }
    }

    /// Stops it where it is, and lets it go on.
    pub fn freeze(&self) {
        match &self.running {
            Running::Valkey(server) => {
                server.freeze();
                thread::sleep(DOWN);
                server.thaw();
            }
            Running::Postgres(server) => {
                server.freeze();
                thread::sleep(DOWN);
                server.thaw();
            }
            Running::Sqlite { .. } | Running::Chain(_) | Running::Cluster { .. } => {}
        }
    }

    /// Takes its room away, and gives it back.
    pub fn fill(&self) -> Result<(), String> {
        match &self.running {
            Running::Sqlite { folder, .. } => {
                let ballast = folder.join("ballast");
                fill_disk(&ballast);
                thread::sleep(DOWN);
                std::fs::remove_file(ballast).map_err(|why| why.to_string())
            }
            Running::Valkey(server) => {
                server.command("CONFIG SET maxmemory 1000000");
                thread::sleep(DOWN);
                server.command("CONFIG SET maxmemory 0");
                Ok(())
            }
            Running::Postgres(_) | Running::Chain(_) | Running::Cluster { .. } => Ok(()),
        }
    }

    /// Removes the functions from every primary.
    pub fn flush_functions(&self) {
        match &self.running {
            Running::Valkey(server) => {
                server.command("FUNCTION FLUSH SYNC");
            }
            Running::Chain(chain) => {
                chain.primary().command("FUNCTION FLUSH SYNC");
            }
            Running::Cluster { cluster, .. } => {
                for node in &cluster.nodes {
                    // A replica refuses it and follows its primary.
                    let _ = node.client().try_command(&[b"FUNCTION", b"FLUSH", b"SYNC"]);
                }
            }
            Running::Sqlite { .. } | Running::Postgres(_) => {}
        }
    }

    /// The primary is lost for good and its replica promoted.
    pub fn fail_over(&mut self) {
        if let Running::Chain(chain) = &mut self.running {
            chain.fail_over(DOWN);
        }
    }

    /// Kills a primary of the cluster; returns when its replica has taken over and it is back.
    pub fn kill_primary(&mut self, turn: usize) {
        if let Running::Cluster { cluster, .. } = &mut self.running {
            let slot = [0_u16, 6_000, 12_000][turn % 3];
            let owner = cluster.owner(slot);
            cluster.nodes[owner].kill();
            cluster.wait_until_moved(slot, owner);
            cluster.nodes[owner].restart();
            cluster.wait_until_whole();
            cluster.wait_until_followed();
        }
    }

    /// Moves slots that are in use to a server that has just joined; the next time they move on.
    pub fn move_slots(&mut self, turn: usize) {
        if let Running::Cluster { cluster, fresh } = &mut self.running {
            let to = *fresh.get_or_insert_with(|| {
                let to = cluster.add_node();
                cluster.add_replica(to);
                to
            });
            let source = cluster.owner([0_u16, 6_000, 12_000][turn % 3]);
            for _ in 0..SLOTS_MOVED {
                if let Some(slot) = cluster.slot_in_use(source).filter(|slot| cluster.owner(*slot) == source) {
                    cluster.migrate_slot(slot, to, || {});
                }
            }
        }
    }

    /// Ends every connection of PostgreSQL but our own.
    pub fn terminate_backends(&self) {
        if let Running::Postgres(server) = &self.running {
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
        }
    }

    /// Locks the table of documents for a while. One table, so that our own transaction cannot be part of a deadlock.
    pub fn lock_table(&self) {
        if let Running::Postgres(server) = &self.running {
            let seconds = DOWN.as_secs();
            server.sql(&format!(
                "DO $$ BEGIN LOCK TABLE flowfabric.documents IN ACCESS EXCLUSIVE MODE; PERFORM pg_sleep({seconds}); END $$"
            ));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Running::Sqlite { folder, mounted: true } = &self.running {
            // Lazily, because a server that was just killed may still have it open.
            let _ = Command::new("umount").arg("--lazy").arg(folder).status();
        }
    }
}

/// Writes until no more fits.
fn fill_disk(ballast: &Path) {
    use std::io::Write;
    let Ok(mut file) = std::fs::File::create(ballast) else { return };
    for size in [BALLAST_BYTES, 4096, 1] {
        let piece = vec![0; size];
        while file.write_all(&piece).is_ok() {}
    }
}
