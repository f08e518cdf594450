//! Randomness for tokens, from the operating system.

use redlock_core::Entropy;

/// The operating system's source of randomness, for a `redlock_core::Redlock` of your own.
/// [`Redlock::connect`](crate::Redlock::connect) uses it by itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&mut self, bytes: &mut [u8]) {
        if getrandom::fill(bytes).is_err() {
            // An acquire refuses a token of zeros, so it fails on a machine without randomness.
            bytes.fill(0);
        }
    }
}
