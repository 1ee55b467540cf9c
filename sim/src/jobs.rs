//! Several runs at a time. A run is one thread's business from its first step to its last, so that its seed still decides
//! everything; only the runs share the machine. What they show is handed on in the order of their numbers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// Does something for every number, this many at a time, and hands on what came of each, in order.
pub fn in_order<T: Send>(jobs: usize, numbers: Range<u64>, work: impl Fn(u64) -> T + Sync, mut then: impl FnMut(T)) {
    let next = AtomicU64::new(numbers.start);
    let (done, finished) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (done, next, work, end) = (done.clone(), &next, &work, numbers.end);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end || done.send((number, work(number))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let mut expected = numbers.start;
        let mut early = BTreeMap::new();
        for (number, result) in finished {
            early.insert(number, result);
            while let Some(result) = early.remove(&expected) {
                then(result);
                expected += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_however_many_work() {
        for jobs in [0, 1, 3, 50] {
            let mut seen = Vec::new();
            in_order(jobs, 5..25, |number| number * 2, |result| seen.push(result));
            assert_eq!(seen, (5..25).map(|number| number * 2).collect::<Vec<u64>>());
        }
    }
}
