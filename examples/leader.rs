//! Several servers, one of which leads at a time, for example to assign work to the others. The others stand by.
//!
//! Each time a server becomes the leader, a *term* begins. Its number is the fence of the lease, so it is higher than that of every
//! term before it. Send it with everything that the leader orders: who gets an order of an earlier term refuses it.
//!
//! `REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 cargo run --example leader`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::env;
use std::error::Error;
use std::time::Duration;

use redlock_std::{Fence, Fencing, Guard, HoldError, Options, Redlock};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        env::var("REDLOCK_NODES").map_err(|_| "set REDLOCK_NODES to the URLs of the nodes")?;
    // If the leader dies, the next one leads after the TTL at the latest.
    let options = Options::new(Duration::from_secs(5))?
        .fenced(Fencing::default())?
        // Stands by for an hour, and then asks again.
        .wait(Duration::from_secs(3_600))
        .unlimited_extensions();
    let redlock = Redlock::connect(nodes.split(','), options)?;

    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        never = stand_by(&redlock) => match never {},
        // The work is dropped, and the lock released: the next server leads at once.
        _ = terminate.recv() => {}
    }
    redlock.close().await;
    Ok(())
}

async fn stand_by(redlock: &Redlock) -> std::convert::Infallible {
    loop {
        let term = async |guard: &Guard| match guard.fence() {
            Some(term) => lead(term).await,
            None => unreachable!("the options are fenced"),
        };
        match redlock.hold("leader", term).await {
            Ok(never) => match never {},
            Err(HoldError::Lost(cause)) => println!("the term is over: {cause}"),
            Err(error) => {
                println!("{error}");
                // It has not waited if the nodes refuse the login, for example.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Leads until the future is dropped.
async fn lead(term: Fence) -> std::convert::Infallible {
    println!("leads, term {term}");
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
