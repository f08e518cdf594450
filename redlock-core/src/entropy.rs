//! Randomness for tokens and retry delays.

/// A source of random bytes. Every `FnMut(&mut [u8])` is one.
///
/// # For callers
///
/// The tokens of all clients come from their sources: two clients whose sources repeat each other
/// can release each other's lock. A lock that is given the same token twice in a row, or one of all
/// zeros, refuses to go on ([`AcquireError::Entropy`](crate::AcquireError::Entropy)); a source that
/// fails more cleverly is not noticed.
///
/// # For implementers
///
/// Fill all bytes, each unpredictable and independent: the operating system's source on a host; on
/// a device the chip's true random number generator with its health tests on, or a cryptographic
/// generator seeded from it at each start. Not the time, not a serial number, not an ADC pin, not a
/// fixed seed, nor one that is kept over a reset: two devices that begin alike draw the same tokens.
/// A source that fails leaves the bytes as they are.
pub trait Entropy {
    /// Fills `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Entropy for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
    }
}
