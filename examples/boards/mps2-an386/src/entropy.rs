//! Random numbers of the host, for tests only.
//!
//! The emulated board has no source of its own. A device uses the random number generator of its chip, or a cryptographic
//! generator that is seeded from it. It never uses the time, a serial number or a fixed seed.

/// Fills `bytes` from `/dev/urandom` of the host. If this fails, leaves them as they are, which the lock notices.
pub(crate) fn fill(bytes: &mut [u8]) {
    let mut random = [0; MOST];
    for part in bytes.chunks_mut(MOST) {
        let random = &mut random[..part.len()];
        if semihosting::experimental::random::fill_bytes(random).is_ok() {
            part.copy_from_slice(random);
        }
    }
}

/// The largest number of bytes of one call: a token.
const MOST: usize = 20;
