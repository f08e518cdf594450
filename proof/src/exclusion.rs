//! Whether two ever held one lock at once. It knows who held what and when, and nothing else: not the
//! algorithm, not the world in which it ran.

use std::collections::BTreeMap;

use redlock_core::Instant;

/// A client held the lock on `key` from one instant up to another one, on a clock that is the same
/// for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The number of the key.
    pub key: usize,
    /// The number of the holder.
    pub holder: usize,
    /// The first instant.
    pub from: Instant,
    /// The instant from which on the holder knows that it holds no more.
    pub until: Instant,
}

/// Each holding that began before an earlier one on the same key had ended, behind the earlier one
/// that lasted the longest. Empty when no two held one lock at once.
#[must_use]
pub fn overlaps(holdings: &[Holding]) -> Vec<[Holding; 2]> {
    let mut ordered = holdings.to_vec();
    ordered.retain(|holding| holding.from < holding.until);
    ordered.sort_by_key(|holding| (holding.from, holding.until));
    let mut lasting = BTreeMap::<usize, Holding>::new();
    let mut found = Vec::new();
    for holding in ordered {
        let longest = lasting.entry(holding.key).or_insert(holding);
        if holding != *longest && holding.from < longest.until {
            found.push([*longest, holding]);
        }
        if holding.until > longest.until {
            *longest = holding;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [[Holding; 2]; 0] = [];

    const fn holding(key: usize, holder: usize, from: u64, until: u64) -> Holding {
        Holding {
            key,
            holder,
            from: Instant::from_micros(from),
            until: Instant::from_micros(until),
        }
    }

    #[test]
    fn one_that_begins_when_another_ends_does_not_overlap() {
        let holdings = [holding(0, 1, 5, 9), holding(0, 0, 0, 5)];
        assert_eq!(overlaps(&holdings), NONE);
    }

    #[test]
    fn one_microsecond_together_is_an_overlap() {
        let (first, second) = (holding(0, 0, 0, 6), holding(0, 1, 5, 9));
        assert_eq!(overlaps(&[second, first]), [[first, second]]);
    }

    #[test]
    fn a_long_holding_overlaps_with_all_that_begin_in_it() {
        let long = holding(0, 0, 0, 100);
        let (early, late) = (holding(0, 1, 10, 20), holding(0, 2, 90, 95));
        assert_eq!(
            overlaps(&[early, late, long]),
            [[long, early], [long, late]]
        );
    }

    #[test]
    fn two_that_are_the_same_but_for_the_holder_overlap() {
        let (one, other) = (holding(0, 0, 0, 5), holding(0, 1, 0, 5));
        assert_eq!(overlaps(&[one, other]).len(), 1);
    }

    #[test]
    fn two_keys_do_not_exclude_each_other() {
        let holdings = [holding(0, 0, 0, 9), holding(1, 1, 0, 9)];
        assert_eq!(overlaps(&holdings), NONE);
    }

    #[test]
    fn one_that_was_over_before_it_began_excludes_no_other() {
        let holdings = [holding(0, 0, 0, 9), holding(0, 1, 5, 5)];
        assert_eq!(overlaps(&holdings), NONE);
    }
}
