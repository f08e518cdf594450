//! The clock of the tests that run under loom: a test sets it, and waiting tasks are woken.

use std::future::poll_fn;
use std::sync::PoisonError;
use std::task::{Poll, Waker};
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// In place of the clock of the machine. It begins at zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

loom::lazy_static! {
    // Not behind the lock: reading a clock orders nothing else.
    static ref NOW_MICROS: AtomicU64 = AtomicU64::new(0);
    static ref SLEEPERS: Mutex<Vec<Waker>> = Mutex::new(Vec::new());
}

impl SystemClock {
    /// Lets the time be `now`.
    pub(crate) fn advance_to(self, now: Instant) {
        NOW_MICROS.store(now.as_micros(), Ordering::Relaxed);
        let sleepers = {
            let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *sleepers)
        };
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::from_micros(NOW_MICROS.load(Ordering::Relaxed))
    }

    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn sleep_until(&self, deadline: Instant) {
        poll_fn(|context| {
            let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
            // With the lock, so that no step of the time is missed.
            if self.now() >= deadline {
                return Poll::Ready(());
            }
            sleepers.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
