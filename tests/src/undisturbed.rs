//! Tests that measure time, on a machine that may stand still or drop packets.

#![expect(
    clippy::print_stdout,
    reason = "the reader of a failure wants to know of the runs before it"
)]

use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// A machine that disturbs this many runs has another fault.
const MAX_RUNS: usize = 5;

/// Runs `test`, and runs it again if it fails on a machine that was late or dropped packets meanwhile.
///
/// A lease that is not extended in time is lost, and rightly so, also when the machine stood still. A test that
/// shows what happens in time can show it only on a machine that keeps time. A failure there counts at once.
///
/// # Panics
///
/// When `test` does, and nothing disturbed it, or each run was disturbed.
pub async fn undisturbed(test: impl AsyncFn()) {
    let mut watch = Watch::start();
    repeated(test, || watch.disturbance()).await;
}

/// `disturbance` tells what has disturbed the tests since it was asked last.
async fn repeated(test: impl AsyncFn(), mut disturbance: impl FnMut() -> Option<String>) {
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
        match disturbance() {
            Some(words) if run < MAX_RUNS => println!("{words}: once more"),
            _ => resume_unwind(panic),
        }
    }
}

/// Sleeps in a thread of its own, and sums up by how many microseconds it wakes late. Knows how many TCP segments of this
/// host were sent again because no answer came.
struct Watch {
    late: Arc<AtomicU64>,
    timeouts: u64,
}

impl Watch {
    const TICK: Duration = Duration::from_millis(5);

    /// How late all the timers of a test may be together before its failure says nothing.
    const TOLERATED: Duration = Duration::from_millis(50);

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
        Self {
            late,
            timeouts: tcp_timeouts(),
        }
    }

    fn disturbance(&mut self) -> Option<String> {
        // The sleep that is late at this moment ends first.
        std::thread::sleep(Self::TICK * 3);
        let late = Duration::from_micros(self.late.swap(0, Ordering::Relaxed));
        let timeouts = tcp_timeouts();
        let before = mem::replace(&mut self.timeouts, timeouts);
        if late >= Self::TOLERATED {
            return Some(format!("the timers were late by {late:?} in all"));
        }
        (timeouts > before).then(|| format!("{} segments were sent again", timeouts - before))
    }
}

/// How often TCP on this host has sent a segment again because no answer came: a queue was full, and the packet was
/// dropped. Zero if the system does not tell.
fn tcp_timeouts() -> u64 {
    let statistics = std::fs::read_to_string("/proc/net/netstat").unwrap_or_default();
    timeouts_in(&statistics).unwrap_or(0)
}

fn timeouts_in(statistics: &str) -> Option<u64> {
    let mut lines = statistics
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut fields = names.split(' ').zip(values.split(' '));
    let (_, timeouts) = fields.find(|(name, _)| *name == "TCPTimeouts")?;
    timeouts.parse().ok()
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
        fail_each_run(|| None).await;
    }

    #[tokio::test]
    #[should_panic(expected = "run 5")]
    async fn a_failure_in_each_run_counts_also_on_a_machine_that_is_late() {
        fail_each_run(|| Some("late".to_owned())).await;
    }

    #[test]
    fn the_statistics_of_the_system_tell_how_often_segments_were_sent_again() {
        let statistics =
            "IpExt: A TCPTimeouts\nIpExt: 1 2\nTcpExt: A TCPTimeouts B\nTcpExt: 3 4 5\n";
        assert_eq!(timeouts_in(statistics), Some(4));
        let real = std::fs::read_to_string("/proc/net/netstat").unwrap();
        assert!(timeouts_in(&real).is_some());
    }

    #[tokio::test]
    async fn a_failure_on_a_machine_that_is_late_is_followed_by_another_run() {
        let runs = Cell::new(0);
        let unsteady = async || {
            runs.set(runs.get() + 1);
            assert_eq!(runs.get(), 2);
        };
        repeated(unsteady, || Some("late".to_owned())).await;
        assert_eq!(runs.get(), 2);
    }

    async fn fail_each_run(disturbance: impl FnMut() -> Option<String>) {
        let runs = Cell::new(0);
        let failing = async || {
            runs.set(runs.get() + 1);
            panic!("run {}", runs.get());
        };
        repeated(failing, disturbance).await;
    }
}
