//! Durations, counted in buckets: as much memory for a million of them as for one.

use std::time::Duration;

/// Counts durations, each rounded down by less than 2 %.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    max: Duration,
}

/// So many buckets for each power of two, as bits.
const PRECISION: u32 = 6;
const BUCKETS: usize = 64 << PRECISION;

impl Histogram {
    pub(super) fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            max: Duration::ZERO,
        }
    }

    pub(super) fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count += 1;
        }
        self.max = self.max.max(duration);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) const fn max(&self) -> Duration {
        self.max
    }

    /// What `percent` of the durations do not exceed; zero if there is none.
    pub(super) fn percentile(&self, percent: u64) -> Duration {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(Duration::ZERO, |bucket| {
            Duration::from_nanos(lower_bound(bucket))
        })
    }
}

fn bucket(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.leading_zeros();
    let shift = bits.saturating_sub(PRECISION + 1);
    let bucket = (u64::from(shift) << PRECISION) + (nanos >> shift);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

fn lower_bound(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX);
    let shift = (bucket >> PRECISION).saturating_sub(1);
    (bucket - (shift << PRECISION)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_rounded_down_by_less_than_two_percent() {
        let powers = (0..63).map(|bit| 1_u64 << bit);
        for nanos in powers.flat_map(|power| [power - 1, power, power + power / 3]) {
            let rounded = lower_bound(bucket(nanos));
            assert!(rounded <= nanos && nanos - rounded <= nanos / 50, "{nanos}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_all_that_was_recorded() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(50), Duration::ZERO);
        (1..=100).for_each(|nanos| histogram.record(Duration::from_nanos(nanos)));
        let mut both = histogram.clone();
        both.add(&histogram);
        for histogram in [histogram, both] {
            assert_eq!(histogram.percentile(50), Duration::from_nanos(50));
            assert_eq!(histogram.percentile(99), Duration::from_nanos(99));
            assert_eq!(histogram.max(), Duration::from_nanos(100));
        }
    }
}
