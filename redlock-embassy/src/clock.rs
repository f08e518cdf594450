//! The clock of embassy.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

use embassy_time::{TICK_HZ, Timer};
use redlock_core::{Clock, Instant};

const MICROS_PER_SECOND: u64 = 1_000_000;

/// The clock of [`embassy_time`], with any tick. The client ends its leases one tick earlier, because the clock may be
/// late by one tick. A round may end one tick early, and delays are whole ticks: if a tick is longer than about 10 ms, see the
/// sizing in the README of this crate.
///
/// The time driver must continue while the chip sleeps. If it stops in a stop mode (a timer whose clock is gated), a device
/// that wakes up believes that it still holds a lock that has expired. Use an RTC or a low-power timer as the driver, or
/// do not enter such a mode while a lease is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct EmbassyClock;

impl Clock for EmbassyClock {
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn now(&self) -> Instant {
        Instant::from_micros(embassy_time::Instant::now().as_micros())
    }

    fn resolution(&self) -> Duration {
        Duration::from_micros(MICROS_PER_SECOND.div_ceil(TICK_HZ))
    }

    // No `async fn`, and a new `Timer` at each poll: every call to a node has one of these futures, which holds only the deadline.
    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            if Self.now() >= deadline {
                return Poll::Ready(());
            }
            // Its first poll sets the alarm, and is always pending.
            let ticks = ticks_at::<TICK_HZ>(deadline);
            pin!(Timer::at(embassy_time::Instant::from_ticks(ticks))).poll(cx)
        })
    }
}

/// The first tick that is not before `instant`.
const fn ticks_at<const HZ: u64>(instant: Instant) -> u64 {
    // The ratio in lowest terms. If a tick is a microsecond, it is 1, and the compiler removes the arithmetic.
    let divisor = const { greatest_common_divisor(HZ, MICROS_PER_SECOND) };
    let (ticks, micros) = (HZ / divisor, MICROS_PER_SECOND / divisor);
    let at = instant.as_micros();
    let part = (at % micros * ticks).div_ceil(micros);
    (at / micros).saturating_mul(ticks).saturating_add(part)
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_rounded_up_to_a_tick_of_any_length() {
        const fn at<const HZ: u64>(micros: u64) -> u64 {
            ticks_at::<HZ>(Instant::from_micros(micros))
        }

        assert_eq!([0, 1, 1_000_000, 1_000_001].map(at::<1>), [0, 1, 1, 2]);
        assert_eq!([30, 31, 61, 62].map(at::<32_768>), [1, 2, 2, 3]);
        assert_eq!([999, 1_000, 1_001].map(at::<1_000>), [1, 1, 2]);
        assert_eq!([5, u64::MAX].map(at::<1_000_000>), [5, u64::MAX]);
        assert_eq!([5, u64::MAX].map(at::<1_000_000_000>), [5_000, u64::MAX]);
    }
}
