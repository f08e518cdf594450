//! Tests that measure time, on a machine that may stand still.

#![expect(
    clippy::print_stdout,
    reason = "the reader of a failure wants to know of the runs before it"
)]

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How late all the timers of a test may be together before its failure says nothing.
const TOLERATED: Duration = Duration::from_millis(50);

/// A machine that is late this often has another fault.
const MAX_RUNS: usize = 5;

/// Runs `test`, and runs it again if it fails on a machine that was late meanwhile.
///
/// A lease that is not extended in time is lost, and rightly so, also when the machine stood still. A test that
/// shows what happens in time can show it on a machine that keeps time only. A failure there counts at once.
///
/// # Panics
///
/// When `test` does, and the machine was on time, or was late in each run.
pub async fn undisturbed(test: impl AsyncFn()) {
    let watch = Watch::start();
    repeated(test, || watch.lateness()).await;
}

/// `lateness` since it was asked last.
async fn repeated(test: impl AsyncFn(), mut lateness: impl FnMut() -> Duration) {
    for run in 1..=MAX_RUNS {
        let mut future = pin!(test());
        let outcome = poll_fn(|context| {
            let poll = AssertUnwindSafe(|| future.as_mut().poll(context));
            match catch_unwind(poll) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            }
        });
        let Err(panic) = outcome.await else { return };
        let late = lateness();
        if late < TOLERATED || run == MAX_RUNS {
            resume_unwind(panic);
        }
        println!("the timers of this machine were late by {late:?} in all: once more");
    }
}

/// Sleeps in a thread of its own, and sums up by how many microseconds it wakes late.
struct Watch {
    late: Arc<AtomicU64>,
}

impl Watch {
    const TICK: Duration = Duration::from_millis(5);

    fn start() -> Self {
        let late = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&late);
        std::thread::spawn(move || {
            while let Some(late) = watched.upgrade() {
                let start = Instant::now();
                std::thread::sleep(Self::TICK);
                let over = start.elapsed().saturating_sub(Self::TICK * 2);
                late.fetch_add(micros(over), Ordering::Relaxed);
            }
        });
        Self { late }
    }

    /// Since the start, or since it was asked last.
    fn lateness(&self) -> Duration {
        // The sleep that is late at this moment ends first.
        std::thread::sleep(Self::TICK * 3);
        Duration::from_micros(self.late.swap(0, Ordering::Relaxed))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    #[should_panic(expected = "run 1")]
    async fn a_failure_on_a_machine_that_is_on_time_counts_at_once() {
        let runs = Cell::new(0);
        let failing = async || {
            runs.set(runs.get() + 1);
            panic!("run {}", runs.get());
        };
        repeated(failing, || Duration::ZERO).await;
    }

    #[tokio::test]
    #[should_panic(expected = "run 5")]
    async fn a_failure_in_each_run_counts_also_on_a_machine_that_is_late() {
        let runs = Cell::new(0);
        let failing = async || {
            runs.set(runs.get() + 1);
            panic!("run {}", runs.get());
        };
        repeated(failing, || Duration::from_secs(1)).await;
    }

    #[tokio::test]
    async fn a_failure_on_a_machine_that_is_late_is_followed_by_another_run() {
        let runs = Cell::new(0);
        let unsteady = async || {
            runs.set(runs.get() + 1);
            assert_eq!(runs.get(), 2);
        };
        repeated(unsteady, || Duration::from_secs(1)).await;
        assert_eq!(runs.get(), 2);
    }
}
