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
    const AT_ORIGIN: Instant = Instant::from_micros(86_400_000_000);

    pub(super) fn now() -> Instant {
        let now = tokio::time::Instant::now();
        let before = ORIGIN.saturating_duration_since(now);
        AT_ORIGIN
            .saturating_sub(before)
            .saturating_add(now.saturating_duration_since(*ORIGIN))
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
}
