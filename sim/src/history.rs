//! The history of a run, one line for each event, and a hash over all of it: two runs of a seed that differ anywhere
//! print different hashes.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Lines kept; a run that goes on for longer than a person reads keeps its end.
const LINES_MAX: usize = 400_000;

/// The events of one run.
#[derive(Debug)]
pub(crate) struct History {
    lines: std::collections::VecDeque<String>,
    hash: u64,
    keep: bool,
}

impl History {
    /// An empty history. Without `keep` only the hash remembers.
    pub(crate) fn new(keep: bool) -> Self {
        Self { lines: std::collections::VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325, keep }
    }

    /// Adds an event.
    pub(crate) fn line(&mut self, now_ms: i64, event: std::fmt::Arguments<'_>) {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = write!(line, "{now_ms:>9} {event}");
        self.mix(line.as_bytes());
        if self.keep {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
    }

    /// Adds something to the hash only.
    pub(crate) fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Writes the lines to a file in a directory.
    pub(crate) fn save(&self, directory: &Path, seed: u64) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("seed-{seed}.history"));
        let mut file = io::BufWriter::new(std::fs::File::create(&path)?);
        for line in &self.lines {
            writeln!(file, "{line}")?;
        }
        file.flush()?;
        Ok(path)
    }
}
