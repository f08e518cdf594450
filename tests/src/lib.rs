//! What the suites share: real servers, and waiting for facts instead of sleeping.

mod servers;

use std::time::{Duration, Instant};

pub use servers::{Calls, Server, Servers};

/// Waits until `fact` holds.
///
/// # Panics
///
/// When it does not hold within `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
