//! One process for one file. SQLite itself would let several in, but each would trust its own clock and its own hints.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ff_store::{Result, StoreError};

/// A process that was just stopped, or a child it is starting at that moment, may hold the lock a little longer than
/// the store was open: the lock goes when the last copy of its file does.
const PATIENCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// Held as long as the store is open; the operating system lets go of it when the process dies, however it dies.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock beside a database file.
    pub(crate) fn take(database: &Path) -> Result<Self> {
        let path = lock_path(database);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|why| cannot_create(&path, &why))?;
        let mut patience = PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(holder(database, &mut file))),
                Err(TryLockError::Error(why)) => {
                    return Err(StoreError::Config(format!("{} cannot be locked: {why}", path.display())));
                }
            }
        }
        // The number is for people who find the lock taken; a lock without it works as well.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .and_then(|()| file.flush());
        if let Err(why) = written {
            tracing::debug!(path = %path.display(), %why, "the lock file does not name this process");
        }
        Ok(Self { _file: file })
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-lock");
    PathBuf::from(name)
}

fn holder(database: &Path, file: &mut File) -> String {
    let mut text = String::new();
    let database = database.display();
    let process = match file.read_to_string(&mut text).map(|_| text.trim().parse::<u32>()) {
        Ok(Ok(id)) if id == std::process::id() => format!("this process ({id})"),
        Ok(Ok(id)) => format!("process {id}"),
        _ => "another process".to_owned(),
    };
    format!("{process} has {database} open; stop it, talk to its server instead, or use another file")
}

fn cannot_create(path: &Path, why: &std::io::Error) -> StoreError {
    let text = format!("{} cannot be written: {why}", path.display());
    match why.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly(text),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full(text),
        _ => StoreError::Config(text),
    }
}
