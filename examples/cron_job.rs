//! A job that several servers start at the same time once per minute, and that only one of them must do.
//!
//! `REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 cargo run --example cron_job`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::env;
use std::error::Error;
use std::time::Duration;

use redlock_std::{Guard, HoldError, Options, Redlock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        env::var("REDLOCK_NODES").map_err(|_| "set REDLOCK_NODES to the URLs of the nodes")?;
    // One round: a server that does not get the lock need not wait for it. With nodes that are farther away than
    // 25 ms, set a longer `node_timeout`.
    let options = Options::new(Duration::from_secs(10))?.wait(Duration::ZERO);
    // The servers do not start at the same instant. Without this, the lock would be free again when the last of them starts, and
    // each would do the job. It is shorter than the period by more than the clocks of the servers differ.
    let options = options.min_hold(Duration::from_secs(55))?;
    let redlock = Redlock::connect(nodes.split(','), options)?;

    match redlock.hold("report", report).await {
        Ok(pages) => println!("done: {pages} pages"),
        Err(HoldError::NotAcquired(error)) if error.is_held() => println!("another server does it"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The job may take any time: the lease is extended meanwhile. If the lock is lost, the future is dropped.
async fn report(guard: &Guard) -> u32 {
    let mut pages = 0;
    while pages < 3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Before a step that cannot be undone, check whether there is time for it.
        if guard.remaining() > Duration::from_secs(1) {
            pages += 1;
        }
    }
    pages
}
