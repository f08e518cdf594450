//! Tasks that end with the process that has begun them.

use std::future::Future;
use std::pin::Pin;
use std::process;
use std::task::{Context, Poll};

/// A task of the process that created it. A process that was forked off has a copy of it, with the same sockets: if it ran there too,
/// each process would read answers to commands of the other one, and take a lock that the other one has.
///
/// So the copy does nothing. It is not dropped either: closing its sockets would tell the selector that both processes share to forget
/// those of the other process.
pub(super) struct OfProcess<F> {
    process: u32,
    /// `None` once it is dropped.
    task: Option<Pin<Box<F>>>,
}

impl<F> OfProcess<F> {
    pub(super) fn new(task: F) -> Self {
        Self {
            process: process::id(),
            task: Some(Box::pin(task)),
        }
    }
}

/// Whether this process is not `process`, of which it is a fork.
pub(super) fn is_fork_of(process: u32) -> bool {
    process::id() != process
}

impl<F: Future<Output = ()>> Future for OfProcess<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_fork = is_fork_of(self.process);
        match &mut self.task {
            Some(task) if !is_fork => task.as_mut().poll(context),
            _ => Poll::Pending,
        }
    }
}

impl<F> Drop for OfProcess<F> {
    fn drop(&mut self) {
        if is_fork_of(self.process) {
            #[expect(clippy::mem_forget, reason = "see above")]
            std::mem::forget(self.task.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A task that holds something, of this process or of the one from which this one was forked.
    fn task(process: u32) -> (OfProcess<impl Future<Output = ()>>, Arc<()>) {
        let held = Arc::new(());
        let copy = Arc::clone(&held);
        let mut task = OfProcess::new(async move { drop(copy) });
        task.process = process;
        (task, held)
    }

    fn is_done(task: &mut OfProcess<impl Future<Output = ()>>) -> bool {
        let context = &mut Context::from_waker(std::task::Waker::noop());
        Pin::new(task).poll(context).is_ready()
    }

    #[test]
    fn a_task_runs_in_the_process_that_has_begun_it() {
        let (mut task, held) = task(process::id());
        assert!(is_done(&mut task));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn the_copy_of_a_task_in_a_forked_process_does_nothing_and_closes_nothing() {
        let (mut task, held) = task(process::id() + 1);
        assert!(!is_done(&mut task));
        drop(task);
        assert_eq!(Arc::strong_count(&held), 2);
    }
}
