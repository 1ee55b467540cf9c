//! The faults of a campaign, made on purpose.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ff_testkit::{postgres, valkey};

use super::load::Load;
use crate::recovery::fleet::Fleet;

/// A server that was killed is started again after this; one that hangs goes on after it.
const DOWN: Duration = Duration::from_secs(3);

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A server is killed and started again.
    Server,
    /// A server hangs and goes on.
    Pause,
    /// Every worker forgets what it has in hand, and remembers it when its leases are over.
    Workers,
    /// The store is killed and started again.
    Store,
}

impl Fault {
    pub(super) const ALL: [Fault; 4] = [Fault::Server, Fault::Pause, Fault::Workers, Fault::Store];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::Server => "server",
            Fault::Pause => "pause",
            Fault::Workers => "workers",
            Fault::Store => "store",
        }
    }

    pub(super) fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|fault| fault.name() == name).ok_or(format!("{name} is no fault"))
    }
}

/// A store that ends with the campaign.
pub(super) enum Store {
    Sqlite(PathBuf),
    Valkey { server: valkey::Server, forgets: bool },
    Postgres(postgres::Server),
}

impl Store {
    pub(super) fn start(name: &str) -> Result<Self, String> {
        match name {
            "sqlite" => {
                let folder = std::env::temp_dir().join(format!("ff-torture-{}", std::process::id()));
                std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
                Ok(Self::Sqlite(folder))
            }
            "valkey" => {
                let server = valkey::Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
                Ok(Self::Valkey { server, forgets: false })
            }
            "postgres" => Ok(Self::Postgres(postgres::Server::start())),
            _ => Err(format!("{name} is no store")),
        }
    }

    /// A Valkey that keeps nothing.
    pub(super) fn forgetful() -> Self {
        Self::Valkey { server: valkey::Server::start(), forgets: true }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Valkey { forgets: true, .. } => "a Valkey that forgets",
            Self::Valkey { .. } => "valkey",
            Self::Postgres(_) => "postgres",
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite://{}/ff.db", folder.display()),
            Self::Valkey { server, forgets: true } => server.url(),
            Self::Valkey { server, .. } => format!("{}?tier=fsynced", server.url()),
            Self::Postgres(server) => server.url(),
        }
    }

    /// SQLite belongs to one process.
    pub(super) fn servers(&self) -> usize {
        if matches!(self, Self::Sqlite(_)) { 1 } else { 3 }
    }

    /// The faults that are possible with it.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let own_process = !matches!(self, Self::Sqlite(_));
        Fault::ALL.into_iter().filter(|fault| own_process || *fault != Fault::Store).collect()
    }

    fn kill(&mut self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Valkey { server, .. } => {
                server.kill();
                thread::sleep(DOWN);
                server.restart();
            }
            Self::Postgres(server) => {
                server.kill9();
                thread::sleep(DOWN);
                server.restart();
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Self::Sqlite(folder) = self {
            // Files that stay behind are in the folder for temporary files.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Lets something go wrong, and mends it.
pub(super) fn strike(fault: Fault, fleet: &Fleet, store: &mut Store, load: &Load) -> Result<(), String> {
    match fault {
        Fault::Server => {
            let (server, _) = fleet.kill();
            thread::sleep(DOWN);
            fleet.restart(server)
        }
        Fault::Pause => {
            fleet.pause(DOWN);
            Ok(())
        }
        Fault::Workers => {
            load.forgotten.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
        Fault::Store => {
            store.kill();
            Ok(())
        }
    }
}
