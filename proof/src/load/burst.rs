//! All tasks at once: as many keys as tasks.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};

use super::crowd::{AT_A_TIME, for_each_key};
use super::report::{Measurement, Ratio, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL, end_kept};
use super::tally::Tally;

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
        let floor = take_all(&redlock, &floor_tally, keys, AT_A_TIME).await;
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
            "all at once in {} ms, {AT_A_TIME} at a time in {} ms: {ratio} times as long",
            millis(took),
            millis(floor)
        ));
        if keys >= RATIO_FROM && ratio > MAX_RATIO {
            report.complain(format!(
                "all at once take {ratio} times as long as {AT_A_TIME} at a time; the limit is {MAX_RATIO}"
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
                "{floor_failed} of {keys} acquires failed although there were {AT_A_TIME} at a time"
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
    let were_valid = for_each_key(
        redlock,
        tally,
        keys,
        at_a_time,
        |number, guard| async move {
            let is_valid = guard.is_valid();
            if number % 2 == 0 {
                guard.release().await;
            }
            is_valid
        },
    );
    let lost = were_valid.await.into_iter().filter(|is_valid| !is_valid);
    lost.for_each(|_| tally.lost());
    started_at.elapsed()
}
