//! Whether fences are unique and grow. It knows when each was asked for and when it was reported, and nothing
//! of how it was made.

use std::collections::BTreeSet;

use redlock_core::Instant;

/// A fence that a client got with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Issued {
    /// When the round that won it began, at the latest.
    pub(super) sent: Instant,
    /// When its holder had it.
    pub(super) at: Instant,
    pub(super) fence: u64,
}

/// What is wrong with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Disorder {
    /// Fences that another lease had already.
    pub(super) duplicates: usize,
    /// Fences that are not higher than one that had been reported before they were asked for.
    pub(super) out_of_order: usize,
}

impl Disorder {
    pub(super) fn of(issued: &[Issued]) -> Self {
        let mut seen = BTreeSet::new();
        let duplicates = issued.iter().filter(|one| !seen.insert(one.fence)).count();

        let mut reported = issued.to_vec();
        reported.sort_by_key(|one| one.at);
        let mut asked = issued.to_vec();
        asked.sort_by_key(|one| one.sent);
        let mut reported = reported.into_iter().peekable();
        let mut highest = 0;
        let is_late = |one: &&Issued| {
            while let Some(before) = reported.next_if(|before| before.at < one.sent) {
                highest = highest.max(before.fence);
            }
            one.fence <= highest
        };
        Self {
            duplicates,
            out_of_order: asked.iter().filter(is_late).count(),
        }
    }

    pub(super) const fn is_none(self) -> bool {
        self.duplicates == 0 && self.out_of_order == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each with the time when it was asked for, when it was reported, and its number.
    fn disorder(issued: &[(u64, u64, u64)]) -> [usize; 2] {
        let issued: Vec<_> = issued
            .iter()
            .map(|(sent, at, fence)| Issued {
                sent: Instant::from_micros(*sent),
                at: Instant::from_micros(*at),
                fence: *fence,
            })
            .collect();
        let disorder = Disorder::of(&issued);
        [disorder.duplicates, disorder.out_of_order]
    }

    #[test]
    fn one_that_was_asked_for_after_a_higher_one_was_reported_is_out_of_order() {
        assert_eq!(disorder(&[(1, 2, 5), (3, 4, 6)]), [0, 0]);
        assert_eq!(disorder(&[(3, 4, 4), (1, 2, 5)]), [0, 1]);
        assert_eq!(
            disorder(&[(1, 9, 5), (3, 4, 6), (5, 6, 7), (8, 9, 6)]),
            [1, 1]
        );
    }

    #[test]
    fn those_that_were_on_their_way_at_once_may_have_any_order_but_not_one_number() {
        assert_eq!(disorder(&[(1, 4, 6), (3, 5, 5)]), [0, 0]);
        assert_eq!(disorder(&[(1, 4, 5), (3, 5, 5)]), [1, 0]);
    }
}
