//! Randomness for tokens, from the operating system.

use redlock_core::Entropy;

/// The operating system's source of randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&mut self, bytes: &mut [u8]) {
        if getrandom::fill(bytes).is_err() {
            // The lock refuses a token of zeros, so an acquire fails on a machine without randomness.
            bytes.fill(0);
        }
    }
}
