//! The thread of a blocking handle.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::error::ConnectError;

/// A thread with a tokio runtime. When this is dropped, the thread waits for the tasks of the runtime, and ends.
pub(super) struct RuntimeThread {
    runtime: Handle,
    thread: JoinHandle<()>,
    /// The process in which the thread runs. A process that is forked off has no copy of it.
    process: u32,
    /// The thread learns of the drop of this.
    _is_used: oneshot::Sender<()>,
}

/// What a call returns, or the panic in which it ended.
type Ended<T> = Result<T, Panic>;

type Panic = Box<dyn Any + Send>;

/// The tasks of the nodes end by themselves within 30 seconds after the last handle was dropped.
const LONGEST_END: Duration = Duration::from_secs(35);

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

impl RuntimeThread {
    pub(super) fn start() -> Result<Self, ConnectError> {
        let (ready, runtime) = mpsc::sync_channel(1);
        let (is_used, is_unused) = oneshot::channel();
        let thread = thread::Builder::new().name("redlock".to_owned());
        // The runtime is made on its thread, because a runtime must not be dropped inside of another one.
        let thread = thread.spawn(move || {
            let runtime = match new_runtime() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            drop(ready.send(Ok(runtime.handle().clone())));
            runtime.block_on(async {
                // An error means that the other end was dropped.
                let _unused = is_unused.await;
                finish_tasks().await;
            });
            // A thread of the runtime may still wait for a name server.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(no_thread)?;
        let runtime = runtime
            .recv()
            .unwrap_or_else(|ended| Err(io::Error::other(ended)));
        Ok(Self {
            runtime: runtime.map_err(no_thread)?,
            thread,
            process: std::process::id(),
            _is_used: is_used,
        })
    }

    /// Runs `connect`, which spawns tasks, in the context of the runtime.
    pub(super) fn enter<R>(&self, connect: impl FnOnce() -> R) -> R {
        let _context = self.runtime.enter();
        connect()
    }

    /// Whether this process has no such thread any more.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished() || std::process::id() != self.process
    }

    /// Runs `future` on the thread, and blocks until it is done. Waits in no way that tokio knows, so that it also works inside of a
    /// runtime. If the future panics, so does this.
    ///
    /// If the thread has ended, runs `future` on a temporary one: then the nodes answer nothing, and the call ends as if they were
    /// down.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let ended = if self.has_ended() {
            let temporary = thread::spawn(|| new_runtime().map(|runtime| runtime.block_on(future)));
            let done = temporary.join();
            done.and_then(|done| done.map_err(|error| Box::new(error.to_string()) as Panic))
        } else {
            let (sender, receiver) = mpsc::sync_channel(1);
            self.runtime.spawn(async move {
                // The receiver waits for it.
                let _received = sender.send(caught(future).await);
            });
            let ended: Result<Ended<T>, _> = receiver.recv();
            ended.unwrap_or_else(|_| Err(Box::new("the thread of the locks ended during a call")))
        };
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

#[cfg(test)]
impl RuntimeThread {
    /// A thread that has ended, and its runtime with it.
    pub(super) fn ended(runtime: Runtime) -> Self {
        let handle = runtime.handle().clone();
        let thread = thread::spawn(|| drop(runtime));
        while !thread.is_finished() {
            thread::yield_now();
        }
        Self {
            runtime: handle,
            thread,
            process: std::process::id(),
            _is_used: oneshot::channel().0,
        }
    }
}

impl fmt::Debug for RuntimeThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuntimeThread")
            .field(&self.thread.thread().id())
            .finish()
    }
}

pub(super) fn new_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn no_thread(error: io::Error) -> ConnectError {
    ConnectError::NoThread {
        reason: error.to_string(),
    }
}

/// Waits until the tasks of this runtime have ended: the releases are sent.
async fn finish_tasks() {
    let begun_at = Instant::now();
    let metrics = Handle::current().metrics();
    while metrics.num_alive_tasks() > 0 && begun_at.elapsed() < LONGEST_END {
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// Returns the panic of `future` as a value, because tokio would keep it from the caller.
async fn caught<T>(future: impl Future<Output = T>) -> Ended<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_call_goes_on_in_its_caller_and_the_thread_serves_the_next_call() {
        let thread = RuntimeThread::start().unwrap();
        let call = || thread.run(async { panic!("on purpose") });
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
        assert_eq!(thread.run(async { 7 }), 7);
    }

    #[test]
    fn a_call_in_a_process_without_the_thread_runs_on_another_one_and_does_not_hang() {
        let mut thread = RuntimeThread::start().unwrap();
        thread.process += 1;
        assert!(thread.has_ended());
        let id = thread.run(async { thread::current().id() });
        assert_ne!(id, thread.thread.thread().id());
        assert_ne!(id, thread::current().id());
    }

    #[test]
    fn the_thread_finishes_the_tasks_of_its_runtime_and_ends_after_its_last_handle() {
        let thread = RuntimeThread::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let task = async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            sender.send("finished")
        };
        let task = thread.runtime.spawn(task);
        let RuntimeThread {
            thread, _is_used, ..
        } = thread;
        drop(_is_used);
        thread.join().unwrap();
        assert!(task.is_finished());
        assert_eq!(receiver.recv(), Ok("finished"));
    }
}
