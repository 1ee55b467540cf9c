//! Keeps the write-ahead log from growing without end. SQLite moves its content into the file by itself, but begins it
//! anew only at a moment without readers, which need not come while reads overlap. And a log that has taken the last
//! room on its disk cannot be moved into the file any more, because the file has to grow.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// A lock that every read of ours shares, and that cutting the log takes exclusively: overlapping readers would
/// otherwise keep the log from beginning anew.
pub(crate) type Quiet = Arc<RwLock<()>>;

/// How long cutting waits for readers of another program. No commit is made meanwhile, and such a reader may take as
/// long as it likes.
const READERS_PATIENCE: Duration = Duration::from_millis(500);
/// After a reader of another program was in the way, the next try comes no sooner.
const PAUSE: Duration = Duration::from_secs(5);

/// The log of one file.
pub(crate) struct Wal {
    path: PathBuf,
    directory: PathBuf,
    max_bytes: u64,
    busy_timeout: Duration,
    again_at: Option<Instant>,
    quiet: Quiet,
}

impl Wal {
    pub(crate) fn of(database: &Path, max_bytes: u64, busy_timeout: Duration, quiet: Quiet) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        let directory = database.parent().unwrap_or(Path::new(".")).to_owned();
        Self { path: path.into(), directory, max_bytes, busy_timeout, again_at: None, quiet }
    }

    /// Cuts the log if it is too long.
    pub(crate) fn tend(&mut self, connection: &Connection) {
        let bytes = self.bytes();
        if is_too_long(bytes, free_bytes(&self.directory), self.max_bytes)
            && self.again_at.is_none_or(|at| at <= Instant::now())
        {
            self.cut(connection);
        }
    }

    /// Moves the content of the log into the file and frees the room of the log; returns whether it freed any.
    pub(crate) fn cut(&mut self, connection: &Connection) -> bool {
        let before = self.bytes();
        if before == 0 {
            return false;
        }
        if let Err(why) = self.checkpoint(connection) {
            tracing::warn!(%why, bytes = before, "the write-ahead log cannot be moved into its file");
        }
        let after = self.bytes();
        if after >= before {
            tracing::warn!(bytes = after, "another program's reader keeps the write-ahead log from beginning anew");
        }
        self.again_at = (after >= before).then(|| Instant::now() + PAUSE);
        after < before
    }

    fn checkpoint(&self, connection: &Connection) -> rusqlite::Result<()> {
        let _quiet = self.quiet.write().unwrap_or_else(PoisonError::into_inner);
        connection.busy_timeout(READERS_PATIENCE)?;
        let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        connection.busy_timeout(self.busy_timeout)?;
        cut
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |found| found.len())
    }
}

/// Whether the log must be cut: it is longer than its limit, or the file, which may grow by as much, would soon find no
/// room for it on the disk.
fn is_too_long(bytes: u64, free_bytes: Option<u64>, max_bytes: u64) -> bool {
    bytes > max_bytes || free_bytes.is_some_and(|free| bytes > free)
}

#[cfg(unix)]
fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_directory: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_at_its_limit_and_before_it_has_taken_the_room_it_needs_to_be_moved() {
        assert!(!is_too_long(100, Some(100), 100));
        assert!(is_too_long(101, Some(1_000), 100));
        assert!(is_too_long(51, Some(50), 100));
        assert!(!is_too_long(0, Some(0), 100));
        assert!(!is_too_long(51, None, 100));
    }
}
