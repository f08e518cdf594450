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
    // Called in many places: once in flash.
    #[inline(never)]
    fn now(&self) -> Instant {
        Instant::from_micros(embassy_time::Instant::now().as_micros())
    }

    fn resolution(&self) -> Duration {
        Duration::from_micros(MICROS_PER_SECOND.div_ceil(TICK_HZ))
    }

    async fn sleep_until(&self, deadline: Instant) {
        // A timer of embassy waits for its queue once, even when its time has come.
        if self.now() < deadline {
            let ticks = ticks_at(deadline, TICK_HZ);
            Timer::at(embassy_time::Instant::from_ticks(ticks)).await;
        }
    }
}

/// The first tick that is not before `instant`.
// Called in many places: once in flash.
#[inline(never)]
const fn ticks_at(instant: Instant, hz: u64) -> u64 {
    let micros = instant.as_micros();
    let part = (micros % MICROS_PER_SECOND * hz).div_ceil(MICROS_PER_SECOND);
    (micros / MICROS_PER_SECOND)
        .saturating_mul(hz)
        .saturating_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_rounded_up_to_a_tick_whatever_the_tick() {
        for (micros, hz, ticks) in [
            (0, 1, 0),
            (1, 1, 1),
            (1_000_000, 1, 1),
            (1_000_001, 1, 2),
            (30, 32_768, 1),
            (31, 32_768, 2),
            (999, 1_000, 1),
            (1_001, 1_000, 2),
            (5, 1_000_000, 5),
            (5, 1_000_000_000, 5_000),
        ] {
            assert_eq!(
                ticks_at(Instant::from_micros(micros), hz),
                ticks,
                "{micros} us at {hz}"
            );
        }
        assert_eq!(ticks_at(Instant::MAX, 1_000_000_000), u64::MAX);
    }
}
