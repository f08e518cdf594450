//! An observer that logs.

use core::time::Duration;

use redlock_core::{AcquireOutcome, HoldEnd, Observer};

use crate::error::NodeError;
use crate::log::{debug, warning};

/// Logs what a lock does, through `defmt` or `log`, in the names of the metrics of `redlock-std`: each line is the name of a metric,
/// its value, and its attributes. Neither keys nor tokens are logged. Without the features `defmt` and `log`, it does nothing.
///
/// ```
/// # use redlock_embassy::{Clock, Entropy, LogObserver, NodeError, Redlock, Transport};
/// # fn example<T: Transport<Name = redlock_embassy::NodeName, Error = redlock_embassy::TransportError>, C: Clock, E: Entropy>(
/// #     redlock: Redlock<T, C, E, 3>,
/// # ) {
/// let redlock = redlock.with_observer(LogObserver);
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LogObserver;

impl Observer<NodeError> for LogObserver {
    fn acquire_ended(&self, _key: &[u8], outcome: AcquireOutcome, took: Duration, tries: u32) {
        let (outcome_word, ms) = (outcome.as_str(), millis(took));
        if outcome == AcquireOutcome::Acquired {
            debug!(
                "redlock.client.acquire.duration={} ms outcome={} tries={}",
                ms, outcome_word, tries
            );
        } else {
            warning!(
                "redlock.client.acquire.duration={} ms outcome={} tries={}",
                ms,
                outcome_word,
                tries
            );
        }
    }

    fn handed_off(&self, _key: &[u8], took: Duration) {
        debug!("redlock.client.handoff.duration={} ms", millis(took));
    }

    fn node_failed(&self, _node: usize, error: &NodeError) {
        warning!("redlock.client.node.failures+1 {}", error);
    }

    fn hold_ended(&self, _key: &[u8], end: HoldEnd, held: Duration) {
        let (word, ms) = (end.as_str(), millis(held));
        match end {
            HoldEnd::Lost | HoldEnd::Expired => {
                warning!("redlock.client.hold.duration={} ms end={}", ms, word);
            }
            _ => debug!("redlock.client.hold.duration={} ms end={}", ms, word),
        }
    }
}

/// Whole milliseconds, without 128-bit arithmetic.
const fn millis(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000)
        .saturating_add(duration.subsec_millis() as u64)
}
