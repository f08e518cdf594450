//! Random numbers from a seed.

use redlock_core::Entropy;
use redlock_core::mock::SeededEntropy;

pub(crate) struct Dice(SeededEntropy);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        u32::from_le_bytes(bytes) as usize % sides
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())]
    }
}
