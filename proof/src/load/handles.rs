//! Hundreds of handles that connect at once.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use tokio::task::JoinSet;

use super::crowd;
use super::length::Length;
use super::report::{Measurement, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL};
use super::tally::Tally;
use super::usage::{descriptor_count, raise_descriptor_limit};

/// For everything that is no connection of a handle.
const OTHER_DESCRIPTORS: usize = 100;

/// Connections of handles that were dropped are closed by then.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn perform(name: String, length: Length) -> Result<Report, Box<dyn Error>> {
    let wanted = match length {
        Length::Short => 100,
        Length::Full | Length::Long => 600,
    };
    let most = raise_descriptor_limit().saturating_sub(OTHER_DESCRIPTORS) / NODES;
    let count = wanted.min(most);
    let stage = Stage::start(NODES);
    Runtime::CurrentThread.build()?.block_on(Box::pin(async {
        let measurement = Measurement::begin();
        let descriptors = descriptor_count();
        let tally = Arc::new(Tally::new());
        let started_at = Instant::now();
        let mut crowd = JoinSet::new();
        for number in 0..count {
            let urls = stage.servers().urls();
            let tally = Arc::clone(&tally);
            crowd.spawn(async move {
                let redlock = Redlock::connect(urls, Options::new(TTL)?)?;
                crowd::cycle(&redlock, &tally, &crowd::key(number)).await;
                Ok::<_, Box<dyn Error + Send + Sync>>(redlock)
            });
        }
        let handles = crowd.join_all().await;
        let took = started_at.elapsed();
        let refused = handles.iter().filter(|handle| handle.is_err()).count();
        let most = descriptor_count();
        drop(handles);
        let dropped_at = Instant::now();
        while descriptor_count() > descriptors && dropped_at.elapsed() < CLOSED_WITHIN {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut report = measurement.end(name, &stage, tally.counts()).await;
        report.note(format!(
            "{count} handles, each with a lock, in {} ms; {most} descriptors at that time",
            millis(took)
        ));
        report.expect_flat_descriptors();
        if refused > 0 {
            report.complain(format!("{refused} handles could not be made"));
        }
        if count < wanted {
            report.note(format!(
                "{wanted} were wanted: raise the limit of open files (ulimit -n)"
            ));
        }
        Ok(report)
    }))
}
