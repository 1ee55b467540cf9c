//! The store's time: the system's clock, except that it never goes back and never stands still.
//!
//! When the system's clock is set back, time goes on by the monotonic clock until the system's clock has caught up. The
//! last instant given out before a restart is kept in the file.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// While the system's clock is behind, one part in so many of the passed time is not counted. The store's time thus
/// meets the system's clock again, slowly enough that no lease or timer notices.
const SLACK_PARTS: u32 = 1_000;

/// The clock of one file, shared by its writer and its readers.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<Given>);

/// The latest time that was given out, and when.
#[derive(Debug, Clone, Copy)]
struct Given {
    time: Duration,
    at: Instant,
}

impl Clock {
    /// A clock that begins no earlier than the last instant kept in the file.
    pub(crate) fn starting_at(last_ms: i64) -> Self {
        Self::starting(last_ms, Instant::now())
    }

    /// Milliseconds since the epoch, never less than any instant returned before.
    pub(crate) fn now(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.advance(since_epoch, Instant::now())
    }

    fn starting(last_ms: i64, at: Instant) -> Self {
        Self(Mutex::new(Given { time: Duration::from_millis(u64::try_from(last_ms).unwrap_or(0)), at }))
    }

    fn advance(&self, system: Duration, at: Instant) -> i64 {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = at.saturating_duration_since(given.at);
        let counted = given.time + (passed - passed / SLACK_PARTS);
        *given = Given { time: counted.max(system), at: at.max(given.at) };
        i64::try_from(given.time.as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: i64 = 1_800_000_000_000;

    fn noon_plus(ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(NOON_MS + ms).unwrap())
    }

    #[test]
    fn a_file_from_the_future_goes_on_from_its_last_instant_and_does_not_wait() {
        let start = Instant::now();
        let clock = Clock::starting(NOON_MS + 3_600_000, start);
        let mut last = 0;
        for second in 0..100 {
            let now = clock.advance(noon_plus(second * 1_000), start + Duration::from_secs(second.cast_unsigned()));
            assert_eq!(now, NOON_MS + 3_600_000 + second * 999, "the file's time goes on");
            assert!(now > last);
            last = now;
        }
    }

    #[test]
    fn steps_of_the_system_clock_in_both_directions_lead_never_back() {
        let start = Instant::now();
        let clock = Clock::starting(0, start);
        // How far the system's clock is ahead of the true time, from each second on.
        let steps = [(0, 0), (10, -3_600_000), (20, 0), (30, 3_600_000), (40, -60_000), (50, 3_600_000)];
        let mut last = clock.advance(noon_plus(0), start);
        for tenth in 1..600_i64 {
            let true_ms = tenth * 100;
            let ahead = steps.iter().rev().find(|(from, _)| from * 1_000 <= true_ms).map_or(0, |(_, ahead)| *ahead);
            let at = start + Duration::from_millis(true_ms.cast_unsigned());
            let now = clock.advance(noon_plus(true_ms + ahead), at);
            assert!(now > last, "stood still or went back at {true_ms} ms");
            let stepped = now - last > 1_000;
            assert_eq!(stepped, true_ms == 30_000, "only the step forward is followed, at {true_ms} ms");
            last = now;
        }
    }

    #[test]
    fn moments_too_short_for_a_millisecond_add_up() {
        let start = Instant::now();
        let clock = Clock::starting(NOON_MS, start);
        let behind = noon_plus(-1_000);
        let last = (0..=10_000_u64).map(|n| clock.advance(behind, start + Duration::from_micros(n * 7))).last();
        assert_eq!(last, Some(NOON_MS + 69), "70 ms less a thousandth");
    }
}
