//! The random numbers of a handshake.

use core::num::NonZeroU32;

use rand_core::{CryptoRng, Error, RngCore};
use redlock_embassy::Entropy;

/// An [`Entropy`] as embedded-tls takes it.
///
/// A source that fails leaves the bytes as they are. embedded-tls does not know that, and its search for a key would never end
/// with zeros, or with the same bytes each time that are no key. So a failure is recorded here, and ends the handshake before anything
/// secret is sent.
pub(crate) struct Random<'a, E> {
    entropy: &'a mut E,
    has_failed: &'a mut bool,
    /// How many more times a key may be drawn.
    keys_left: u8,
}

impl<'a, E> Random<'a, E> {
    pub(crate) const fn new(entropy: &'a mut E, has_failed: &'a mut bool) -> Self {
        Self {
            entropy,
            has_failed,
            // A handshake draws two. Random bytes are no key once in 2^32 times.
            keys_left: 8,
        }
    }
}

/// A key of fewer bytes could be zero by chance.
const LEN_MIN: usize = 16;

impl<E: Entropy> RngCore for Random<'_, E> {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        bytes.fill(0);
        self.entropy.fill(bytes);
        if bytes.len() < LEN_MIN {
            return;
        }
        let is_stuck = self.keys_left == 0 || bytes.iter().all(|byte| *byte == bytes[0]);
        self.keys_left = self.keys_left.saturating_sub(1);
        if is_stuck {
            *self.has_failed = true;
            // A valid key, which ends the search.
            bytes.fill(1);
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(bytes);
        match *self.has_failed {
            true => Err(Error::from(
                const { NonZeroU32::new(Error::CUSTOM_START).unwrap() },
            )),
            false => Ok(()),
        }
    }
}

impl<E: Entropy> CryptoRng for Random<'_, E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_leaves_the_bytes_as_they_are_has_failed() {
        for (fill, fails) in [(None, true), (Some(7), true), (Some(0), true)] {
            let mut entropy = |bytes: &mut [u8]| {
                if let Some(byte) = fill {
                    bytes.fill(byte);
                }
            };
            let mut has_failed = false;
            let mut random = Random::new(&mut entropy, &mut has_failed);
            let mut key = [9; 32];
            random.fill_bytes(&mut key);
            assert_eq!(key, [1; 32]);
            assert!(random.try_fill_bytes(&mut key).is_err());
            assert_eq!(has_failed, fails);
        }
    }

    #[test]
    fn a_source_that_repeats_bytes_that_are_no_key_has_failed() {
        let no_key: [u8; 32] = core::array::from_fn(|at| if at < 31 { 0xff } else { 0xfe });
        let mut entropy = |bytes: &mut [u8]| bytes.copy_from_slice(&no_key[..bytes.len()]);
        let mut has_failed = false;
        let mut random = Random::new(&mut entropy, &mut has_failed);
        let mut key = [0; 32];
        let draws = (0..100).take_while(|_| {
            random.fill_bytes(&mut key);
            key == no_key
        });
        assert_eq!(draws.count(), 8);
        assert!(has_failed);
    }

    #[test]
    fn bytes_that_differ_are_taken() {
        let mut next = 0;
        let mut entropy = |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|byte| {
                next += 1;
                *byte = next;
            });
        };
        let mut has_failed = false;
        let mut random = Random::new(&mut entropy, &mut has_failed);
        let mut key = [0; 32];
        random.fill_bytes(&mut key);
        assert_eq!(
            (key[0], key[31], random.next_u32()),
            (1, 32, u32::from_ne_bytes([33, 34, 35, 36]))
        );
        assert!(!has_failed);
    }
}
