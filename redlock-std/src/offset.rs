//! By how much the nodes' clocks are ahead of this machine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What all operations of a lock, and of its clones, have learned from the nodes' answers: only the first of
/// them has to ask what time it is.
#[derive(Debug, Clone)]
pub(crate) struct ClockOffset(Arc<AtomicI64>);

/// No clock is so far behind.
const UNKNOWN: i64 = i64::MIN;

impl ClockOffset {
    pub(crate) fn unknown() -> Self {
        Self(Arc::new(AtomicI64::new(UNKNOWN)))
    }

    pub(crate) fn known(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|offset| *offset != UNKNOWN)
    }

    pub(crate) fn learn(&self, offset: Option<i64>) {
        if let Some(offset) = offset {
            self.0.store(offset, Ordering::Relaxed);
        }
    }
}
