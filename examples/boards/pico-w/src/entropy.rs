//! Randomness, as good as the RP2040 gives it; see "Entropy" in README.md before you build a product on it.

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use embassy_rp::Peri;
use embassy_rp::clocks::RoscRng;
use embassy_rp::flash::Flash;
use embassy_rp::peripherals::FLASH;
use embassy_time::{Duration, block_for};

/// A cryptographic generator, whose seed is gathered when the chip starts.
///
/// The chip has no random number generator, but the ring oscillator that it boots from, which trembles. Read
/// again and again, it gives the same bit many times over: so each bit of the seed is made of many, over time.
pub(crate) struct Entropy(ChaCha12Rng);

impl Entropy {
    /// Takes a fifth of a second.
    pub(crate) fn gather(flash: Peri<'_, FLASH>) -> Self {
        let mut seed = [0_u8; 32];
        for byte in &mut seed {
            for _ in 0..u8::BITS {
                *byte = *byte << 1 | trembling_bit();
            }
        }
        // The number of this board's flash chip: however little the oscillator trembles, two boards do
        // not begin alike.
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

/// One bit of many samples: odd or even.
fn trembling_bit() -> u8 {
    const SAMPLES: u32 = 64;
    // Some 65 periods of the oscillator.
    const PAUSE: Duration = Duration::from_micros(10);

    let mut ones = 0;
    for _ in 0..SAMPLES {
        block_for(PAUSE);
        ones += RoscRng::next_u8().count_ones();
    }
    u8::from(ones % 2 == 1)
}
