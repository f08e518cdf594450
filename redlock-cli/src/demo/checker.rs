//! Checks that no two workers hold the lock at once. Independent of nodes, rounds and leases.

use core::time::Duration;

use redlock_core::Instant;

/// A time in which a worker was the holder in its own view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) worker: usize,
    pub(crate) from: Instant,
    /// The end, exclusive.
    pub(crate) until: Instant,
}

/// Compares each hold with all that may overlap it.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    recent: Vec<Hold>,
    overlaps: usize,
}

impl Checker {
    /// How long a hold is kept: much longer than any hold lasts.
    const MEMORY: Duration = Duration::from_secs(10);

    /// Records a hold that is over. Returns an earlier one that overlaps it.
    pub(crate) fn record(&mut self, hold: Hold) -> Option<Hold> {
        if hold.from >= hold.until {
            return None;
        }
        let forgotten = hold.until.saturating_sub(Self::MEMORY);
        self.recent.retain(|earlier| earlier.until > forgotten);
        let both = self.recent.iter().filter(|earlier| earlier.overlaps(&hold));
        self.overlaps += both.clone().count();
        let first = both.min_by_key(|earlier| earlier.from).copied();
        self.recent.push(hold);
        first
    }

    /// The number of overlaps.
    pub(crate) const fn overlaps(&self) -> usize {
        self.overlaps
    }
}

impl Hold {
    fn overlaps(&self, other: &Self) -> bool {
        self.from < other.until && other.from < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn hold(worker: usize, from: u64, until: u64) -> Hold {
        Hold {
            worker,
            from: Instant::from_micros(from),
            until: Instant::from_micros(until),
        }
    }

    #[test]
    fn holds_one_after_the_other_are_no_overlap() {
        let mut checker = Checker::default();
        for next in [
            hold(1, 10, 20),
            hold(2, 20, 30),
            hold(1, 30, 31),
            hold(3, 0, 10),
        ] {
            assert_eq!(checker.record(next), None);
        }
        assert_eq!(checker.overlaps(), 0);
    }

    #[test]
    fn every_pair_at_once_is_counted_in_whatever_order_they_end() {
        let mut checker = Checker::default();
        assert_eq!(checker.record(hold(1, 10, 20)), None);
        assert_eq!(checker.record(hold(2, 12, 14)), Some(hold(1, 10, 20)));
        assert_eq!(checker.record(hold(3, 19, 40)), Some(hold(1, 10, 20)));
        assert_eq!(checker.record(hold(4, 5, 50)), Some(hold(1, 10, 20)));
        assert_eq!(checker.overlaps(), 5);
    }

    #[test]
    fn a_hold_that_was_over_before_it_began_is_none() {
        let mut checker = Checker::default();
        assert_eq!(checker.record(hold(1, 10, 10)), None);
        assert_eq!(checker.record(hold(2, 5, 15)), None);
        assert_eq!(checker.record(hold(3, 12, 11)), None);
        assert_eq!(checker.overlaps(), 0);
    }
}
