//! The end of a handle.

use std::pin::pin;
use std::sync::Arc;

use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether a handle and its clones are closed, and which acquires have not ended yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closing {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_closed: AtomicBool,
    closed: Notify,
    acquires: AtomicUsize,
}

/// An acquire that has not ended yet.
#[derive(Debug)]
pub(crate) struct Active<'a>(&'a State);

impl Closing {
    /// Begins an acquire. Returns `None` if the handle is closed.
    pub(crate) fn begin(&self) -> Option<Active<'_>> {
        // Counted before the check: an acquire that is not refused is waited for.
        self.state.acquires.fetch_add(1, Ordering::SeqCst);
        let active = Active(&self.state);
        (!self.is_closed()).then_some(active)
    }

    pub(crate) fn close(&self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        self.state.closed.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed.load(Ordering::SeqCst)
    }

    /// Waits until the handle is closed.
    pub(crate) async fn closed(&self) {
        // Registers before the check, so that no close between check and wait is missed.
        let mut closed = pin!(self.state.closed.notified());
        closed.as_mut().enable();
        if !self.is_closed() {
            closed.await;
        }
    }

    /// Whether every acquire has ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.acquires.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.acquires.fetch_sub(1, Ordering::SeqCst);
    }
}
