//! Acquire and release for long: nothing may pile up.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redlock_std::Options;

use super::crowd;
use super::report::{Measurement, Report};
use super::stage::{NODES, Stage, TTL};
use super::tally::Tally;
use super::trial::{Length, Runtime};

const TASKS: usize = 64;

/// For the allocator, once everything has been allocated a first time.
const MAX_GROWTH: u64 = 8 << 20;

pub(super) fn perform(name: String, length: Length) -> Result<Report, Box<dyn Error>> {
    let length = Duration::from_secs(match length {
        Length::Short => 4,
        Length::Full | Length::Long => 60,
    });
    let stage = Stage::start(NODES);
    Runtime::MultiThread.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;
        let warm_up = Arc::new(Tally::new());
        crowd::run(&redlock, &warm_up, TASKS, TASKS, length / 4).await;

        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        crowd::run(&redlock, &tally, TASKS, TASKS, length).await;
        let mut report = measurement.end(name, &stage, tally.counts()).await;
        report.expect_growth_below(MAX_GROWTH);
        report.expect_flat_descriptors();
        Ok(report)
    }))
}
