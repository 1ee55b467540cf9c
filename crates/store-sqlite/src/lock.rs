//! One process for one file. SQLite itself would let several in, but each would trust its own clock and its own hints.
//!
//! A file beside the database is locked, and names the process that has it. A hard link has another file beside it, and
//! a person may remove that file while it is locked: so on Linux the database itself is locked, too. There this lock
//! and SQLite's own locks on ranges of the file do not affect each other. On other systems they would, so a file with
//! several names is refused there.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ff_store::{Result, StoreError};

/// A process that was just stopped, or a child that it was starting at that moment, may hold the lock a little longer
/// than the store was open: the lock is released with the last copy of its file handle.
const LOCK_TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);

/// The lock, held as long as the store is open. The operating system releases it when the process dies, however it
/// dies.
#[derive(Debug)]
pub(crate) struct FileLock {
    _database: database::Lock,
    _beside: File,
}

impl FileLock {
    /// Takes the lock of a database file.
    pub(crate) fn take(database: &Path) -> Result<Self> {
        let path = lock_path(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // The file is private, because another user who can open it could lock it and keep the owner out.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path).map_err(|why| cannot_create(&path, &why))?;
        match wait_for(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(holder(database, &mut file))),
            Err(TryLockError::Error(why)) => {
                return Err(StoreError::Config(format!("{} cannot be locked: {why}", path.display())));
            }
        }
        let itself = database::Lock::take(database)?;
        // The number is for people who find the lock taken; a lock without it works as well.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .and_then(|()| file.flush());
        if let Err(why) = written {
            tracing::debug!(path = %path.display(), %why, "the lock file does not name this process");
        }
        Ok(Self { _database: itself, _beside: file })
    }
}

fn wait_for(file: &File) -> std::result::Result<(), TryLockError> {
    let mut tries_left = LOCK_TRIES;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if tries_left > 0 => {
                tries_left -= 1;
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-lock");
    PathBuf::from(name)
}

fn holder(database: &Path, file: &mut File) -> String {
    let mut text = String::new();
    let process = match file.read_to_string(&mut text).map(|_| text.trim().parse::<u32>()) {
        Ok(Ok(id)) if id == std::process::id() => format!("this process ({id})"),
        Ok(Ok(id)) => format!("process {id}"),
        _ => "another process".to_owned(),
    };
    in_use(&process, database)
}

fn in_use(process: &str, database: &Path) -> String {
    let database = database.display();
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

/// The lock of the database itself.
#[cfg(target_os = "linux")]
mod database {
    use std::collections::BTreeSet;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::{File, OpenOptions, Path, Result, StoreError, TryLockError, cannot_create, in_use, wait_for};

    /// Device and number of the files that this process has locked. Closing any handle of a file releases the locks
    /// that SQLite holds on it for the whole process, so a file that is open here must not be opened again only to
    /// check it.
    static OPEN_HERE: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

    fn open_here() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
        OPEN_HERE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[derive(Debug)]
    pub(super) struct Lock {
        file: Option<File>,
        identity: (u64, u64),
    }

    impl Lock {
        pub(super) fn take(path: &Path) -> Result<Self> {
            let unusable = |why: std::io::Error| cannot_create(path, &why);
            if !path.exists() {
                // An empty file is a database without tables. Only its owner may read it; SQLite gives the files beside
                // it the same permissions.
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(unusable)?;
            }
            let found = std::fs::metadata(path).map_err(unusable)?;
            let identity = (found.dev(), found.ino());
            if !open_here().insert(identity) {
                let process = format!("this process ({})", std::process::id());
                return Err(StoreError::Locked(in_use(&process, path)));
            }
            let mut lock = Self { file: None, identity };
            let file = File::open(path).map_err(unusable)?;
            match wait_for(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Locked(in_use("another process, perhaps under another name,", path)));
                }
                Err(TryLockError::Error(why)) => {
                    return Err(StoreError::Config(format!("{} cannot be locked: {why}", path.display())));
                }
            }
            lock.file = Some(file);
            Ok(lock)
        }
    }

    impl Drop for Lock {
        fn drop(&mut self) {
            // The handle is closed before the file leaves the list, so that another store of this process opens it only
            // afterwards. The list stays locked meanwhile: when the last handle of a deleted file is closed, the system may
            // give its number to a new file at once, which would be found on the list.
            let mut open = open_here();
            self.file = None;
            open.remove(&self.identity);
        }
    }
}

/// The lock of the database itself on systems where it would interfere with SQLite's own locks.
#[cfg(not(target_os = "linux"))]
mod database {
    use super::{Path, Result};

    #[derive(Debug)]
    pub(super) struct Lock;

    impl Lock {
        #[cfg(unix)]
        pub(super) fn take(path: &Path) -> Result<Self> {
            use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

            if !path.exists() {
                // Only its owner may read it; SQLite gives the files beside it the same permissions.
                let mut options = super::OpenOptions::new();
                let created = options.write(true).create_new(true).mode(0o600).open(path);
                created.map_err(|why| super::cannot_create(path, &why))?;
            }
            if std::fs::metadata(path).is_ok_and(|found| found.nlink() > 1) {
                let why = format!("{} has several names (hard links); leave it one of them", path.display());
                return Err(ff_store::StoreError::Config(why));
            }
            Ok(Self)
        }

        #[cfg(not(unix))]
        pub(super) fn take(_path: &Path) -> Result<Self> {
            Ok(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File systems give the number of a deleted file to the next new one, so the threads get each other's.
    #[test]
    fn a_new_file_is_free_although_a_file_of_its_number_was_open_here() {
        const THREADS: usize = 8;
        const FILES: usize = 300;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..FILES {
                        let directory = tempfile::tempdir().unwrap();
                        let lock = FileLock::take(&directory.path().join("ff.db")).unwrap();
                        drop(directory);
                        drop(lock);
                    }
                });
            }
        });
    }
}
