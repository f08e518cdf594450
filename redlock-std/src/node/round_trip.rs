//! The round trip time of a node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long the last answer took, in microseconds; zero before the first answer.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(AtomicU64);

impl RoundTrip {
    pub(crate) fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.store(micros, Ordering::Relaxed);
    }

    /// `None` before the first answer.
    pub(crate) fn known(&self) -> Option<Duration> {
        Some(self.last()).filter(|last| !last.is_zero())
    }

    pub(crate) fn last(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
