//! Time: one instant for every platform, and the clock that tells it.

use core::fmt;
use core::time::Duration;

/// A point in time: microseconds since the origin of the [`Clock`] that told it.
///
/// Instants of two clocks cannot be compared. All arithmetic saturates: an instant never wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instant(u64);

impl Instant {
    /// The latest instant there is.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `micros` microseconds after the clock's origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This instant moved later by `by`; a part of a microsecond is dropped.
    #[must_use]
    // Called in many places, and long code on a small machine.
    #[inline(never)]
    pub const fn saturating_add(self, by: Duration) -> Self {
        self.plus_micros(whole_micros(by))
    }

    pub(crate) const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// This instant moved earlier by `by`; a part of a microsecond is dropped.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(whole_micros(by)))
    }

    /// How long after `earlier` this instant is; zero when it is not.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the time and waits for it.
///
/// # For callers
///
/// A lease is counted on one clock; never compare it with another. [`sleep_until`] may be dropped
/// at any point.
///
/// # For implementers
///
/// - `now` never goes back.
/// - `now` goes on counting while the machine sleeps. A clock that stands still in suspend makes a
///   laptop that wakes up believe that it still holds its lock.
/// - `now` runs at the rate of real time, within the drift that
///   [`Options::drift_ppm`](crate::Options::drift_ppm) allows for.
/// - `resolution` is the larger of two steps: the one in which `now` moves (the reading is truncated
///   to it, as a counter of ticks is), and the one to which `sleep_until` rounds up. Every lease
///   ends by that much earlier.
/// - `sleep_until` ends at its deadline or later, never before it, and at once where the deadline
///   has passed. Every poll looks at the clock.
///
/// [`sleep_until`]: Clock::sleep_until
#[expect(
    async_fn_in_trait,
    reason = "callers name concrete clocks, so the compiler sees whether the future is Send"
)]
pub trait Clock {
    /// The time now.
    fn now(&self) -> Instant;

    /// How coarse this clock and its timer are.
    fn resolution(&self) -> Duration;

    /// Waits until `deadline`.
    async fn sleep_until(&self, deadline: Instant);

    /// Waits until `deadline`, and then lets the transports read the replies that have arrived by now, unless it is
    /// `too_late_at` or later. The default only waits until `deadline`.
    ///
    /// For a clock whose tasks share a thread with others: if those kept the thread past the deadline, the
    /// replies are there and unread. Returns soon after the deadline.
    // Not an async function, which would be one more future around the other, in flash too.
    fn sleep_and_catch_up(
        &self,
        deadline: Instant,
        too_late_at: Instant,
    ) -> impl Future<Output = ()> {
        let _too_late_at = too_late_at;
        self.sleep_until(deadline)
    }
}

impl<C: Clock> Clock for &C {
    fn now(&self) -> Instant {
        C::now(self)
    }

    fn resolution(&self) -> Duration {
        C::resolution(self)
    }

    async fn sleep_until(&self, deadline: Instant) {
        C::sleep_until(self, deadline).await;
    }

    async fn sleep_and_catch_up(&self, deadline: Instant, too_late_at: Instant) {
        C::sleep_and_catch_up(self, deadline, too_late_at).await;
    }
}

/// `ppm` millionths of `ttl_ms` and 2 ms, in microseconds and rounded up: what clocks that differ take off a lease.
///
/// A millisecond is for the precision of expiry in Redis and one is the least drift of a short TTL, as in all Redlock
/// clients.
// `inline(never)`: many callers, and long code on a small machine.
#[inline(never)]
pub(crate) const fn drift_micros(ttl_ms: u32, ppm: u32) -> u64 {
    const FIXED_MICROS: u64 = 2_000;

    (ttl_ms as u64 * ppm as u64)
        .div_ceil(1_000)
        .saturating_add(FIXED_MICROS)
}

/// Without the 128 bits of `as_micros`, which cost a microcontroller dearly.
// Called in many places, and long code on a small machine.
#[inline(never)]
pub(crate) const fn whole_micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(duration.subsec_micros() as u64)
}

/// So many milliseconds, for people: in seconds from one second on, rounded up.
pub(crate) struct Span(pub(crate) u32);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms @ ..1_000 => write!(f, "{ms} ms"),
            ms => write!(f, "{} s", ms.div_ceil(1_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Instant = Instant::from_micros(5);

    #[test]
    fn an_instant_does_not_wrap() {
        let six = Duration::from_micros(6);
        assert_eq!(EARLY.saturating_sub(six), Instant::from_micros(0));
        assert_eq!(
            EARLY.saturating_duration_since(Instant::MAX),
            Duration::ZERO
        );
        let late = Instant::from_micros(u64::MAX - 5);
        assert_eq!(late.saturating_add(six), Instant::MAX);
        for long in [Duration::MAX, Duration::from_secs(1 << 62)] {
            assert_eq!(EARLY.saturating_add(long), Instant::MAX);
        }
        assert!(Instant::from_micros(u64::MAX) <= Instant::MAX);
    }

    #[test]
    fn a_part_of_a_microsecond_is_dropped() {
        let almost_two = Duration::from_nanos(1_999);
        assert_eq!(EARLY.saturating_add(almost_two), Instant::from_micros(6));
        assert_eq!(EARLY.saturating_sub(almost_two), Instant::from_micros(4));
    }
}
