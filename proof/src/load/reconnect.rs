//! All connections of all nodes are killed in the middle of load.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::Options;

use super::crowd;
use super::length::Length;
use super::report::{Measurement, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL, end_kept};
use super::tally::Tally;

const TASKS: usize = 64;

/// By then a task must have a lock again.
const MAX_OUTAGE: Duration = TTL.checked_div(10).expect("not by zero");

pub(super) fn perform(name: String, length: Length) -> Result<Report, Box<dyn Error>> {
    let half = Duration::from_secs(match length {
        Length::Short => 1,
        Length::Full | Length::Long => 5,
    });
    let stage = Stage::start(NODES);
    Runtime::MultiThread.build()?.block_on(Box::pin(async {
        let redlock = stage.connect(Options::new(TTL)?).await?;
        let kept = stage.keep(&redlock).await?;
        let measurement = Measurement::begin();
        let tally = Arc::new(Tally::new());
        let load = crowd::run(&redlock, &tally, TASKS, TASKS, half * 2);
        let kill = async {
            tokio::time::sleep(half).await;
            let failed_before = tally.counts().failed();
            let nodes = stage.clone();
            let killed = tokio::task::spawn_blocking(move || kill_clients(&nodes)).await;
            let killed_at = Instant::now();
            // Another task than those under load: it asks from now on.
            let again = redlock.acquire("again").await;
            let outage = killed_at.elapsed();
            (killed, again.map(drop), outage, failed_before)
        };
        let ((), (killed, again, outage, failed_before)) = tokio::join!(load, kill);
        end_kept(kept, &tally).await;
        let counts = tally.counts();
        let failed = counts.failed() - failed_before;
        let mut report = measurement.end(name, &stage, counts).await;
        let killed = killed?;
        report.note(format!(
            "{killed} connections killed; the next acquire took {} ms; {failed} acquires failed from then on",
            millis(outage)
        ));
        if killed < NODES {
            report.complain(format!("only {killed} connections were killed"));
        }
        if let Err(error) = again {
            report.complain(format!("the next acquire failed: {error}"));
        }
        if outage > MAX_OUTAGE {
            report.complain("the next acquire took more than a tenth of the TTL".to_owned());
        }
        Ok(report)
    }))
}

/// How many connections were killed.
fn kill_clients(stage: &Stage) -> usize {
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    let servers = stage.servers().iter();
    servers
        .map(|server| server.query::<usize>(&kill).unwrap_or(0))
        .sum()
}
