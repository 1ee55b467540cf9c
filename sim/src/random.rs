//! Random numbers that a seed decides, the same on every machine.

/// A stream of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x9e37_79b9_7f4a_7c15);
        // Neighbouring seeds must not begin alike.
        random.bits();
        random.bits();
        random
    }

    /// Another stream, so that one consumer's appetite does not change what the others draw.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// Sixty-four random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound; 0 for an empty range.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        if bound == 0 {
            return 0;
        }
        usize::try_from(self.bits() % bound).unwrap_or(0)
    }

    /// A number in a range, both ends included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = u64::try_from(high - low + 1).unwrap_or(1).max(1);
        low + i64::try_from(self.bits() % width).unwrap_or(0)
    }

    /// True this many times in a thousand.
    pub(crate) fn chance(&mut self, per_mille: i64) -> bool {
        self.between(0, 999) < per_mille
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}
