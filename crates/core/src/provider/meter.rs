//! Amounts by parts of time: what was used in parts that a window may still reach back to, and what is booked for parts
//! that are still to come.

use crate::document;
use crate::limits;

/// Most parts that amounts are kept for: a window that has passed, and those for which calls are booked.
const PARTS_MAX: u64 = (limits::PROVIDER_PARTS * (limits::PROVIDER_HORIZON_WINDOWS + 2)).unsigned_abs();

document! {
    /// Amounts by part of the window.
    pub struct Meter {
        /// The part of time that the first amount stands for.
        "f" first: i64,
        /// The amounts.
        "k" amounts: Vec<u64>,
    }
}

impl Meter {
    /// The sum over the parts that a window ending in this part reaches back to. It takes one part more than a window
    /// has, so that no window holds more than the sum says.
    pub fn window_sum(&self, part: i64) -> u64 {
        self.sum(part - limits::PROVIDER_PARTS, part)
    }

    /// The amount of one part.
    pub fn at(&self, part: i64) -> u64 {
        self.sum(part, part)
    }

    /// The last part for which there is something.
    pub fn last(&self) -> Option<i64> {
        let place = self.amounts.iter().rposition(|amount| *amount > 0)?;
        Some(self.first.saturating_add(i64::try_from(place).unwrap_or(i64::MAX)))
    }

    /// Counts an amount in a part. One that is out of reach, as after a change of the window, is not counted.
    pub fn add(&mut self, part: i64, amount: u64) {
        if amount == 0 {
            return;
        }
        if self.amounts.is_empty() {
            self.first = part;
        }
        let last = self.first.saturating_add(i64::try_from(self.amounts.len()).unwrap_or(i64::MAX));
        if part.abs_diff(self.first) > PARTS_MAX || part.abs_diff(last) > PARTS_MAX {
            return;
        }
        if let Ok(earlier) = usize::try_from(self.first - part) {
            self.amounts.splice(..0, std::iter::repeat_n(0, earlier));
            self.first = part;
        }
        let Ok(place) = usize::try_from(part - self.first) else { return };
        if self.amounts.len() <= place {
            self.amounts.resize(place + 1, 0);
        }
        self.amounts[place] = self.amounts[place].saturating_add(amount);
    }

    /// Gives an amount back.
    pub fn take(&mut self, part: i64, amount: u64) {
        let place = usize::try_from(part - self.first).ok();
        if let Some(kept) = place.and_then(|place| self.amounts.get_mut(place)) {
            *kept = kept.saturating_sub(amount);
        }
        self.tidy();
    }

    /// Forgets what no window reaches back to that ends in this part or later.
    pub fn forget_before(&mut self, part: i64) {
        let gone = usize::try_from(part - limits::PROVIDER_PARTS - self.first).unwrap_or(0).min(self.amounts.len());
        self.amounts.drain(..gone);
        self.first = self.first.saturating_add(i64::try_from(gone).unwrap_or(0));
        self.tidy();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn sum(&self, from: i64, to: i64) -> u64 {
        let start = usize::try_from(from - self.first).unwrap_or(0);
        let Ok(end) = usize::try_from(to - self.first) else { return 0 };
        let end = end.saturating_add(1).min(self.amounts.len());
        self.amounts.get(start..end).unwrap_or_default().iter().sum()
    }

    fn tidy(&mut self) {
        let kept = self.amounts.iter().rposition(|amount| *amount > 0).map_or(0, |place| place + 1);
        self.amounts.truncate(kept);
        let idle = self.amounts.iter().take_while(|amount| **amount == 0).count();
        self.amounts.drain(..idle);
        self.first = self.first.saturating_add(i64::try_from(idle).unwrap_or(0));
        if self.amounts.is_empty() {
            self.first = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_count_for_a_window_and_are_forgotten_after_it() {
        let mut meter = Meter::default();
        meter.add(100, 5);
        meter.add(130, 7);
        assert_eq!((meter.window_sum(99), meter.window_sum(100), meter.window_sum(130)), (0, 5, 12));
        assert_eq!(meter.window_sum(100 + limits::PROVIDER_PARTS), 12);
        assert_eq!(meter.window_sum(101 + limits::PROVIDER_PARTS), 7);
        assert_eq!((meter.at(100), meter.at(101), meter.last()), (5, 0, Some(130)));
        meter.forget_before(101 + limits::PROVIDER_PARTS);
        assert_eq!((meter.at(100), meter.at(130)), (0, 7));
        meter.take(130, 9);
        assert_eq!(meter, Meter::default(), "never less than nothing, and nothing is kept for it");
        meter.add(50, 0);
        assert_eq!(meter, Meter::default());
    }

    #[test]
    fn what_lies_before_everything_that_is_kept_is_counted_and_what_is_out_of_reach_is_not() {
        let mut meter = Meter::default();
        meter.add(100, 1);
        meter.add(10, 5);
        assert_eq!((meter.at(10), meter.at(100), meter.window_sum(70)), (5, 1, 5));
        meter.add(i64::MAX / 64, 7);
        meter.add(-1_000_000, 7);
        assert_eq!((meter.at(10), meter.at(100), meter.last()), (5, 1, Some(100)));
        meter.take(10, 5);
        assert_eq!((meter.at(10), meter.at(100)), (0, 1));
    }
}
