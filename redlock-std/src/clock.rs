//! The clock on which leases are measured.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use redlock_core::{Clock, Instant};

/// The monotonic clock of the machine, which keeps counting while the machine is suspended.
///
/// On Linux and macOS, `std::time::Instant` stops while the machine is suspended: when a laptop resumes, it would take
/// an expired lock for a valid one. This clock reads:
///
/// | platform | clock |
/// |---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` |
/// | macOS, the BSDs, other Unix | `CLOCK_MONOTONIC`, which on macOS keeps counting; for the other systems see their manual |
/// | Windows | `std::time::Instant`, which keeps counting there |
///
/// The timers are those of tokio, which stop while the machine is suspended. A timer that is due in that time fires
/// within a second after the machine resumes. If tokio's time is paused (`tokio::time::pause`), this clock continues,
/// and waits on a thread of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Tokio's timers have a resolution of a millisecond.
    const RESOLUTION: Duration = Duration::from_millis(1);

    /// The longest sleep without reading the clock.
    const LONGEST_NAP: Duration = Duration::from_secs(1);

    /// Short, because the runtime waits for that thread when it shuts down.
    const LONGEST_NAP_ON_A_THREAD: Duration = Duration::from_millis(20);

    /// How often a round yields to the runtime before a node counts as timed out. After one yield the runtime
    /// has read its sockets, and the tasks of the nodes have run.
    const CATCH_UP_YIELDS: u32 = 3;

    /// If a timer is later than this, other tasks have blocked the thread.
    const PUNCTUAL: Duration = Duration::from_millis(5);

    /// The longest extra wait for replies to commands that were sent late.
    const LONGEST_CATCH_UP: Duration = Duration::from_millis(50);
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::from_micros(micros_since_boot())
    }

    fn resolution(&self) -> Duration {
        Self::RESOLUTION
    }

    async fn sleep_until(&self, deadline: Instant) {
        loop {
            let begun_at = self.now();
            let left = deadline.saturating_duration_since(begun_at);
            if left.is_zero() {
                return;
            }
            let length = left.min(Self::LONGEST_NAP);
            let mut nap = pin!(tokio::time::sleep(length));
            // Before the first poll, the clock has just been read. Rounds are often over at their second poll.
            let mut is_first = true;
            poll_fn(|context| {
                if !mem::take(&mut is_first) && self.now() >= deadline {
                    return Poll::Ready(());
                }
                nap.as_mut().poll(context)
            })
            .await;
            let slept = self.now().saturating_duration_since(begun_at);
            if slept < length / 2 && self.now() < deadline {
                sleep_on_a_thread(length.min(Self::LONGEST_NAP_ON_A_THREAD)).await;
            }
        }
    }

    /// Yields to the runtime a few times, so that it reads its sockets. If the timer was late, the commands
    /// were sent late too: then this waits for the same time again, at most 50 ms.
    async fn sleep_and_catch_up(&self, deadline: Instant, too_late_at: Instant) {
        self.sleep_until(deadline).await;
        let now = self.now();
        if now >= too_late_at {
            return;
        }
        let late = now.saturating_duration_since(deadline);
        for _ in 0..Self::CATCH_UP_YIELDS {
            tokio::task::yield_now().await;
        }
        if late > Self::PUNCTUAL {
            tokio::time::sleep(late.min(Self::LONGEST_CATCH_UP)).await;
        }
    }
}

/// For a runtime whose time is paused, as in tests: its timers fire as soon as all tasks are idle, but leases are
/// measured on the clock of the machine.
async fn sleep_on_a_thread(nap: Duration) {
    let slept = tokio::task::spawn_blocking(move || std::thread::sleep(nap)).await;
    // An error means that the runtime shuts down.
    drop(slept);
}

#[cfg(unix)]
fn micros_since_boot() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let time = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanos / 1_000)
}

#[cfg(not(unix))]
fn micros_since_boot() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant as StdInstant;

    static ORIGIN: LazyLock<StdInstant> = LazyLock::new(StdInstant::now);
    u64::try_from(ORIGIN.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_in_paused_tokio_time_lasts_as_long_and_does_not_busy_loop() {
        let deadline = SystemClock.now().saturating_add(Duration::from_millis(100));
        let mut sleep = pin!(SystemClock.sleep_until(deadline));
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            sleep.as_mut().poll(context)
        })
        .await;
        assert!(SystemClock.now() >= deadline);
        assert!(polls < 50, "{polls}");
    }
}
