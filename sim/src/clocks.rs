//! The clocks of the store's nodes: they need not agree with each other, and they step, forwards and backwards.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::Partition;

use crate::executor::Executor;
use crate::world::START;

/// One clock for each partition, all driven by the executor's virtual time.
pub(crate) struct Clocks {
    executor: Executor,
    offsets: Mutex<Offsets>,
}

#[derive(Default)]
struct Offsets {
    /// Of every partition.
    all_ms: i64,
    /// Of single partitions, on top of that.
    own_ms: BTreeMap<Partition, i64>,
    hands: BTreeMap<Partition, Hand>,
    /// How often every clock was set, and single ones.
    all_set: u64,
    own_set: BTreeMap<Partition, u64>,
}

/// The last time that a clock showed.
#[derive(Default)]
struct Hand {
    /// The machine's clock then.
    wall_ms: i64,
    /// How far the shown time is ahead of it, because it was set back.
    ahead_us: i64,
}

/// A clock that was set back loses one part of this many of the time that passes, until it is right again.
const CATCH_UP: i64 = 8;

impl Clocks {
    /// Clocks that agree.
    pub(crate) fn new(executor: &Executor) -> Self {
        Self { executor: executor.clone(), offsets: Mutex::default() }
    }

    /// The time of a partition's clock. As in every store it never goes back and never stands still: when the machine's
    /// clock is set back, it goes on a little slower until the two agree.
    pub(crate) fn read(&self, partition: Partition) -> i64 {
        let now_ms = self.executor.now_ms();
        self.offsets().show(partition, now_ms)
    }

    /// Every clock steps by the same amount.
    pub(crate) fn step_all(&self, by_ms: i64) {
        let now_ms = self.executor.now_ms();
        let mut offsets = self.offsets();
        offsets.show_all(now_ms);
        offsets.all_ms += by_ms;
        offsets.all_set += 1;
    }

    /// One clock is set, this far from the others.
    pub(crate) fn set(&self, partition: Partition, offset_ms: i64) {
        let now_ms = self.executor.now_ms();
        let mut offsets = self.offsets();
        offsets.show_all(now_ms);
        offsets.own_ms.insert(partition, offset_ms);
        *offsets.own_set.entry(partition).or_default() += 1;
    }

    /// How often a partition's clock was set.
    pub(crate) fn times_set(&self, partition: Partition) -> u64 {
        let offsets = self.offsets();
        offsets.all_set + offsets.own_set.get(&partition).copied().unwrap_or(0)
    }

    fn offsets(&self) -> MutexGuard<'_, Offsets> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offsets {
    fn show(&mut self, partition: Partition, now_ms: i64) -> i64 {
        let own_ms = self.own_ms.get(&partition).copied().unwrap_or(0);
        let wall_ms = START + now_ms + self.all_ms + own_ms;
        let hand = self.hands.entry(partition).or_insert(Hand { wall_ms, ahead_us: 0 });
        let passed_us = (wall_ms - hand.wall_ms) * 1_000;
        let lost_us = if passed_us < 0 { passed_us } else { passed_us / CATCH_UP };
        *hand = Hand { wall_ms, ahead_us: (hand.ahead_us - lost_us).max(0) };
        wall_ms + hand.ahead_us / 1_000
    }

    /// Every clock is looked at before one is set, so that none misses it.
    fn show_all(&mut self, now_ms: i64) {
        let partitions: Vec<Partition> = self.hands.keys().copied().collect();
        for partition in partitions {
            self.show(partition, now_ms);
        }
    }
}
