//! The store's time, estimated between its answers. It dates documents; whether a lease holds is judged by the store
//! itself inside the commit.
//!
//! The nodes of a store need not agree on the time, so there is one estimate for each clock that
//! [`Store::clock_of`](ff_store::Store::clock_of) names, and an answer of one clock is never used for another.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// How long an answer counts. The time that an answer spent on its way is unknown, so the quickest answer of a while is
/// the most exact. But the clocks of two machines drift apart, so it must not count forever.
const WINDOW_US: i64 = 5_000_000;
/// An estimate that turned out too high waits for the store to catch up, so that time never goes back. A store that is
/// behind by more than this has stepped back itself: its time is followed, or everything here would be early for long.
const WAIT_MAX_US: i64 = 500_000;
/// Clocks that are remembered. A cluster has a few; names of nodes that are gone must not add up.
const CLOCKS_MAX: usize = 1_024;

/// How far each clock of the store is from the process's.
#[derive(Debug, Default)]
pub(crate) struct StoreClocks(Mutex<BTreeMap<u64, Estimate>>);

/// The estimate of one clock from its answers.
#[derive(Debug)]
struct Estimate {
    /// The highest offset of this window and of the one before it. An answer is older than its arrival and its
    /// milliseconds are cut off, so the true offset was never lower than an observed one.
    highest_us: i64,
    previous_us: i64,
    window_began_us: i64,
    /// The arrival of the answer that raised the estimate. An answer to a question that was sent before that cannot
    /// lower it.
    raised_us: i64,
    /// The latest time given out.
    latest_us: i64,
}

impl StoreClocks {
    /// Every answer of a clock, asked for and come at instants of the process's, corrects its estimate, which runs behind
    /// the store by the quickest way back. It is ahead only while a store that runs slower than this process says nothing.
    pub(crate) fn observe(&self, clock: u64, asked_us: i64, us: i64, store_now: i64) {
        let offset_us = store_now.saturating_mul(1_000) - us;
        let most_us = store_now.saturating_add(1).saturating_mul(1_000) - asked_us;
        let mut clocks = self.lock();
        match clocks.get_mut(&clock) {
            Some(estimate) => {
                estimate.observe(us, offset_us);
                estimate.lower(asked_us, most_us);
            }
            None => {
                if clocks.len() >= CLOCKS_MAX {
                    clocks.clear();
                }
                clocks.insert(clock, Estimate::new(us, offset_us));
            }
        }
    }

    /// The time of a clock, as far as the engine knows it, in milliseconds; `None` before its first answer.
    pub(crate) fn now(&self, clock: u64, us: i64) -> Option<i64> {
        self.lock().get_mut(&clock).map(|estimate| estimate.now(us).div_euclid(1_000))
    }

    /// Whether a clock has answered.
    pub(crate) fn knows(&self, clock: u64) -> bool {
        self.lock().contains_key(&clock)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Estimate>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Estimate {
    fn new(us: i64, offset_us: i64) -> Self {
        Self { highest_us: offset_us, previous_us: offset_us, window_began_us: us, raised_us: us, latest_us: i64::MIN }
    }

    fn observe(&mut self, us: i64, offset_us: i64) {
        if offset_us > self.highest_us.max(self.previous_us) {
            self.raised_us = us;
        }
        if us - self.window_began_us < WINDOW_US {
            self.highest_us = self.highest_us.max(offset_us);
        } else {
            self.previous_us = self.highest_us;
            self.highest_us = offset_us;
            self.window_began_us = us;
        }
    }

    /// When it was asked, the store was ahead by no more than this. If the estimate is, the store has lost time since: it
    /// was set back, or works that off. An answer that only took long to come says no such thing.
    fn lower(&mut self, asked_us: i64, most_us: i64) {
        if asked_us >= self.raised_us {
            self.highest_us = self.highest_us.min(most_us);
            self.previous_us = self.previous_us.min(most_us);
        }
    }

    fn now(&mut self, us: i64) -> i64 {
        let estimate = us + self.highest_us.max(self.previous_us);
        self.latest_us =
            if self.latest_us.saturating_sub(WAIT_MAX_US) > estimate { estimate } else { self.latest_us.max(estimate) };
        self.latest_us
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::env::{BoxFuture, Env, TaskHandle};

    /// The process's clock, moved by the test.
    struct Process(AtomicI64);

    impl Process {
        fn pass(&self, us: i64) {
            self.0.fetch_add(us, Ordering::Relaxed);
        }
    }

    impl Env for Process {
        fn now_ms(&self) -> i64 {
            self.now_us() / 1_000
        }

        fn now_us(&self) -> i64 {
            self.0.load(Ordering::Relaxed)
        }

        fn sleep(&self, _ms: i64) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn spawn(&self, _task: BoxFuture<'static, ()>) -> TaskHandle {
            TaskHandle::new(|| {})
        }

        fn random(&self) -> u64 {
            0
        }
    }

    /// A store whose time in microseconds is the process's plus this.
    const STORE_AHEAD_US: i64 = 1_800_000_000_000_456;

    #[test]
    fn time_never_goes_back_nor_ahead_however_long_answers_take() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(789)));
        let mut last = 0;
        for step in 0..20_000_i64 {
            let asked_us = process.now_us();
            let answered_ms = (process.now_us() + STORE_AHEAD_US) / 1_000;
            // Between 0.1 and 7 ms, without a pattern that a multiple of a millisecond could follow.
            process.pass(100 + (step * 7_919) % 6_901);
            clocks.observe(7, asked_us, process.now_us(), answered_ms);
            let now = clocks.now(7, process.now_us()).unwrap();
            let truth = (process.now_us() + STORE_AHEAD_US) / 1_000;
            assert!(now >= last, "went back by {} ms", last - now);
            assert!(now <= truth, "is ahead by {} ms", now - truth);
            assert!(step < 1_000 || now >= truth - 2, "is behind by {} ms", truth - now);
            last = now;
        }
    }

    #[test]
    fn what_one_clock_says_is_not_used_for_another() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(0)));
        clocks.observe(1, 0, process.now_us(), 1_000_000);
        assert!(clocks.knows(1) && !clocks.knows(2));
        assert_eq!(clocks.now(2, process.now_us()), None);
        clocks.observe(2, 0, process.now_us(), 5_000);
        process.pass(3_000);
        assert_eq!((clocks.now(1, process.now_us()), clocks.now(2, process.now_us())), (Some(1_000_003), Some(5_003)));
    }

    #[test]
    fn a_step_of_the_store_is_followed_in_both_directions() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(0)));
        clocks.observe(0, 0, process.now_us(), 1_000_000);
        assert_eq!(clocks.now(0, process.now_us()), Some(1_000_000));
        clocks.observe(0, 0, process.now_us(), 9_000_000);
        assert_eq!(clocks.now(0, process.now_us()), Some(9_000_000));
        process.pass(10);
        clocks.observe(0, 10, process.now_us(), 1_000_000);
        assert_eq!(clocks.now(0, process.now_us()), Some(1_000_001), "no later than the millisecond that it said");
    }

    #[test]
    fn an_answer_that_took_long_does_not_set_the_time_back() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(0)));
        clocks.observe(0, 0, process.now_us(), 1_000_000);
        process.pass(3_000_000);
        clocks.observe(0, 3_000_000, process.now_us(), 1_003_000);
        // Asked for at the start, answered at once, and on its way ever since.
        clocks.observe(0, 0, process.now_us(), 1_000_000);
        assert_eq!(clocks.now(0, process.now_us()), Some(1_003_000));
    }

    #[test]
    fn a_store_that_works_off_a_step_back_is_never_outrun_by_much_and_time_does_not_go_back() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(0)));
        let mut last = 0;
        // For the first ten seconds an eighth slower than the process's.
        let truth = |us: i64| 1_000_000 + (us - us.min(10_000_000) / 8) / 1_000;
        for tick in 0..2_000 {
            let us = process.now_us();
            clocks.observe(0, us, us, truth(us));
            process.pass(if tick % 50 == 0 { 900_000 } else { 5_000 });
            let now = clocks.now(0, process.now_us()).unwrap();
            let ahead = now - truth(process.now_us());
            assert!(now >= last, "went back by {} ms", last - now);
            assert!(ahead <= 250, "ahead by {ahead} ms");
            last = now;
        }
    }

    #[test]
    fn a_clock_that_runs_slower_is_not_outrun_for_long() {
        let (clocks, process) = (StoreClocks::default(), Process(AtomicI64::new(0)));
        for second in 0..600 {
            // A thousandth slower than the process's.
            let truth = second * 999;
            clocks.observe(0, process.now_us(), process.now_us(), truth);
            let ahead = clocks.now(0, process.now_us()).unwrap() - truth;
            assert!(ahead <= 12, "ahead by {ahead} ms after {second} s");
            process.pass(1_000_000);
        }
    }
}
