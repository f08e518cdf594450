//! Acquire and release for long: nothing may pile up.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redlock_std::Options;

use super::crowd;
use super::length::Length;
use super::report::{Measurement, Report};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL};
use super::tally::Tally;
use super::usage::resident_bytes;

const TASKS: usize = 64;

/// What is lost piles up in each part of the time. What the allocator keeps for a moment of crowding does not.
const PARTS: u32 = 4;
const MAX_GROWTH_IN_EACH_PART: u64 = 1 << 20;

/// However crowded it was.
const MAX_GROWTH: u64 = 32 << 20;

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
        let mut growth = u64::MAX;
        for _ in 0..PARTS {
            let before = resident_bytes();
            crowd::run(&redlock, &tally, TASKS, TASKS, length / PARTS).await;
            growth = growth.min(resident_bytes().saturating_sub(before));
        }
        let mut report = measurement.end(name, &stage, tally.counts()).await;
        report.expect_growth_below(MAX_GROWTH);
        report.expect_flat_descriptors();
        if growth >= MAX_GROWTH_IN_EACH_PART {
            report.complain(format!(
                "memory grew by {} KB or more in each of {PARTS} parts of the time",
                growth >> 10
            ));
        }
        Ok(report)
    }))
}
