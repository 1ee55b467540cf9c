//! How a file is opened, and the address that says so.

use std::path::PathBuf;
use std::str::FromStr;

use ff_store::StoreError;

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// After it reached the disk: it survives a power loss.
    #[default]
    Full,
    /// After it reached the operating system: it survives the death of the process, but a power loss may take the
    /// last moments. The file stays sound either way.
    Normal,
}

impl Sync {
    /// The word for it in an address.
    pub fn as_str(self) -> &'static str {
        match self {
            Sync::Full => "full",
            Sync::Normal => "normal",
        }
    }
}

/// How to open a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The file; it is created when missing, its directory is not.
    pub path: PathBuf,
    /// What an acknowledged commit survives.
    pub sync: Sync,
    /// Threads that read, each with a connection of its own.
    pub readers: usize,
    /// The most pages of 4 KiB that the file may have; the store is full then.
    pub max_pages: Option<u32>,
    /// The write-ahead log beside the file is cut when it is longer than this, even if that makes commits wait.
    pub wal_max_bytes: u64,
}

impl Options {
    /// Most threads that may read.
    pub const READERS_MAX: usize = 64;
    /// Threads that read, unless the address says otherwise.
    pub const READERS_DEFAULT: usize = 2;

    /// Twice the usual size of the log, so that commits seldom wait for it to be cut.
    pub const WAL_MAX_BYTES_DEFAULT: u64 = 128 * 1024 * 1024;

    /// The defaults, for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            sync: Sync::default(),
            readers: Self::READERS_DEFAULT,
            max_pages: None,
            wal_max_bytes: Self::WAL_MAX_BYTES_DEFAULT,
        }
    }
}

/// An address: `sqlite://relative.db`, `sqlite:///absolute.db`, with `?sync=full|normal` and `&readers=2`.
impl FromStr for Options {
    type Err = StoreError;

    fn from_str(address: &str) -> Result<Self, StoreError> {
        let refused = |why: String| Err(StoreError::Config(why));
        let Some(rest) = address.strip_prefix("sqlite://") else {
            return refused(format!("{address:?} is not an address of the form sqlite://path?sync=full"));
        };
        let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() {
            return refused(format!("{address:?} names no file"));
        }
        if path.contains('\0') {
            return refused("the path contains a NUL byte".into());
        }
        let mut options = Self::new(path);
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("sync", "full")) => options.sync = Sync::Full,
                Some(("sync", "normal")) => options.sync = Sync::Normal,
                Some(("sync", other)) => return refused(format!("sync must be full or normal, not {other:?}")),
                Some(("readers", count)) => match count.parse() {
                    Ok(readers @ 1..=Self::READERS_MAX) => options.readers = readers,
                    _ => return refused(format!("readers must be 1 to {}, not {count:?}", Self::READERS_MAX)),
                },
                _ => return refused(format!("{parameter:?} is not a parameter of a sqlite address")),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_how() {
        let options: Options = "sqlite://data/ff.db?sync=normal&readers=3".parse().unwrap();
        assert_eq!(options, Options { sync: Sync::Normal, readers: 3, ..Options::new("data/ff.db") });
        assert_eq!("sqlite:///var/ff.db".parse::<Options>().unwrap(), Options::new("/var/ff.db"));
    }

    #[test]
    fn a_wrong_address_is_refused_and_says_why() {
        for (address, word) in [
            ("postgres://x", "form"),
            ("sqlite://", "no file"),
            ("sqlite://a?sync=off", "sync"),
            ("sqlite://a?readers=0", "readers"),
            ("sqlite://a?mode=ro", "mode"),
        ] {
            let error = address.parse::<Options>().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
