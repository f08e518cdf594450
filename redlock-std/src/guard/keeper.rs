//! The task that extends a lease in the background.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::sync::Mutex;

/// The handle of the task.
pub(super) struct Keeper {
    task: AbortHandle,
    keeping: Arc<Keeping>,
}

/// What the task does. `None` when it is stopped.
type Keeping = Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>;

impl Keeper {
    pub(super) fn spawn(
        runtime: &Handle,
        keeping: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let keeping: Arc<Keeping> = Arc::new(Mutex::new(Some(Box::pin(keeping))));
        let shared = Arc::clone(&keeping);
        let task = runtime.spawn(poll_fn(move |context| {
            let mut keeping = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *keeping {
                Some(keeping) => keeping.as_mut().poll(context),
                None => Poll::Ready(()),
            }
        }));
        Self {
            task: task.abort_handle(),
            keeping,
        }
    }

    /// Ends the task. If it runs on another thread, this waits until it pauses. So it sends nothing after this, in particular no
    /// extension behind the release.
    pub(super) fn stop(self) {
        let keeping = self
            .keeping
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(keeping);
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_keeper_that_is_stopped_does_nothing_more() {
        const A_WHILE: Duration = Duration::from_millis(50);

        let (reports, reported) = mpsc::channel();
        let keeping = async move {
            reports.send("begun").unwrap();
            // As if its thread were stopped.
            thread::sleep(A_WHILE);
            reports.send("ended").unwrap();
            pending().await
        };
        let keeper = Keeper::spawn(&Handle::current(), keeping);
        assert_eq!(reported.recv(), Ok("begun"));
        keeper.stop();
        assert_eq!(reported.try_recv(), Ok("ended"), "the poll is over");
        assert!(
            matches!(reported.try_recv(), Err(mpsc::TryRecvError::Disconnected)),
            "what it did is dropped"
        );
    }
}
