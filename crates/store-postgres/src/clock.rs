//! The least that the store's time can be by now, as far as this process knows.
//!
//! The server's clock may be set back, or another server with a slower one may take over. An instant that was given out
//! before must not come again, and time must not stand still until that clock has caught up either: so the last answer
//! counts on by the process's own clock, which is never set.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// This part of the time that passed does not count, so that a server whose clock runs a little slower than ours is not
/// taken for one that was set back. Clocks that are disciplined differ by half of it at most.
const SLACK_PARTS: u32 = 1_000;

/// Shared by the readers and the writers of a store.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<Seen>>);

/// An answer of the store.
#[derive(Debug, Clone, Copy)]
struct Seen {
    time_ms: i64,
    at: Instant,
}

impl Seen {
    fn floor(self, at: Instant) -> i64 {
        let passed = at.saturating_duration_since(self.at);
        let counted = passed - passed / SLACK_PARTS;
        self.time_ms.saturating_add(milliseconds(counted))
    }
}

impl Clock {
    /// The least that the store's time can be.
    pub(crate) fn floor(&self) -> i64 {
        self.floor_at(Instant::now())
    }

    /// Learns from an answer of the store.
    pub(crate) fn observe(&self, time_ms: i64) {
        self.observe_at(time_ms, Instant::now());
    }

    fn floor_at(&self, at: Instant) -> i64 {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map_or(0, |seen| seen.floor(at))
    }

    fn observe_at(&self, time_ms: i64, at: Instant) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none_or(|seen| time_ms > seen.floor(at)) {
            *seen = Some(Seen { time_ms, at });
        }
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_counts_on_a_little_slower_than_time_and_never_goes_back() {
        let (clock, start) = (Clock::default(), Instant::now());
        assert_eq!(clock.floor_at(start), 0);
        clock.observe_at(1_000_000, start);
        assert_eq!(clock.floor_at(start + Duration::from_secs(10)), 1_009_990);
        // An answer that was long on its way says nothing new.
        clock.observe_at(1_000_500, start + Duration::from_secs(10));
        assert_eq!(clock.floor_at(start + Duration::from_secs(10)), 1_009_990);
        clock.observe_at(1_010_000, start + Duration::from_secs(10));
        assert_eq!(clock.floor_at(start + Duration::from_secs(10)), 1_010_000);
    }
}
