//! A runtime whose other tasks keep its thread for longer than a round lasts.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use redlock_std::Options;
use redlock_tests::undisturbed;

use crate::setup::five;

#[tokio::test]
async fn a_task_whose_neighbours_take_longer_than_the_node_timeout_locks_in_every_round() {
    undisturbed(async || {
        for (ttl, node_timeout, neighbours, poll) in
            [(2, 20, 1, 25), (2, 20, 4, 25), (10, 50, 2, 60)]
        {
            let options = Options::new(Duration::from_secs(ttl)).unwrap();
            let options = options.restart_guard(false);
            let (servers, redlock) = five(options).await;
            let impatient = options
                .node_timeout(Duration::from_millis(node_timeout))
                .unwrap();
            let redlock = redlock.with_options(impatient);
            let neighbours = Neighbours::start(neighbours, Duration::from_millis(poll));
            let locking = tokio::spawn(async move {
                for _ in 0..5 {
                    let mut guard = redlock.try_acquire("dock-7").await.unwrap();
                    guard.extend().await.unwrap();
                    let released = guard.release().await;
                    assert!(released.released() >= 3, "{released:?}");
                }
            });
            locking.await.unwrap();
            drop(neighbours);
            servers.expect_no_keys().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_its_caller_waits_for_is_sent_however_long_the_thread_was_kept() {
    Box::pin(undisturbed(async || {
        let options = Options::new(Duration::from_secs(10)).unwrap();
        let options = options.restart_guard(false);
        let options = options.node_timeout(Duration::from_millis(50)).unwrap();
        let (servers, redlock) = five(options).await;
        let mut acquire = pin!(redlock.try_acquire("dock-7"));
        let first = poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await;
        assert!(first.is_pending());
        // The acquire is in the queues of the nodes, and their tasks do not run for three rounds.
        keep_the_thread(Duration::from_millis(150));
        let guard = acquire.await.unwrap();
        guard.release().await;
        servers.expect_no_keys().await;
    }))
    .await;
}

/// Tasks that are always ready and take long.
struct Neighbours(Arc<AtomicBool>);

impl Neighbours {
    fn start(count: usize, poll: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..count {
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    keep_the_thread(poll);
                    tokio::task::yield_now().await;
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn keep_the_thread(long: Duration) {
    let start = Instant::now();
    while start.elapsed() < long {
        std::hint::spin_loop();
    }
}
