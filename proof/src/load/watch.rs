//! Looks at the memory of this process from a thread of its own, also while a runtime stands still.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::usage::resident_bytes;

/// Sees the peak until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    begin: u64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    peak: AtomicU64,
    is_over: AtomicBool,
    /// Why it had to step in.
    alarm: Mutex<Option<String>>,
}

/// What must not be exceeded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) growth: u64,
    pub(super) time: Duration,
}

const INTERVAL: Duration = Duration::from_millis(5);

impl Watch {
    /// Only looks.
    pub(super) fn begin() -> Self {
        let unlimited = Limits {
            growth: u64::MAX,
            time: Duration::MAX,
        };
        Self::begin_with(unlimited, || {})
    }

    /// Calls `stop` once if one of `limits` is exceeded.
    pub(super) fn begin_with(limits: Limits, stop: impl FnOnce() + Send + 'static) -> Self {
        let begin = resident_bytes();
        let shared = Arc::new(Shared {
            peak: AtomicU64::new(begin),
            is_over: AtomicBool::new(false),
            alarm: Mutex::new(None),
        });
        let watched = Arc::clone(&shared);
        thread::spawn(move || {
            let started_at = Instant::now();
            let mut stop = Some(stop);
            while !watched.is_over.load(Ordering::Relaxed) {
                let bytes = resident_bytes();
                watched.peak.fetch_max(bytes, Ordering::Relaxed);
                let why = if bytes.saturating_sub(begin) > limits.growth {
                    Some(format!("grew by more than {} MB", limits.growth >> 20))
                } else if started_at.elapsed() > limits.time {
                    Some(format!("was not over after {:?}", limits.time))
                } else {
                    None
                };
                if let Some(why) = why
                    && let Some(stop) = stop.take()
                {
                    *watched.alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    stop();
                }
                thread::sleep(INTERVAL);
            }
        });
        Self { begin, shared }
    }

    /// The most bytes beyond those at the beginning.
    pub(super) fn peak_growth(&self) -> u64 {
        let peak = self.shared.peak.load(Ordering::Relaxed);
        peak.max(resident_bytes()).saturating_sub(self.begin)
    }

    /// The bytes beyond those at the beginning.
    pub(super) fn growth(&self) -> u64 {
        resident_bytes().saturating_sub(self.begin)
    }

    /// Why it had to stop what it watches.
    pub(super) fn alarm(&self) -> Option<String> {
        let alarm = self.shared.alarm.lock();
        alarm.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}
