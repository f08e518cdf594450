//! Chance that a seed gives.

use std::time::Duration;

use redlock_core::Entropy;
use redlock_core::mock::SeededEntropy;

#[derive(Debug)]
pub(super) struct Random(SeededEntropy);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    pub(super) fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.number().is_multiple_of(times)
    }

    /// To the millisecond.
    pub(super) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let width = millis(max.saturating_sub(min)).saturating_add(1);
        min + Duration::from_millis(self.number() % width)
    }

    /// One of `choices`; none when there is none.
    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        let count = u64::try_from(choices.len()).ok()?;
        let index = self.number().checked_rem(count)?;
        choices.get(usize::try_from(index).ok()?).cloned()
    }

    pub(super) fn shuffled<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        let mut keyed: Vec<_> = items.iter().map(|item| (self.number(), item)).collect();
        keyed.sort_by_key(|(key, _)| *key);
        keyed.into_iter().map(|(_, item)| item.clone()).collect()
    }
}
