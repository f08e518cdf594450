//! Random numbers, as good as the RP2040 allows. Read "Entropy" in README.md before you use them in a product.

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use embassy_rp::Peri;
use embassy_rp::clocks::RoscRng;
use embassy_rp::flash::Flash;
use embassy_rp::peripherals::FLASH;
use embassy_time::{Duration, block_for};

/// A cryptographic generator. Its seed is gathered when the chip starts.
///
/// The chip has no random number generator. It has the jitter of the ring oscillator that it boots from. Successive
/// readings often give the same bit, so each bit of the seed is made of many readings, over some time.
pub(crate) struct Entropy(ChaCha12Rng);

impl Entropy {
    /// Gathers the seed, which takes a fifth of a second.
    pub(crate) fn gather(flash: Peri<'_, FLASH>) -> Self {
        let mut seed = [0_u8; 32];
        for byte in &mut seed {
            for _ in 0..u8::BITS {
                *byte = *byte << 1 | jitter_bit();
            }
        }
        // The serial number of the flash chip. Even if the oscillator has little jitter, two boards have different
        // seeds.
        let mut serial = [0; 8];
        let mut flash = Flash::<_, _, FLASH_SIZE>::new_blocking(flash);
        defmt::unwrap!(flash.blocking_unique_id(&mut serial));
        for (byte, of_serial) in seed.iter_mut().zip(serial) {
            *byte ^= of_serial;
        }
        Self(ChaCha12Rng::from_seed(seed))
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

const FLASH_SIZE: usize = 2 * 1024 * 1024;

/// The parity of many samples.
fn jitter_bit() -> u8 {
    const SAMPLES: u32 = 64;
    // About 65 periods of the oscillator.
    const PAUSE: Duration = Duration::from_micros(10);

    let mut ones = 0;
    for _ in 0..SAMPLES {
        block_for(PAUSE);
        ones += RoscRng::next_u8().count_ones();
    }
    u8::from(ones % 2 == 1)
}
