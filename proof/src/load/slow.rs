//! One node of five whose replies take their time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redlock_std::{Options, Redlock};

use super::crowd;
use super::histogram::Histogram;
use super::length::Length;
use super::proxy;
use super::report::{Measurement, Ratio, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL};
use super::tally::Tally;

const DELAY: Duration = Duration::from_millis(30);

/// Of the p50, slow to healthy: the quorum is then three of four instead of three of five.
const MAX_RATIO: Ratio = Ratio::percent(150);

/// The two take turns, so that what else the machine does is in both.
const TURNS: u32 = 5;

pub(super) fn perform(name: String, length: Length) -> Result<Report, Box<dyn Error>> {
    let turn = Duration::from_millis(match length {
        Length::Short => 200,
        Length::Full | Length::Long => 1_000,
    });
    let stage = Stage::start(NODES);
    let mut urls = stage.servers().urls();
    if let (Some(url), Some(server)) = (urls.last_mut(), stage.servers().last()) {
        *url = proxy::start(server, DELAY)?;
    }
    Runtime::CurrentThread.build()?.block_on(Box::pin(async {
        let options = Options::new(TTL)?;
        let healthy = stage.connect(options).await?;
        let slow = Redlock::connect(&urls, options)?;
        crowd::run(&slow, &Arc::new(Tally::new()), 1, 1, turn).await;

        let measurement = Measurement::begin();
        let mut healthy_latencies = Histogram::new();
        let tally = Arc::new(Tally::new());
        for _ in 0..TURNS {
            let healthy_tally = Arc::new(Tally::new());
            crowd::run(&healthy, &healthy_tally, 1, 1, turn).await;
            healthy_latencies.add(&healthy_tally.counts().latencies);
            crowd::run(&slow, &tally, 1, 1, turn).await;
        }
        let counts = tally.counts();
        let [slow, healthy] = [&counts.latencies, &healthy_latencies].map(|it| it.percentile(50));
        let mut report = measurement.end(name, &stage, counts).await;
        let ratio = Ratio::of(slow, healthy);
        report.note(format!(
            "p50 {} ms, healthy {} ms: {ratio} times",
            millis(slow),
            millis(healthy)
        ));
        if ratio > MAX_RATIO {
            report.complain(format!(
                "with one slow node p50 is {ratio} times that of healthy ones; the limit is {MAX_RATIO}"
            ));
        }
        Ok(report)
    }))
}
