//! The end of the commands of a task.

use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, Ordering};

/// Keeps the commands of a task from being queued once it is set.
///
/// It is read under the lock of the queue. So a command that is queued after it was set, by another task, is behind all commands of
/// this one.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
