//! How much work is open, as submitters go by it: what a server counted last, and what was submitted since. Servers share a
//! count for two seconds. Submitters that went by the count alone made several times as much in the meantime as they should.

use std::sync::Mutex;

/// A count is no older than this. Submissions are forgotten after this time, whatever a count says.
const COUNT_AGE_MAX_MS: i64 = 5_000;

/// The work that has not ended.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    counted: u64,
    /// When executions were acknowledged that the count may lack, and how many.
    submitted: Vec<(i64, u64)>,
}

impl Backlog {
    /// So many executions were acknowledged at this instant.
    pub(super) fn submitted(&self, count: u64, at: i64) {
        self.known().submitted.push((at, count));
    }

    /// A server counted so many open executions at an instant before `now`.
    pub(super) fn counted(&self, count: u64, counted_at: i64, now: i64) {
        let mut known = self.known();
        known.counted = count;
        let since = counted_at.max(now - COUNT_AGE_MAX_MS);
        known.submitted.retain(|(at, _)| *at > since);
    }

    /// How many are open, at the most.
    pub(super) fn open(&self) -> u64 {
        let known = self.known();
        known.counted + known.submitted.iter().map(|(_, count)| count).sum::<u64>()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_submitted_since_the_count_is_open_too() {
        let backlog = Backlog::default();
        backlog.submitted(1, 1_000);
        backlog.submitted(4, 1_010);
        assert_eq!(backlog.open(), 5, "before anything was counted");
        backlog.counted(7, 1_005, 2_900);
        assert_eq!(backlog.open(), 11, "the count is older than the second");
        backlog.submitted(2, 3_000);
        // The same count once more, which servers share.
        backlog.counted(7, 1_005, 3_010);
        assert_eq!(backlog.open(), 13);
        backlog.counted(3, 3_005, 3_020);
        assert_eq!(backlog.open(), 3);
    }

    #[test]
    fn a_count_of_another_clock_stops_no_submitter_for_good() {
        let backlog = Backlog::default();
        backlog.submitted(9, 1_000);
        backlog.counted(0, -3_600_000, 1_000 + COUNT_AGE_MAX_MS);
        assert_eq!(backlog.open(), 0);
    }
}
