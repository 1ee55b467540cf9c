//! How long things took.

use std::time::Duration;

/// Every single duration, because a percentile of percentiles means nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn record(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    pub(crate) fn add(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that so many of a hundred did not exceed, in milliseconds; 0 when nothing was measured.
    pub(crate) fn percentile_ms(&mut self, percent: usize) -> f64 {
        self.permille_ms(percent * 10)
    }

    /// The latency that so many of a thousand do not exceed.
    pub(crate) fn permille_ms(&mut self, permille: usize) -> f64 {
        self.0.sort_unstable();
        let rank = (self.0.len() * permille).div_ceil(1000).saturating_sub(1);
        self.0.get(rank).map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_that_were_measured() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_ms(99), 0.0);
        for ms in (1..=2000).rev() {
            latencies.record(Duration::from_millis(ms));
        }
        assert_eq!(latencies.percentile_ms(50), 1000.0);
        assert_eq!(latencies.percentile_ms(99), 1980.0);
        assert_eq!(latencies.permille_ms(999), 1998.0);
        assert_eq!(latencies.percentile_ms(100), 2000.0);
    }
}
