//! What became of the acquires of many tasks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redlock_std::AcquireError;

use super::histogram::Histogram;

/// Counts what tasks report, from many threads.
#[derive(Debug)]
pub(super) struct Tally(Mutex<Counts>);

/// What there is to count.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    started_at: Instant,
    /// How long the acquires took that succeeded.
    pub(super) latencies: Histogram,
    /// How many failed, by kind.
    pub(super) failures: BTreeMap<&'static str, u64>,
    /// The words of the first failure.
    pub(super) first_failure: Option<String>,
    /// How many guards were no longer valid when they were looked at.
    pub(super) lost: u64,
    /// From the start to the end of the last acquire.
    pub(super) elapsed: Duration,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Counts {
            started_at: Instant::now(),
            latencies: Histogram::new(),
            failures: BTreeMap::new(),
            first_failure: None,
            lost: 0,
            elapsed: Duration::ZERO,
        }))
    }

    pub(super) fn acquired(&self, took: Duration) {
        let mut counts = self.lock();
        counts.latencies.record(took);
        counts.elapsed = counts.started_at.elapsed();
    }

    pub(super) fn failed(&self, error: &AcquireError) {
        let kind = match error {
            AcquireError::HeldHere(_) => "held here",
            error if error.is_held() => "held",
            error if error.is_unreachable() => "no quorum",
            _ => "other",
        };
        let mut counts = self.lock();
        *counts.failures.entry(kind).or_default() += 1;
        counts
            .first_failure
            .get_or_insert_with(|| error.to_string());
        counts.elapsed = counts.started_at.elapsed();
    }

    pub(super) fn lost(&self) {
        self.lock().lost += 1;
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Locks a second.
    pub(super) fn throughput(&self) -> u64 {
        let millis = self.elapsed.as_millis().max(1);
        let per_second = u128::from(self.latencies.count()) * 1_000 / millis;
        u64::try_from(per_second).unwrap_or(u64::MAX)
    }
}
