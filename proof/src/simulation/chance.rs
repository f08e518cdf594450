//! Every choice that is made in a world, drawn from its seed.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};
use redlock_core::Entropy as _;
use redlock_core::mock::SeededEntropy;

/// A stream of choices: the same seed, the same choices.
#[derive(Debug)]
pub(crate) struct Chance(Pcg64Mcg);

impl Chance {
    /// Neighbouring seeds have nothing in common.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = [0; 16];
        SeededEntropy::new(seed).fill(&mut state);
        Self(Pcg64Mcg::from_seed(state))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A stream of its own, for somebody whose choices are not to depend on those of others.
    pub(crate) fn child(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// Zero where `end` is zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(end);
        u64::try_from(product >> u64::BITS).unwrap_or_default()
    }

    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first).saturating_add(1))
    }

    /// Never where `odds` is zero.
    pub(crate) fn one_in(&mut self, odds: u64) -> bool {
        odds > 0 && self.below(odds) == 0
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or_default()
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// A length of time that is often at the edge: nothing, `length` or next to it.
    pub(crate) fn about(&mut self, length: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => length,
            2 => length.saturating_sub(1),
            3 => length + 1,
            4 => self.between(length, length * 2),
            _ => self.below(length),
        }
    }
}
