//! Clocks that are wrong, each in its own way, and the way back from what they read to true time.

use core::fmt;
use core::time::Duration;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// True time, in microseconds. Nobody in a world can read it.
pub(crate) type Moment = u64;

/// A moment that does not come.
pub(crate) const NEVER: Moment = Moment::MAX;

/// How a clock runs: what it read at some moment, and its rate since then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dial {
    since: Moment,
    read: u64,
    /// In billionths of the rate of true time.
    rate: u64,
}

impl Dial {
    /// The rate of true time.
    pub(crate) const TRUE_RATE: u64 = 1_000_000_000;

    /// What this is for is some days of true time; beyond, `first` says never.
    const LONGEST: u64 = 10_000_000_000;

    pub(crate) const fn new(read: u64, rate: u64) -> Self {
        Self {
            since: 0,
            read,
            rate,
        }
    }

    /// What it reads, in whole microseconds of its own.
    pub(crate) const fn reads(&self, at: Moment) -> u64 {
        self.read + self.elapsed(at.saturating_sub(self.since))
    }

    /// For how long it runs while `length` of true time passes.
    pub(crate) const fn elapsed(&self, length: u64) -> u64 {
        length * self.rate / Self::TRUE_RATE
    }

    /// The first moment at which it reads `reading` or more.
    pub(crate) const fn first(&self, reading: u64) -> Moment {
        let ahead = reading.saturating_sub(self.read);
        if ahead > Self::LONGEST {
            return NEVER;
        }
        self.since + (ahead * Self::TRUE_RATE).div_ceil(self.rate)
    }

    /// The same clock, set to `read` at the moment `at`.
    pub(crate) const fn set(self, at: Moment, read: u64) -> Self {
        Self {
            since: at,
            read,
            ..self
        }
    }

    pub(crate) const fn rate(&self) -> u64 {
        self.rate
    }
}

/// A clock that shows its time in ticks, truncated, as a counter does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticker {
    dial: Dial,
    /// Ticks per second, at most a million.
    hertz: u64,
}

impl Ticker {
    pub(crate) const fn new(dial: Dial, hertz: u64) -> Self {
        Self { dial, hertz }
    }

    pub(crate) const fn reads(&self, at: Moment) -> u64 {
        let ticks = self.dial.reads(at) * self.hertz / MICROS_PER_SECOND;
        ticks * MICROS_PER_SECOND / self.hertz
    }

    /// The first moment at which it reads `reading` or more: the end of a lease, or of a sleep.
    pub(crate) const fn first(&self, reading: u64) -> Moment {
        if reading > Dial::LONGEST {
            return NEVER;
        }
        let ticks = (reading * self.hertz).div_ceil(MICROS_PER_SECOND);
        self.dial
            .first((ticks * MICROS_PER_SECOND).div_ceil(self.hertz))
    }

    /// A tick.
    pub(crate) const fn resolution(&self) -> Duration {
        Duration::from_nanos(1_000_000_000_u64.div_ceil(self.hertz))
    }

    pub(crate) const fn dial(&self) -> &Dial {
        &self.dial
    }

    pub(crate) const fn hertz(&self) -> u64 {
        self.hertz
    }
}

/// A moment in seconds.
#[derive(Debug)]
pub(crate) struct Seconds(pub(crate) Moment);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Moment::MAX => f.write_str("the end of time"),
            at => write!(f, "{}.{:06}", at / 1_000_000, at % 1_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: [u64; 5] = [
        900_000_000,
        999_999_999,
        1_000_000_000,
        1_000_000_001,
        1_100_000_000,
    ];

    #[test]
    fn the_first_moment_of_a_reading_is_exact() {
        for rate in RATES {
            for hertz in [1_000_000, 32_768, 1_000, 100] {
                let clock = Ticker::new(Dial::new(77, rate), hertz);
                for reading in (0..200_000).step_by(977) {
                    let first = clock.first(reading);
                    assert!(clock.reads(first) >= reading, "{clock:?} at {reading}");
                    assert!(
                        first == 0 || clock.reads(first - 1) < reading,
                        "{clock:?} at {reading}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_clock_is_behind_true_time_by_no_more_than_a_tick_and_its_roundings() {
        let clock = Ticker::new(Dial::new(0, Dial::TRUE_RATE), 32_768);
        for at in 0..100_000 {
            let behind = at - clock.reads(at);
            assert!(behind <= 31, "{behind} at {at}");
        }
    }
}
