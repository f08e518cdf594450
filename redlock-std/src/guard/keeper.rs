//! The task that extends a lease in the background.

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::node::Stop;

/// The handle of the task.
pub(super) struct Keeper {
    task: AbortHandle,
    stop: Stop,
}

impl Keeper {
    /// Starts the task. `keeping` is what it does, until it is stopped.
    pub(super) fn spawn(
        runtime: &Handle,
        keeping: impl Future<Output = ()> + Send + 'static,
        stop: Stop,
    ) -> Self {
        Self {
            task: runtime.spawn(keeping).abort_handle(),
            stop,
        }
    }

    /// Ends the task, without waiting for it. If it runs on another thread, it may go on for a moment, but no command that it has
    /// not queued by now is sent: an extension behind the release would let a kept lock expire.
    pub(super) fn stop(self) {
        self.stop.set();
        self.task.abort();
    }
}
