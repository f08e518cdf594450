//! Time: one instant type for every platform, and the clock.

use core::time::Duration;

use crate::text;

/// A point in time: microseconds since the origin of the [`Clock`] that returned it.
///
/// Instants of two clocks cannot be compared. All arithmetic saturates: an instant never wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Instant(u64);

impl Instant {
    /// The latest instant.
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

    /// This instant moved later by `by`, which is truncated to whole microseconds.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        self.plus_micros(whole_micros(by))
    }

    // `inline(never)`: many callers, one copy in flash.
    #[cfg_attr(target_pointer_width = "32", inline(never))]
    pub(crate) const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// This instant moved earlier by `by`, which is truncated to whole microseconds.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(whole_micros(by)))
    }

    /// The time from `earlier` to this instant. Zero if this instant is not later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A clock with a timer.
///
/// # For callers
///
/// A lease is measured on one clock; never compare it with another. The future of [`sleep_until`] may be
/// dropped at any point.
///
/// # For implementers
///
/// - `now` never goes back.
/// - `now` continues to count while the machine is suspended. With a clock that stops in suspend, a laptop that resumes would
///   believe that it still holds its lock.
/// - `now` runs at the rate of real time, within the drift that
///   [`Options::drift_ppm`](crate::Options::drift_ppm) allows for.
/// - `resolution` is the larger of two steps: the tick to which `now` is truncated, and the step to which `sleep_until`
///   rounds up. Every lease ends earlier by one `resolution`.
/// - `sleep_until` ends at its deadline or later, never earlier. If the deadline has passed, it ends at
///   once. Every poll reads the clock.
///
/// [`sleep_until`]: Clock::sleep_until
#[expect(
    async_fn_in_trait,
    reason = "callers name concrete clocks, so the compiler sees whether the future is Send"
)]
pub trait Clock {
    /// The time now.
    fn now(&self) -> Instant;

    /// The tick of this clock or of its timer, whichever is longer. See the list above.
    fn resolution(&self) -> Duration;

    /// Waits until `deadline`.
    async fn sleep_until(&self, deadline: Instant);

    /// Waits until `deadline`. Then, if `now` is before `too_late_at`, lets the transports read the replies that have
    /// arrived. Returns soon after the deadline. The default only waits until `deadline`.
    ///
    /// Implement this if the tasks of the transports share a thread with other tasks. If other tasks keep the thread past the
    /// deadline, replies have arrived but are not read yet.
    // Not an `async fn`, which would wrap the future in another one, also in flash.
    fn sleep_and_catch_up(
        &self,
        deadline: Instant,
        too_late_at: Instant,
    ) -> impl Future<Output = ()> {
        let _too_late_at = too_late_at;
        self.sleep_until(deadline)
    }
}

// Forwards the methods with a default too: otherwise a reference would use the default, not the method of `C`.
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

/// The margin of a lease for clocks that differ in rate: `ttl * ppm / 1_000_000 + 2 ms`, in microseconds, rounded up.
///
/// The 2 ms are those of all Redlock clients: one millisecond for the precision of expiry in Redis, and one as the minimum
/// drift of a short TTL.
// `inline(never)`: many callers, and much code on a microcontroller.
#[inline(never)]
pub(crate) const fn drift_micros(ttl_ms: u32, ppm: u32) -> u64 {
    const FIXED_MICROS: u64 = 2_000;

    (ttl_ms as u64 * ppm as u64)
        .div_ceil(1_000)
        .saturating_add(FIXED_MICROS)
}

/// Like [`Duration::as_micros`], but without 128-bit arithmetic, which is slow and large on a microcontroller.
pub(crate) const fn whole_micros(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(duration.subsec_micros() as u64)
}

/// The duration in whole milliseconds. `None` if this number does not fit in 32 bits.
pub(crate) const fn whole_millis(duration: Duration) -> Option<u32> {
    let millis = duration.as_millis();
    if millis > u32::MAX as u128 {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "compared with u32::MAX above"
    )]
    Some(millis as u32)
}

/// Displays a time: in milliseconds if it is shorter than one second, else in seconds, rounded up.
pub(crate) struct Span(pub(crate) u32);

text! {
    impl [] for Span [] {
        Self(ms @ ..1_000) => "{} ms", ms;
        Self(ms) => "{} s", ms.div_ceil(1_000);
    }
}

/// Displays a time that has passed at least: like [`Span`], rounded down.
pub(crate) struct Past(pub(crate) u32);

text! {
    impl [] for Past [] {
        Self(ms @ ..1_000) => "{} ms", ms;
        Self(ms) => "{} s", ms / 1_000;
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
    fn durations_are_truncated_to_whole_microseconds() {
        let almost_two = Duration::from_nanos(1_999);
        assert_eq!(EARLY.saturating_add(almost_two), Instant::from_micros(6));
        assert_eq!(EARLY.saturating_sub(almost_two), Instant::from_micros(4));
    }
}
