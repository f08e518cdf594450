//! Everybody at once: as many keys as tasks.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::report::{Measurement, Ratio, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL, end_kept};
use super::tally::Tally;

/// So many at a time, when the application sees to it.
const BY_HAND: usize = 500;

/// How much longer the lock may take if it sees to it by itself, from [`RATIO_FROM`] keys on: fewer of them are over
/// before there is anything to compare.
const MAX_RATIO: Ratio = Ratio::percent(300);
const RATIO_FROM: usize = 10_000;

/// More than [`MAX_RATIO`].
const MIN_TTL_IN_FLOORS: u32 = 4;

pub(super) fn perform(
    name: String,
    keys: usize,
    runtime: Runtime,
) -> Result<Report, Box<dyn Error>> {
    let stage = Stage::start(NODES);
    runtime.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;

        let floor_tally = Arc::new(Tally::new());
        let floor = take_all(&redlock, &floor_tally, keys, BY_HAND).await;
        let floor_failed = floor_tally.counts().failed();
        stage.keys_left_within(TTL).await;

        // A machine on which the floor takes long gets longer leases, not a broken promise.
        let ttl = TTL.max(floor * MIN_TTL_IN_FLOORS);
        let redlock = redlock.with_options(Options::new(ttl)?);
        let kept = stage.keep(&redlock).await?;
        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        let took = take_all(&redlock, &tally, keys, keys).await;
        end_kept(kept, &tally).await;
        let mut report = measurement.end(name, &stage, tally.counts()).await;

        let ratio = Ratio::of(took, floor);
        report.note(format!(
            "all at once in {} ms, {BY_HAND} at a time in {} ms: {ratio} times as long",
            millis(took),
            millis(floor)
        ));
        if keys >= RATIO_FROM && ratio > MAX_RATIO {
            report.complain(format!(
                "all at once take {ratio} times as long as {BY_HAND} at a time; the limit is {MAX_RATIO}"
            ));
        }
        if took > ttl {
            report.complain(format!(
                "it took {} s, longer than the TTL",
                took.as_secs()
            ));
        }
        if floor_failed > 0 {
            report.complain(format!(
                "{floor_failed} of {keys} acquires failed although there were {BY_HAND} at a time"
            ));
        }
        Ok(report)
    }))
}

/// A task for each key. Every second one drops its guard instead of releasing it.
async fn take_all(
    redlock: &Redlock,
    tally: &Arc<Tally>,
    keys: usize,
    at_a_time: usize,
) -> Duration {
    let started_at = Instant::now();
    let permits = Arc::new(Semaphore::new(at_a_time));
    let mut crowd = JoinSet::new();
    for number in 0..keys {
        let redlock = redlock.clone();
        let tally = Arc::clone(tally);
        let permits = Arc::clone(&permits);
        crowd.spawn(async move {
            let _permit = permits.acquire().await;
            let asked_at = Instant::now();
            match redlock.acquire(format!("key-{number}")).await {
                Ok(guard) => {
                    tally.acquired(asked_at.elapsed());
                    if !guard.is_valid() {
                        tally.lost();
                    }
                    if number % 2 == 0 {
                        guard.release().await;
                    }
                }
                Err(error) => tally.failed(&error),
            }
        });
    }
    crowd.join_all().await;
    started_at.elapsed()
}
