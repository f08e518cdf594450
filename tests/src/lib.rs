//! What the suites share: real servers, streams to them, and waiting for facts instead of sleeping.
//!
//! What shows that the lock keeps its promises is `redlock-proof`.

pub mod api;
pub mod child;
mod emulator;
mod impostor;
pub mod scripts;
mod servers;
mod step_clock;
mod tls;
mod tokio_stream;

use std::time::{Duration, Instant};

pub use emulator::Emulator;
pub use impostor::{Impostor, Mischief};
pub use servers::{Calls, Server, Servers};
pub use tls::{Authority, Certified, TlsServer, connect_storm};
pub use tokio_stream::TokioStream;

/// The examples of the README, so that they are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/what-can-go-wrong.md")]
mod what_can_go_wrong {}

/// Waits until `fact` holds. The tasks under test run meanwhile, also on a runtime of one thread.
///
/// # Panics
///
/// When it does not hold within `limit`.
pub async fn eventually(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
