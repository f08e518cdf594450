//! Randomness. For tests only: it is the host's.
//!
//! The emulated board has no source of its own. A device takes its chip's random number generator, or a
//! cryptographic generator seeded from it; never the time, a serial number or a fixed seed.

/// Fills `bytes` from the host's `/dev/urandom`; leaves them as they are if that fails, which the lock
/// notices.
pub(crate) fn fill(bytes: &mut [u8]) {
    let mut random = [0; MOST];
    for part in bytes.chunks_mut(MOST) {
        let random = &mut random[..part.len()];
        if semihosting::experimental::random::fill_bytes(random).is_ok() {
            part.copy_from_slice(random);
        }
    }
}

/// As much as is asked for at once: a token.
const MOST: usize = 20;
