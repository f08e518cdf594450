//! Tokio's `Notify` under loom, which does not know it: another thread may run before each call.

use loom::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::futures::Notified;

#[derive(Debug)]
pub(crate) struct Notify {
    notify: tokio::sync::Notify,
    calls: AtomicUsize,
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self {
            notify: tokio::sync::Notify::new(),
            calls: AtomicUsize::new(0),
        }
    }

    pub(crate) fn notify_one(&self) {
        self.now().notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        self.now().notify_waiters();
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        self.now().notified()
    }

    /// A write, so that loom tries both orders of any two calls. It orders nothing else.
    fn now(&self) -> &tokio::sync::Notify {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.notify
    }
}
