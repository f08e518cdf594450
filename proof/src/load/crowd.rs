//! Tasks that acquire and release again and again.

use std::iter;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Guard, Redlock};
use tokio::sync::Semaphore;
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
    run_on(slice::from_ref(redlock), tally, tasks, keys, length).await;
}

/// The same with several locks: those that take the same key use different ones, in turn.
pub(super) async fn run_on(
    locks: &[Redlock],
    tally: &Arc<Tally>,
    tasks: usize,
    keys: usize,
    length: Duration,
) {
    let until = Instant::now() + length;
    let mut crowd = JoinSet::new();
    let turns = locks
        .iter()
        .cycle()
        .flat_map(|redlock| iter::repeat_n(redlock, keys));
    for (number, redlock) in turns.take(tasks).enumerate() {
        let redlock = redlock.clone();
        let tally = Arc::clone(tally);
        crowd.spawn(async move {
            let key = key(number % keys);
            while Instant::now() < until {
                cycle(&redlock, &tally, &key).await;
            }
        });
    }
    crowd.join_all().await;
}

/// The key with this number.
pub(super) fn key(number: usize) -> String {
    format!("key-{number}")
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

/// How many acquires run at the same time, if they are not to queue in the lock.
pub(super) const AT_A_TIME: usize = 500;

/// Takes the locks of `count` keys and returns the guards.
pub(super) async fn acquire(redlock: &Redlock, tally: &Arc<Tally>, count: usize) -> Vec<Guard> {
    for_each_key(redlock, tally, count, AT_A_TIME, |_, guard| async { guard }).await
}

/// Takes the locks of `count` keys, `at_a_time` at the same time, and runs `then` with the number and the guard of each.
/// Returns what `then` returns.
pub(super) async fn for_each_key<T: Send + 'static, F: Future<Output = T> + Send>(
    redlock: &Redlock,
    tally: &Arc<Tally>,
    count: usize,
    at_a_time: usize,
    then: impl FnOnce(usize, Guard) -> F + Copy + Send + 'static,
) -> Vec<T> {
    let permits = Arc::new(Semaphore::new(at_a_time));
    let mut crowd = JoinSet::new();
    for number in 0..count {
        let redlock = redlock.clone();
        let tally = Arc::clone(tally);
        let permits = Arc::clone(&permits);
        crowd.spawn(async move {
            let _permit = permits.acquire().await;
            let asked_at = Instant::now();
            match redlock.acquire(key(number)).await {
                Ok(guard) => {
                    tally.acquired(asked_at.elapsed());
                    Some(then(number, guard).await)
                }
                Err(error) => {
                    tally.failed(&error);
                    None
                }
            }
        });
    }
    crowd.join_all().await.into_iter().flatten().collect()
}
