//! Keeps a loop from filling a disk: of a log line that repeats, one in a second is written, with the number of those
//! that were not. The caller brings the time, of any clock of its own that does not go back.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// How long a line is kept back after it was written.
pub const LOG_INTERVAL_MS: i64 = 1_000;

/// Remembers when lines were written. A line is known by its name, which is part of the program, so there are few.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<BTreeMap<&'static str, Line>>);

#[derive(Debug)]
struct Line {
    next_at: i64,
    suppressed: u64,
}

impl LogLimit {
    /// A limit under which nothing was written yet.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Whether a line may be written now: then the number of those that were suppressed since the last one.
    pub fn admit(&self, line: &'static str, now_ms: i64) -> Option<u64> {
        let mut lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let line = lines.entry(line).or_insert(Line { next_at: i64::MIN, suppressed: 0 });
        if now_ms < line.next_at {
            line.suppressed += 1;
            return None;
        }
        line.next_at = now_ms.saturating_add(LOG_INTERVAL_MS);
        Some(std::mem::take(&mut line.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_line_is_written_once_a_second_and_counted() {
        let limit = LogLimit::new();
        assert_eq!(limit.admit("a", 0), Some(0));
        assert_eq!((1..1_000).filter_map(|now| limit.admit("a", now)).count(), 0);
        assert_eq!(limit.admit("b", 500), Some(0), "another line is not held back");
        assert_eq!(limit.admit("a", 1_000), Some(999));
        assert_eq!(limit.admit("a", 5_000), Some(0));
    }
}
