//! Opening the file: finding its one path, recognising its schema, and setting SQLite up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ff_store::{Result, StoreError};
use rusqlite::{Connection, OpenFlags};

use crate::{Options, Sync, error, schema};

/// How long a connection waits for a lock that some other tool holds on the file.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page cache of the writer. SQLite walks through all of it at the end of nearly every transaction, so that a larger one
/// costs more than it saves: with 64 MiB the writer needed a tenth more for a task behind many others.
const WRITER_CACHE_KIB: i64 = 16 * 1024;
/// Page cache of each reader.
const READER_CACHE_KIB: i64 = 16 * 1024;
/// Pages in the WAL before its content moves into the file. The writer waits while that happens: with 4,000 pages and
/// 64 callers the slowest commits took several times as long. With more pages, more would have to be recovered after a
/// crash (here 64 MiB).
const CHECKPOINT_PAGES: u32 = 16_000;
/// The page size of our files, which is SQLite's default.
const PAGE_BYTES: u64 = 4_096;
/// A WAL that grew past this in a burst is cut back to it. The limit is above the usual size, because syncing a file
/// that grows costs more than writing over an existing one.
const WAL_KEPT_BYTES: i64 = 96 * 1024 * 1024;

/// The file's one true path, so that two names of one file share one lock.
pub(crate) fn locate(path: &Path) -> Result<PathBuf> {
    let refused = |why: String| Err(StoreError::Config(why));
    if path.is_dir() {
        return refused(format!("{} is a directory; name a file in it", path.display()));
    }
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let Some(name) = path.file_name() else {
        return refused(format!("{} names no file", path.display()));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(parent.join(name)),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            refused(format!("the directory {} does not exist; create it first", parent.display()))
        }
        Err(why) => refused(format!("the directory {} cannot be used: {why}", parent.display())),
    }
}

/// The writer's connection to a file that is ours, with the schema this program knows.
pub(crate) fn writer(path: &Path, options: &Options) -> Result<Connection> {
    let mut connection = open(path, WRITER_CACHE_KIB)?;
    let found = schema::recognise(&connection)?;
    if connection.is_readonly("main").map_err(|why| error::before_commit(&why))? {
        return Err(StoreError::ReadOnly(format!("{} cannot be written; check its permissions", path.display())));
    }
    let mode = set_up_writer(&mut connection, options, found).map_err(|why| error::before_commit(&why))?;
    if mode != "wal" {
        let path = path.display();
        return Err(StoreError::Config(format!("{path} cannot be kept in WAL mode; use a file on a local disk")));
    }
    Ok(connection)
}

/// A connection that only reads.
pub(crate) fn reader(path: &Path) -> Result<Connection> {
    let connection = open(path, READER_CACHE_KIB)?;
    connection.pragma_update(None, "query_only", true).map_err(|why| error::before_commit(&why))?;
    Ok(connection)
}

fn open(path: &Path, cache_kib: i64) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let set_up = || {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "cache_size", -cache_kib)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "trusted_schema", false)?;
        Ok(connection)
    };
    set_up().map_err(|why: rusqlite::Error| match error::before_commit(&why) {
        StoreError::Unavailable(text) => StoreError::Config(format!("{}: {text}", path.display())),
        other => other,
    })
}

/// Sets the connection up, and returns the journal mode that SQLite gave the file.
fn set_up_writer(connection: &mut Connection, options: &Options, found: u32) -> rusqlite::Result<String> {
    if let Some(pages) = options.max_pages {
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    let synchronous = match options.sync {
        Sync::Full => "FULL",
        Sync::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Where the system's `fsync` leaves the data in the cache of the drive (macOS), a power loss would take it.
    // Elsewhere this changes nothing.
    connection.pragma_update(None, "fullfsync", options.sync == Sync::Full)?;
    connection.pragma_update(None, "checkpoint_fullfsync", options.sync == Sync::Full)?;
    let pages = u64::from(CHECKPOINT_PAGES).min(options.wal_max_bytes / 2 / PAGE_BYTES);
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| Ok(()))?;
    connection.query_row(&format!("PRAGMA journal_size_limit = {WAL_KEPT_BYTES}"), [], |_| Ok(()))?;
    schema::migrate(connection, found)?;
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_survives_a_power_loss_does_so_on_every_system() {
        for (sync, wanted) in [(Sync::Full, 1), (Sync::Normal, 0)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("ff.db");
            let connection = writer(&path, &Options { sync, ..Options::new(&path) }).unwrap();
            for pragma in ["fullfsync", "checkpoint_fullfsync"] {
                let found: i64 = connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).unwrap();
                assert_eq!(found, wanted, "{pragma} with {sync:?}");
            }
        }
    }
}
