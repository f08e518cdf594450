//! What the suites share: real servers, streams to them, and waiting for facts instead of sleeping.
//!
//! What shows that the lock keeps its promises is `redlock-proof`.

pub mod api;
mod called;
pub mod child;
pub mod contender;
mod emulator;
mod impostor;
mod proxy;
pub mod scripts;
mod servers;
mod step_clock;
#[cfg(feature = "telemetry")]
pub mod telemetry;
mod tls;
mod tokio_stream;
mod undisturbed;

use core::pin::pin;
use core::task::Poll;
use std::fs;
use std::future::poll_fn;
use std::time::{Duration, Instant};

pub use called::wait_to_be_called;
pub use emulator::Emulator;
pub use impostor::{Impostor, Mischief, read_command};
pub use proxy::Proxy;
pub use servers::{Calls, Server, Servers};
pub use step_clock::StepClock;
pub use tls::{Authority, Certified, TlsServer, connect_storm};
pub use tokio_stream::TokioStream;
pub use undisturbed::undisturbed;

/// The examples of the README, so that they are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(all(doctest, feature = "telemetry"))]
#[doc = include_str!("../../docs/observing.md")]
mod observing {}

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

/// Polls `future` at most `polls` times, each time when it has asked for it, and drops it. Returns whether it was done.
pub async fn poll_times(polls: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// The resident set of this process, in bytes.
///
/// # Panics
///
/// If the system does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    assert!(kib.is_some(), "no resident set in {status:?}");
    kib.unwrap_or(0_u64) << 10
}

/// Checks that `output` holds no password of a test, each of which contains `secret`, and no whole token.
///
/// # Panics
///
/// When it does.
pub fn expect_no_secret(output: &str) {
    const TOKEN_DIGITS: usize = 40;

    assert!(!output.contains("secret"), "a password: {output}");
    // A key may be as long as a token.
    let mut parts = output.split("\"key_hex\":");
    let first = parts.next().into_iter();
    let of_a_key = |letter: char| letter == ' ' || letter == '"' || letter.is_ascii_hexdigit();
    let parts = first.chain(parts.map(|part| part.trim_start_matches(of_a_key)));
    let words = parts.flat_map(|part| part.split(|letter: char| !letter.is_ascii_hexdigit()));
    let longest = words.map(str::len).max().unwrap_or_default();
    assert!(longest < TOKEN_DIGITS, "a whole token: {output}");
}

#[cfg(test)]
mod tests {
    use super::expect_no_secret;

    #[test]
    fn the_first_bytes_of_a_token_are_no_secret() {
        expect_no_secret("dock-7: held by 0011aaff.. on 3 of 5 nodes");
    }

    #[test]
    fn a_long_key_is_no_secret() {
        expect_no_secret(&format!("{{\"key_hex\": \"{}\"}}", "aa".repeat(40)));
    }

    #[test]
    #[should_panic(expected = "a whole token")]
    fn a_whole_token_is_a_secret() {
        expect_no_secret(&format!("token {}.", "0011aaFF".repeat(5)));
    }

    #[test]
    #[should_panic(expected = "a password")]
    fn a_password_is_a_secret() {
        expect_no_secret("redis://me:secret@host");
    }
}
