//! The store's time: the process's clock, except that it never goes back.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Shared by the writer and the readers of one file.
#[derive(Debug)]
pub(crate) struct Clock {
    last: AtomicI64,
}

impl Clock {
    /// A clock that begins no earlier than the last instant kept in the file.
    pub(crate) fn starting_at(last: i64) -> Self {
        Self { last: AtomicI64::new(last) }
    }

    /// Milliseconds since the epoch, never less than any instant returned before.
    pub(crate) fn now(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis());
        let now = i64::try_from(since_epoch).unwrap_or(i64::MAX);
        self.last.fetch_max(now, Ordering::AcqRel).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_ahead_waits_and_never_goes_back() {
        let ahead = Clock::starting_at(0).now() + 3_600_000;
        let clock = Clock::starting_at(ahead);
        assert_eq!(clock.now(), ahead);
        assert_eq!(clock.now(), ahead);
    }
}
