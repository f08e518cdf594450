//! By how much the clocks of nodes differ.
//!
//! All times are whole µs. The clock of a node is compared with the clock of this machine that counts in suspend and is
//! never set. The two clocks have different origins, so only differences of offsets are meaningful.

use core::fmt;
use core::time::Duration;

use redlock_core::Clock;

use super::duration;
use crate::SystemClock;

/// One reading of the clock of a node.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// By our clock.
    pub sent: i64,
    pub received: i64,
    /// By the clock of the node, at some moment between the two; `None` if it could not be read.
    pub node: Option<i64>,
}

/// A value, and its largest error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub value: i64,
    pub error: i64,
}

/// The time on our clock.
pub fn now_micros() -> i64 {
    i64::try_from(SystemClock.now().as_micros()).unwrap_or(i64::MAX)
}

impl Sample {
    pub fn round_trip(&self) -> i64 {
        self.received.saturating_sub(self.sent).max(0)
    }

    /// The moment at which the node probably read its clock.
    pub fn middle(&self) -> i64 {
        self.sent.saturating_add(self.round_trip() / 2)
    }

    /// By how much the clock of the node is ahead of ours.
    pub fn offset(&self) -> Option<Estimate> {
        Some(Estimate {
            value: self.node?.saturating_sub(self.middle()),
            // The node may have read its clock at any moment of the round trip, and all times are truncated to whole µs.
            error: (self.round_trip() / 2).saturating_add(2),
        })
    }
}

impl Estimate {
    /// The difference. The errors add up.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            value: self.value.saturating_sub(other.value),
            error: self.error.saturating_add(other.error),
        }
    }

    /// Whether the absolute value is certainly larger than `limit`.
    pub const fn surely_exceeds(self, limit: i64) -> bool {
        self.value.saturating_abs().saturating_sub(self.error) > limit
    }

    /// Whether this offset is certainly outside of the window.
    pub fn surely_leaves(self, window: Duration) -> bool {
        self.surely_exceeds(i64::try_from(window.as_micros()).unwrap_or(i64::MAX))
    }
}

fn time(micros: i64) -> String {
    duration::in_words(Duration::from_micros(micros.unsigned_abs()))
}

/// The offset of a clock from the median.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.value < 0 { "behind" } else { "ahead of" };
        write!(
            f,
            "{} {side} the median of the nodes (±{})",
            time(self.value),
            time(self.error)
        )
    }
}

/// How far a clock is from that of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distance<'a> {
    pub node: &'a str,
    pub difference: Estimate,
}

impl<'a> Distance<'a> {
    /// Compares the clock with that of the node from which it is furthest, of these. `None` unless it is certainly further away than
    /// the window.
    pub fn beyond(
        window: Duration,
        own: Estimate,
        others: impl IntoIterator<Item = (&'a str, Estimate)>,
    ) -> Option<Self> {
        let distances = others.into_iter().map(|(node, other)| Self {
            node,
            difference: own.minus(other),
        });
        distances
            .filter(|distance| distance.difference.surely_leaves(window))
            .max_by_key(|distance| distance.difference.value.saturating_abs())
    }
}

impl fmt::Display for Distance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { value, error } = self.difference;
        let (value, error) = (time(value), time(error));
        write!(f, "{value} from that of {} (±{error})", self.node)
    }
}

/// The median; for an even number, the mean of the two in the middle.
pub fn median(mut estimates: Vec<Estimate>) -> Option<Estimate> {
    estimates.sort_unstable_by_key(|estimate| estimate.value);
    let upper = estimates.get(estimates.len() / 2)?;
    let lower = estimates.get(estimates.len().checked_sub(1)? / 2)?;
    Some(Estimate {
        value: lower.value.midpoint(upper.value),
        error: lower.error.max(upper.error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_clock_that_is_wrong_does_not_move_the_median() {
        let estimates = |values: &[i64]| {
            let estimates = values.iter().map(|value| Estimate {
                value: *value,
                error: 7,
            });
            median(estimates.collect()).unwrap().value
        };
        assert_eq!(median(vec![]), None);
        assert_eq!(estimates(&[5]), 5);
        assert_eq!(estimates(&[4, 8]), 6);
        assert_eq!(estimates(&[3, 1_000_000, 1]), 3);
        assert_eq!(estimates(&[-1_000_000, 2, 4, 1]), 1);
        assert_eq!(estimates(&[9, -1_000_000, 2, 1_000_000, 4]), 4);
    }

    #[test]
    fn the_error_of_an_offset_is_no_larger_than_it_must_be() {
        // The node looked when the question left, or when the answer came.
        for node in [1_000, 1_400] {
            let sample = Sample {
                sent: 1_000,
                received: 1_400,
                node: Some(node),
            };
            let offset = sample.offset().unwrap();
            assert_eq!(offset.error, 202);
            assert_eq!(offset.value, node - 1_200);
        }
    }
}
