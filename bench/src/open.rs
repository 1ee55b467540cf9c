//! The stores one can measure. Adding one: its name, the settings worth comparing, and its arm in [`open`].

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use ff_store::Store;

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
            Kind::Valkey | Kind::Postgres => &["default"],
        }
    }
}

/// A store, and what must live as long as it does.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    _keep: Option<Box<dyn Any + Send>>,
}

/// Opens a store with a setting, at an address or, where that is possible, at a new and empty place.
pub(crate) fn open(kind: Kind, sync: &str, url: Option<&str>) -> Result<Opened> {
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
            Ok(Opened { store: ff_store_sqlite::open(&options)?, _keep: keep })
        }
        Kind::Valkey | Kind::Postgres => Err(format!("this build cannot open {}", kind.as_str()).into()),
    }
}

/// The system's directory for temporary files is often memory, where a sync costs nothing; the program's is a disk.
fn beside_the_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().map_or_else(|| PathBuf::from("."), PathBuf::from))
}
