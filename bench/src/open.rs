//! The stores one can measure. Adding one: its name, the settings worth comparing, and its arm in [`open`].

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use ff_store::Store;
use ff_store_valkey::{CommandCost, ValkeyStore};
use ff_testkit::valkey::{Replicated, Server};

use crate::Result;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A file
    Sqlite,
    /// A Valkey server or cluster
    Valkey,
    /// A Postgres server
    Postgres,
}

impl Kind {
    /// As on the command line and in results.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Sqlite => "sqlite",
            Kind::Valkey => "valkey",
            Kind::Postgres => "postgres",
        }
    }

    /// What an acknowledgement can mean on this store; each is measured.
    pub(crate) fn syncs(self) -> &'static [&'static str] {
        match self {
            Kind::Sqlite => &["full", "normal"],
            Kind::Valkey => &["async", "everysec", "replicated"],
            Kind::Postgres => &["default"],
        }
    }
}

/// A store, and what must live as long as it does.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// Where another process would find it, for those that serve several.
    pub(crate) url: Option<String>,
    /// The same store, where it can tell what its server spent on commits.
    valkey: Option<Arc<ValkeyStore>>,
    _keep: Option<Box<dyn Any + Send>>,
}

impl Opened {
    /// Calls of the commit function so far and the microseconds they took inside of the server.
    pub(crate) async fn server_cost(&self) -> Result<Option<CommandCost>> {
        let Some(valkey) = &self.valkey else { return Ok(None) };
        Ok(valkey.command_costs().await?.get("fcall").copied())
    }
}

impl Opened {
    /// Commands the server has carried out so far, those inside of functions included and the questions of this
    /// program left out.
    pub(crate) async fn commands(&self) -> Result<Option<u64>> {
        let Some(valkey) = &self.valkey else { return Ok(None) };
        let costs = valkey.command_costs().await?;
        Ok(Some(costs.iter().filter(|(name, _)| *name != "info").map(|(_, cost)| cost.calls).sum()))
    }

    /// Bytes of memory that the server uses.
    pub(crate) async fn used_memory(&self) -> Result<Option<u64>> {
        match &self.valkey {
            Some(valkey) => Ok(Some(valkey.used_memory().await?)),
            None => Ok(None),
        }
    }
}

/// Opens a store with a setting, at an address or, where that is possible, at a new and empty place.
pub(crate) async fn open(kind: Kind, sync: &str, url: Option<&str>) -> Result<Opened> {
    match kind {
        Kind::Sqlite => {
            let (mut options, keep): (ff_store_sqlite::Options, Option<Box<dyn Any + Send>>) = match url {
                Some(url) => (url.parse()?, None),
                None => {
                    let directory = tempfile::tempdir_in(beside_the_program()?)?;
                    (ff_store_sqlite::Options::new(directory.path().join("bench.db")), Some(Box::new(directory)))
                }
            };
            options.sync = if sync == "normal" { ff_store_sqlite::Sync::Normal } else { ff_store_sqlite::Sync::Full };
            Ok(Opened { store: ff_store_sqlite::open(&options)?, url: None, valkey: None, _keep: keep })
        }
        Kind::Valkey => open_valkey(sync, url).await,
        Kind::Postgres => open_postgres(url).await,
    }
}

/// Without an address: a cluster of our own, where temporary files go.
async fn open_postgres(url: Option<&str>) -> Result<Opened> {
    let (url, keep): (String, Option<Box<dyn Any + Send>>) = match url {
        Some(url) => (url.to_owned(), None),
        None => {
            let server = ff_testkit::postgres::Server::start();
            (server.url(), Some(Box::new(server)))
        }
    };
    // The way the server opens it: with the columns for people, which cost something.
    Ok(Opened { store: ff_stores::open(&url).await?, url: Some(url), valkey: None, _keep: keep })
}

/// Without an address: a server of our own, persistent or followed by a replica as the setting says.
async fn open_valkey(sync: &str, url: Option<&str>) -> Result<Opened> {
    let tier = if sync == "replicated" { "replicated" } else { "async" };
    let (url, keep): (String, Option<Box<dyn Any + Send>>) = match (url, sync) {
        (Some(url), _) => (url.to_owned(), None),
        (None, "replicated") => {
            let pair = Replicated::start();
            (pair.primary.url(), Some(Box::new(pair)))
        }
        (None, "everysec") => {
            let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
            (server.url(), Some(Box::new(server)))
        }
        (None, _) => {
            let server = Server::start();
            (server.url(), Some(Box::new(server)))
        }
    };
    let separator = if url.contains('?') { '&' } else { '?' };
    let store = Arc::new(ValkeyStore::open(&format!("{url}{separator}tier={tier}")).await?);
    Ok(Opened { store: store.clone(), url: Some(url), valkey: Some(store), _keep: keep })
}

/// The system's directory for temporary files is often memory, where a sync costs nothing; the program's is a disk.
fn beside_the_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().map_or_else(|| PathBuf::from("."), PathBuf::from))
}
