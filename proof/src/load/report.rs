//! What a trial came to: a row of figures, and the promises that were broken.

use std::fmt;
use std::time::Duration;

use super::stage::Stage;
use super::tally::Counts;
use super::usage::descriptor_count;
use super::watch::Watch;

/// What a line begins with that names a broken promise.
pub(super) const FAILED: &str = "FAILED: ";

/// One row, with what belongs to it.
#[derive(Debug)]
pub(super) struct Report {
    name: String,
    counts: Counts,
    growth: u64,
    peak_growth: u64,
    descriptors: [usize; 2],
    keys_left: usize,
    notes: Vec<String>,
    complaints: Vec<String>,
}

/// Measures from now on, until a [`Report`] is made of it.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) watch: Watch,
    descriptors: usize,
}

/// How long one thing took, as hundredths of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ratio(u64);

/// Keys of locks that were given back are gone by then, far before their TTL.
const KEYS_GONE_WITHIN: Duration = Duration::from_secs(3);

impl Measurement {
    pub(super) fn begin() -> Self {
        Self::begin_with(Watch::begin())
    }

    pub(super) fn begin_with(watch: Watch) -> Self {
        Self {
            watch,
            descriptors: descriptor_count(),
        }
    }

    /// Ends the measurement, and complains of failures, of lost guards, and of keys that are left a moment later.
    pub(super) async fn end(self, name: String, stage: &Stage, counts: Counts) -> Report {
        let growth = self.watch.growth();
        let peak_growth = self.watch.peak_growth();
        let descriptors = [self.descriptors, descriptor_count()];
        let keys_left = stage.keys_left_within(KEYS_GONE_WITHIN).await;
        let mut report = Report {
            name,
            growth,
            peak_growth,
            descriptors,
            keys_left,
            notes: Vec::new(),
            complaints: Vec::new(),
            counts,
        };
        report.judge();
        report
    }
}

impl Report {
    pub(super) const HEAD: &str = concat!(
        "trial                               locks/s    p50 ms    p99 ms     max ms   failed   lost",
        "   MB at end   peak        fds     keys"
    );

    /// Says something that is no promise.
    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Says that a promise is broken.
    pub(super) fn complain(&mut self, complaint: String) {
        self.complaints.push(complaint);
    }

    /// Complains if the peak of memory was `limit` bytes or more above the beginning.
    pub(super) fn expect_growth_below(&mut self, limit: u64) {
        if self.peak_growth >= limit {
            let [grown, limit] = [self.peak_growth, limit].map(|bytes| bytes >> 20);
            self.complain(format!(
                "memory grew by {grown} MB; the limit is {limit} MB"
            ));
        }
    }

    /// Complains if there are more descriptors than at the beginning.
    pub(super) fn expect_flat_descriptors(&mut self) {
        let [begin, end] = self.descriptors;
        if end > begin {
            self.complain(format!("{begin} descriptors became {end}"));
        }
    }

    fn judge(&mut self) {
        let failed = self.counts.failed();
        if failed > 0 {
            let all = failed + self.counts.latencies.count();
            let kinds = self.counts.failures.iter();
            let kinds: Vec<_> = kinds
                .map(|(kind, count)| format!("{kind} {count}"))
                .collect();
            let first = self.counts.first_failure.clone().unwrap_or_default();
            self.complain(format!(
                "{failed} of {all} acquires failed ({}); the first: {first}",
                kinds.join(", ")
            ));
        }
        if self.counts.lost > 0 {
            self.complain(format!("{} guards were lost", self.counts.lost));
        }
        if self.keys_left > 0 {
            self.complain(format!(
                "{} keys are left on the nodes {KEYS_GONE_WITHIN:?} after the last guard was given back",
                self.keys_left
            ));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = &self.counts.latencies;
        let [begin, end] = self.descriptors;
        writeln!(
            f,
            "{:<33} {:>9} {:>9} {:>9} {:>10} {:>8} {:>6} {:>11} {:>6} {:>10} {:>8}",
            self.name,
            self.counts.throughput(),
            millis(latencies.percentile(50)),
            millis(latencies.percentile(99)),
            millis(latencies.max()),
            self.counts.failed(),
            self.counts.lost,
            self.growth >> 20,
            self.peak_growth >> 20,
            format!("{begin}/{end}"),
            self.keys_left,
        )?;
        for note in &self.notes {
            writeln!(f, "    {note}")?;
        }
        for complaint in &self.complaints {
            writeln!(f, "{FAILED}{}: {complaint}", self.name)?;
        }
        Ok(())
    }
}

impl Ratio {
    /// A limit, in hundredths.
    pub(super) const fn percent(percent: u64) -> Self {
        Self(percent)
    }

    /// How often `to` goes into `of`; the largest there is if `to` is zero.
    pub(super) fn of(of: Duration, to: Duration) -> Self {
        let percent = (of.as_nanos() * 100).checked_div(to.as_nanos());
        let percent = percent.and_then(|percent| u64::try_from(percent).ok());
        Self(percent.unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// Milliseconds, to the microsecond.
pub(super) fn millis(duration: Duration) -> String {
    let micros = duration.as_micros();
    format!("{}.{:03}", micros / 1_000, micros % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_to_nothing_exceeds_every_limit() {
        let second = Duration::from_secs(1);
        assert!(Ratio::of(second, Duration::ZERO) > Ratio::percent(1_000_000));
        assert_eq!(Ratio::of(second * 3, second * 2).to_string(), "1.50");
        assert!(Ratio::of(second * 3, second) <= Ratio::percent(300));
    }
}
