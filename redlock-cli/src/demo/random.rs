//! Random numbers from a seed.

use core::time::Duration;

use redlock_core::Entropy;
use redlock_core::mock::SeededEntropy;

/// The random numbers of one task. Tasks do not share them, so that they do not influence each other.
#[derive(Debug)]
pub(crate) struct Random(SeededEntropy);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    /// Random numbers for another task.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    /// A source of tokens that no other one repeats.
    pub(crate) fn entropy(&mut self) -> SeededEntropy {
        SeededEntropy::new(self.number())
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn between_ms(&mut self, min: u64, max: u64) -> Duration {
        Duration::from_millis(min + self.below(max - min + 1))
    }

    /// One of `choices`, or `None` if there are none.
    pub(crate) fn pick<T>(&mut self, choices: impl IntoIterator<Item = T>) -> Option<T> {
        let mut choices: Vec<T> = choices.into_iter().collect();
        let count = u64::try_from(choices.len())
            .ok()
            .filter(|count| *count > 0)?;
        let index = usize::try_from(self.below(count)).ok()?;
        Some(choices.swap_remove(index))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
