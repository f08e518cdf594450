//! Very many guards that are kept alive, and whose extensions fall due at one moment.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Guard, Options};

use super::crowd::acquire;
use super::report::{Measurement, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL};
use super::tally::Tally;

/// Of the time that the acquires take: a slow machine gets longer leases, not a broken promise.
const TTL_IN_FLOORS: u32 = 4;
const MIN_TTL: Duration = Duration::from_secs(3);

/// How often each guard is extended.
const EXTENSIONS: u32 = 4;

pub(super) fn perform(
    name: String,
    guards: usize,
    runtime: Runtime,
) -> Result<Report, Box<dyn Error>> {
    let stage = Stage::start(NODES);
    runtime.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;
        let started_at = Instant::now();
        drop(acquire(&redlock, &Arc::new(Tally::new()), guards).await);
        let floor = started_at.elapsed();
        stage.keys_left_within(TTL).await;

        let options = Options::new(MIN_TTL.max(floor * TTL_IN_FLOORS))?;
        let third = options.validity() / 3;
        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        let mut kept = acquire(&redlock.with_options(options), &tally, guards).await;
        // A third of every validity has passed by then: all of them are due at once.
        tokio::time::sleep(third).await;
        kept.iter_mut().for_each(Guard::keep_alive);
        tokio::time::sleep(third * EXTENSIONS).await;
        let lost: Vec<_> = kept.iter().filter(|guard| !guard.is_valid()).collect();
        lost.iter().for_each(|_| tally.lost());
        let first_cause = match lost.first() {
            Some(guard) => Some(guard.lost().await),
            None => None,
        };
        drop(kept);
        let mut report = measurement.end(name, &stage, tally.counts()).await;
        if let Some(cause) = first_cause {
            report.note(format!("the first that was lost: {cause}"));
        }
        report.note(format!(
            "acquired within {} ms; the TTL is {} ms",
            millis(floor),
            options.ttl().as_millis()
        ));
        Ok(report)
    }))
}
