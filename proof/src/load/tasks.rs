//! A thousand tasks, each with a key of its own or a hundred to a key.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redlock_std::Options;

use super::crowd;
use super::length::Length;
use super::report::{Measurement, Report};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL, end_kept};
use super::tally::Tally;

const TASKS: usize = 1_000;

pub(super) fn perform(name: String, keys: usize, length: Length) -> Result<Report, Box<dyn Error>> {
    let seconds = match length {
        Length::Short => 2,
        Length::Full | Length::Long => 10,
    };
    let stage = Stage::start(NODES);
    Runtime::MultiThread.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;
        let kept = stage.keep(&redlock).await?;
        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        let length = Duration::from_secs(seconds);
        crowd::run(&redlock, &tally, TASKS, keys, length).await;
        end_kept(kept, &tally).await;
        Ok(measurement.end(name, &stage, tally.counts()).await)
    }))
}
