//! The clock of one handle.

use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::clock::SystemClock;

/// The clock on which a handle measures its leases: that of the machine, or that of tokio, for nodes in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum LockClock {
    #[default]
    System,
    #[cfg(feature = "mock")]
    Tokio,
}

impl Clock for LockClock {
    fn now(&self) -> Instant {
        match self {
            Self::System => SystemClock.now(),
            #[cfg(feature = "mock")]
            Self::Tokio => tokio_time::now(),
        }
    }

    fn resolution(&self) -> Duration {
        // Also the resolution of tokio's timers.
        SystemClock.resolution()
    }

    async fn sleep_until(&self, deadline: Instant) {
        match self {
            Self::System => SystemClock.sleep_until(deadline).await,
            #[cfg(feature = "mock")]
            Self::Tokio => tokio_time::sleep_until(deadline).await,
        }
    }

    async fn sleep_and_catch_up(&self, deadline: Instant, too_late_at: Instant) {
        match self {
            Self::System => SystemClock.sleep_and_catch_up(deadline, too_late_at).await,
            #[cfg(feature = "mock")]
            Self::Tokio => tokio_time::sleep_until(deadline).await,
        }
    }
}

#[cfg(feature = "mock")]
mod tokio_time {
    use std::sync::LazyLock;
    use std::time::Duration;

    use redlock_core::Instant;

    /// The same for all runtimes. A paused clock may have begun a moment before it.
    static ORIGIN: LazyLock<tokio::time::Instant> =
        LazyLock::new(|| tokio::time::Instant::from_std(std::time::Instant::now()));

    /// The time at the origin. Not zero, so that what happened before it has a time too.
    const AT_ORIGIN: Duration = Duration::from_secs(86_400);

    pub(super) fn now() -> Instant {
        time_of(tokio::time::Instant::now(), *ORIGIN)
    }

    /// Rounds down once, so that two instants are as far apart here as in tokio, also if the first is before the origin.
    fn time_of(now: tokio::time::Instant, origin: tokio::time::Instant) -> Instant {
        let after = AT_ORIGIN.saturating_add(now.saturating_duration_since(origin));
        let time = after.saturating_sub(origin.saturating_duration_since(now));
        Instant::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) async fn sleep_until(deadline: Instant) {
        loop {
            let left = deadline.saturating_duration_since(now());
            if left == Duration::ZERO {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn four_milliseconds_are_as_long_if_a_paused_clock_began_before_the_origin() {
            let begin = tokio::time::Instant::now();
            let end = begin + Duration::from_millis(4);
            for nanos in 0..2_000 {
                let origin = begin + Duration::from_nanos(nanos);
                let passed = time_of(end, origin).saturating_duration_since(time_of(begin, origin));
                assert_eq!(passed.as_micros(), 4_000, "the origin is {nanos} ns late");
            }
        }
    }
}
