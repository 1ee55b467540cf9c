//! The stores one can measure. Adding one: its name, the settings worth comparing, and its address.

use std::any::Any;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ff_store::Store;
use ff_store_valkey::{CommandCost, ValkeyStore};

use crate::error::{Error, Result};
use crate::postgres::Database;
use crate::subject::Allocations;

/// How long Valkey is waited for, unless its address says otherwise.
const STARTUP: &str = "startup_timeout_ms";
const STARTUP_MS: u32 = 2_000;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This process's memory
    Memory,
    /// A file
    Sqlite,
    /// A Valkey server or cluster
    Valkey,
    /// A Postgres server
    Postgres,
}

impl Kind {
    /// As on the command line and in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
            Kind::Valkey => "valkey",
            Kind::Postgres => "postgres",
        }
    }

    /// The meanings that an acknowledgement can have on this store; the first is the usual one.
    pub(crate) fn syncs(self) -> &'static [&'static str] {
        match self {
            Kind::Memory => &["none"],
            Kind::Sqlite => &["full", "normal"],
            Kind::Valkey => &["async", "everysec", "replicated"],
            Kind::Postgres => &["default"],
        }
    }

    /// The setting of this name, if the store has it.
    pub(crate) fn sync(self, name: &str) -> Result<&'static str> {
        let unknown =
            || Error::Usage(format!("{} has no sync {name:?}, but {}", self.as_str(), self.syncs().join(", ")));
        self.syncs().iter().find(|known| **known == name).copied().ok_or_else(unknown)
    }

    fn of_address(url: &str) -> Option<Self> {
        match url.split_once("://")?.0 {
            "memory" => Some(Kind::Memory),
            "sqlite" => Some(Kind::Sqlite),
            "valkey" | "valkeys" => Some(Kind::Valkey),
            "postgres" | "postgresql" => Some(Kind::Postgres),
            _ => None,
        }
    }
}

/// Which store is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// A new and empty one.
    New(Kind),
    /// One that is there, or a file that will be.
    At(Kind, String),
}

impl Choice {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Choice::New(kind) | Choice::At(kind, _) => *kind,
        }
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let kinds = [Kind::Memory, Kind::Sqlite, Kind::Valkey, Kind::Postgres];
        if let Some(kind) = kinds.into_iter().find(|kind| kind.as_str() == text) {
            return Ok(Choice::New(kind));
        }
        // The text is not repeated: it may hold a password.
        let neither = "--store names neither a kind of store (sqlite, valkey, postgres, memory) nor an address such as \
                       sqlite:///var/tmp/bench.db or valkey://127.0.0.1:6379";
        let kind = Kind::of_address(text).ok_or_else(|| Error::Usage(neither.to_owned()))?;
        Ok(Choice::At(kind, text.to_owned()))
    }
}

/// A new and empty store.
pub struct Place {
    /// Where it is.
    pub url: String,
    /// A guard that must live as long as the store is used, and removes it when it is dropped.
    pub keep: Box<dyn Any + Send>,
}

/// Where new stores may be made.
pub trait Places {
    /// Makes one that can be opened with this setting.
    fn make(&self, kind: Kind, sync: &str) -> Result<Place>;

    /// Reads what this program has allocated, if its allocator counts.
    fn allocations(&self) -> Option<fn() -> Allocations> {
        None
    }
}

/// New SQLite files in a folder; servers are not started.
#[derive(Debug, Clone)]
pub struct NewFiles(
    /// The folder.
    pub PathBuf,
);

impl Places for NewFiles {
    fn make(&self, kind: Kind, _sync: &str) -> Result<Place> {
        if kind != Kind::Sqlite {
            let name = kind.as_str();
            return Err(Error::Usage(format!(
                "no {name} server is started here: give the address of one, --store {name}://HOST..."
            )));
        }
        let folder = tempfile::Builder::new().prefix("ff-bench-").tempdir_in(&self.0)?;
        Ok(Place { url: format!("sqlite://{}", folder.path().join("bench.db").display()), keep: Box::new(folder) })
    }
}

/// A store, and what must live as long as it does.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) kind: Kind,
    /// Where another process would find it, for those that serve several.
    pub(crate) url: Option<String>,
    /// The file, for those that are one.
    file: Option<PathBuf>,
    /// The store once more, where it can tell what its server spent on commits.
    valkey: Option<Arc<ValkeyStore>>,
    _keep: Option<Box<dyn Any + Send>>,
}

impl Opened {
    /// Calls of the commit function so far and the microseconds they took inside of the server.
    pub(crate) async fn server_cost(&self) -> Result<Option<CommandCost>> {
        let Some(valkey) = &self.valkey else { return Ok(None) };
        Ok(valkey.command_costs().await?.get("fcall").copied())
    }

    /// Commands the server has carried out so far, those inside of functions included and the questions of this
    /// program left out.
    pub(crate) async fn commands(&self) -> Result<Option<u64>> {
        let Some(valkey) = &self.valkey else { return Ok(None) };
        let costs = valkey.command_costs().await?;
        Ok(Some(costs.iter().filter(|(name, _)| *name != "info").map(|(_, cost)| cost.calls).sum()))
    }

    /// Bytes that the store takes: of its server's memory, of its file and the log beside it, of its tables with their
    /// indexes.
    pub(crate) async fn size(&self) -> Result<u64> {
        if let Some(valkey) = &self.valkey {
            return Ok(valkey.used_memory().await?);
        }
        if let Some(file) = &self.file {
            let mut log = file.clone().into_os_string();
            log.push("-wal");
            // The log is there only while it is needed.
            let beside = std::fs::metadata(log).map_or(0, |log| log.len());
            return Ok(std::fs::metadata(file)?.len() + beside);
        }
        let Some(url) = &self.url else {
            return Err(Error::Usage(format!("{} does not tell how much it takes", self.kind.as_str())));
        };
        let tables = Database::connect(url).await?.tables().await?;
        Ok(u64::try_from(tables.iter().map(|table| table.heap + table.indexes).sum::<i64>())?)
    }
}

/// Opens a store with a setting, at an address or at a new and empty place. An address keeps what it says itself unless
/// a setting is given.
pub(crate) async fn open(choice: &Choice, sync: Option<&str>, places: &dyn Places) -> Result<Opened> {
    let kind = choice.kind();
    let (url, sync, keep) = match choice {
        Choice::At(_, url) => (url.clone(), sync.map(|sync| kind.sync(sync)).transpose()?, None),
        Choice::New(Kind::Memory) => ("memory://".to_owned(), None, None),
        Choice::New(kind) => {
            let sync = kind.sync(sync.unwrap_or(kind.syncs()[0]))?;
            let place = places.make(*kind, sync)?;
            (place.url, Some(sync), Some(place.keep))
        }
    };
    let parameter = match (kind, sync) {
        (Kind::Sqlite, Some(sync)) => Some(format!("sync={sync}")),
        (Kind::Valkey, Some("replicated")) => Some("tier=replicated".to_owned()),
        (Kind::Valkey, Some(_)) => Some("tier=async".to_owned()),
        _ => None,
    };
    let mut full = url.clone();
    // A person waits: a server that is not there is told soon.
    let impatient = (kind == Kind::Valkey && !url.contains(STARTUP)).then(|| format!("{STARTUP}={STARTUP_MS}"));
    for parameter in parameter.into_iter().chain(impatient) {
        full.push(if full.contains('?') { '&' } else { '?' });
        full.push_str(&parameter);
    }
    if kind == Kind::Valkey {
        let store = Arc::new(ValkeyStore::open(&full).await?);
        return Ok(Opened { store: store.clone(), kind, url: Some(url), file: None, valkey: Some(store), _keep: keep });
    }
    // The way the server opens it: with the columns for people, which cost something on Postgres.
    let store = ff_stores::open(&full).await?;
    let file = (kind == Kind::Sqlite).then(|| url.trim_start_matches("sqlite://").split('?').next()).flatten();
    let file = file.map(PathBuf::from);
    Ok(Opened { store, kind, url: (kind == Kind::Postgres).then_some(url), file, valkey: None, _keep: keep })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_kind_or_an_address() {
        assert_eq!("valkey".parse::<Choice>().unwrap(), Choice::New(Kind::Valkey));
        let address = "valkeys://u:canary@h:1";
        assert_eq!(address.parse::<Choice>().unwrap(), Choice::At(Kind::Valkey, address.into()));
        let refused = "mysql://u:canary@h".parse::<Choice>().unwrap_err().to_string();
        assert!(refused.contains("sqlite://") && !refused.contains("canary"), "{refused}");
    }

    #[test]
    fn files_are_made_and_taken_away_and_servers_are_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let places = NewFiles(folder.path().to_owned());
        let place = places.make(Kind::Sqlite, "full").unwrap();
        assert!(place.url.starts_with("sqlite:///"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        drop(place);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        let Err(Error::Usage(why)) = places.make(Kind::Valkey, "async") else { panic!("it is refused") };
        assert!(why.contains("--store valkey://"), "{why}");
    }
}
