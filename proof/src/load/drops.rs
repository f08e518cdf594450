//! Very many guards that are dropped in one go.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::Options;

use super::crowd;
use super::report::{Measurement, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage};
use super::tally::Tally;

const GUARDS: usize = 100_000;

/// Long enough that no key expires before it is looked for.
const TTL: Duration = Duration::from_secs(60);

/// The keys are given so much of their TTL to go.
const GONE_WITHIN: Duration = Duration::from_secs(15);

pub(super) fn perform(name: String) -> Result<Report, Box<dyn Error>> {
    let stage = Stage::start(NODES);
    // On one thread, where no release is sent before the last guard is dropped.
    Runtime::CurrentThread.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;
        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        let started_at = Instant::now();
        let guards = crowd::acquire(&redlock, &tally, GUARDS).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid());
        lost.for_each(|_| tally.lost());
        let counts = tally.counts();

        let dropped_at = Instant::now();
        drop(guards);
        let dropped = dropped_at.elapsed();
        let left = stage.keys_left_within(GONE_WITHIN).await;
        let gone = dropped_at.elapsed();
        let mut report = measurement.end(name, &stage, counts).await;
        report.note(format!(
            "dropped in {} ms; {left} keys were left after {} ms",
            millis(dropped),
            millis(gone)
        ));
        if started_at.elapsed() > TTL {
            report.complain("keys may have expired before they were looked for".to_owned());
        }
        Ok(report)
    }))
}
