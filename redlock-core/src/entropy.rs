//! Randomness for tokens and retry delays.

/// A source of random bytes. Every `FnMut(&mut [u8])` is one.
///
/// # For callers
///
/// Tokens come from this source. If the sources of two clients give the same bytes, the clients can
/// release each other's locks. If a source gives the same token twice in a row, or only zeros, acquire
/// fails with [`AcquireError::Entropy`](crate::AcquireError::Entropy). Other failures of a source are
/// not detected.
///
/// # For implementers
///
/// Fill all bytes, each unpredictable and independent. On a host, use the operating system's source. On
/// a device, use the chip's true random number generator with its health tests on, or a cryptographic
/// generator that is seeded from it at each start. Do not use the time, a serial number, an ADC pin, a
/// fixed seed, or a seed that is kept over a reset: two devices with the same start draw the same tokens.
/// If the source fails, leave the bytes as they are.
pub trait Entropy {
    /// Fills `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Entropy for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
    }
}
