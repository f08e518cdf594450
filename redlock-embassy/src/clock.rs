//! Time as embassy tells it.

use core::time::Duration;

use embassy_time::{TICK_HZ, Timer};
use redlock_core::{Clock, Instant};

const MICROS_PER_SECOND: u64 = 1_000_000;

/// The clock of [`embassy_time`], whatever its tick: leases end by one tick earlier.
///
/// Does it go on while the chip sleeps? That is the time driver's to answer. With a driver that
/// stands still in a stop mode (a timer whose clock is gated), a device that wakes up believes that it
/// still holds its lock: take an RTC or low-power timer as the driver, or stay out of such a mode while
/// a lease is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EmbassyClock;

impl Clock for EmbassyClock {
    fn now(&self) -> Instant {
        Instant::from_micros(embassy_time::Instant::now().as_micros())
    }

    fn resolution(&self) -> Duration {
        Duration::from_micros(MICROS_PER_SECOND.div_ceil(TICK_HZ))
    }

    async fn sleep_until(&self, deadline: Instant) {
        // A timer of embassy waits for its queue once, even when its time has come.
        if self.now() < deadline {
            Timer::at(embassy_time::Instant::from_ticks(ticks_at(deadline))).await;
        }
    }
}

/// The first tick that is not before `instant`.
const fn ticks_at(instant: Instant) -> u64 {
    let micros = instant.as_micros();
    let part = (micros % MICROS_PER_SECOND * TICK_HZ).div_ceil(MICROS_PER_SECOND);
    (micros / MICROS_PER_SECOND)
        .saturating_mul(TICK_HZ)
        .saturating_add(part)
}
