//! Tasks that acquire and release again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::Redlock;
use tokio::task::JoinSet;

use super::tally::Tally;

/// Lets `tasks` tasks take one of `keys` keys each, for `length`.
pub(super) async fn run(
    redlock: &Redlock,
    tally: &Arc<Tally>,
    tasks: usize,
    keys: usize,
    length: Duration,
) {
    let until = Instant::now() + length;
    let mut crowd = JoinSet::new();
    for number in 0..tasks {
        let redlock = redlock.clone();
        let tally = Arc::clone(tally);
        crowd.spawn(async move {
            let key = format!("key-{}", number % keys);
            while Instant::now() < until {
                cycle(&redlock, &tally, &key).await;
            }
        });
    }
    crowd.join_all().await;
}

/// Acquires the lock, looks at it and releases it.
pub(super) async fn cycle(redlock: &Redlock, tally: &Tally, key: &str) {
    let started_at = Instant::now();
    match redlock.acquire(key).await {
        Ok(guard) => {
            tally.acquired(started_at.elapsed());
            if !guard.is_valid() {
                tally.lost();
            }
            guard.release().await;
        }
        Err(error) => {
            tally.failed(&error);
            // Also a lock that fails at once lets the others run.
            tokio::task::yield_now().await;
        }
    }
}
