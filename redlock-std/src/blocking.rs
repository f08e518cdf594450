//! Locks for code without async: the same words, and calls that block the thread.
//!
//! ```no_run
//! use std::time::Duration;
//! use redlock_std::{Options, blocking::Redlock};
//!
//! # fn charge() {}
//! # fn back_up() {}
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let redlock = Redlock::connect(
//!         ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"],
//!         Options::new(Duration::from_secs(10))?,
//!     )?;
//!     let guard = redlock.acquire("invoice:42")?;
//!     charge();
//!     guard.release();
//!
//!     // For work that is longer than the TTL: the lease is extended while it runs, up to `Options::max_extensions` times.
//!     redlock.hold("nightly-backup", |_guard| back_up())?;
//!
//!     // Sends the releases of dropped guards, before the process ends.
//!     redlock.close();
//!     Ok(())
//! }
//! ```

mod guard;
mod runtime_thread;

use std::fmt;
use std::sync::Arc;

use redlock_core::Options;

use crate::error::{AcquireError, ConnectError, HoldError, LossCause};
use crate::handover::{AdoptError, Handover};
#[cfg(feature = "mock")]
use crate::memory::MemoryNode;
use crate::node::{NodeError, NodeStatus};

pub use guard::Guard;
use runtime_thread::RuntimeThread;

/// A handle for locks over independent Redis or Valkey masters, whose calls block.
///
/// Any number of threads can share it. A clone is cheap. The guarantees are those of [`crate::Redlock`], and so are the queues, the
/// line and the errors: the handle is one of these, on a tokio runtime of its own.
///
/// # Threads
///
/// Each [`connect`](Self::connect) starts one thread, `redlock`, with a tokio runtime on it. It makes the connections, runs the calls,
/// extends leases and sends releases. A call blocks its own thread until that thread has the result: `acquire` as long as
/// [`Options::wait`] says, every other call for a few node timeouts. When the last clone and the last guard are dropped, the thread
/// sends the queued releases, for at most 30 seconds, and ends. No drop waits for it, so call [`close`](Self::close) before the
/// process ends.
///
/// # In async code
///
/// Calls work inside of a tokio runtime too, and do not panic there. But they block the worker thread on which they are called: in a
/// runtime with one thread, no other task runs meanwhile. So use [`crate::Redlock`] in async code, or call from
/// `tokio::task::spawn_blocking`.
///
/// # Fork
///
/// A process that was forked off has no such thread, and may have a copy of a mutex that was locked at that moment. So neither use nor
/// drop the handle and its guards there: a call fails after its node timeouts or blocks for ever. Connect after the fork. A process
/// that the fork replaces by another program (`std::process::Command`) is not concerned.
#[derive(Clone)]
pub struct Redlock {
    // Before the thread, which ends when the last of them is dropped.
    redlock: crate::Redlock,
    thread: Arc<RuntimeThread>,
}

impl Redlock {
    /// Returns a handle for locks over the nodes at `urls`, and starts its thread. It needs no tokio runtime. Everything else is as in
    /// [`crate::Redlock::connect`]: the URLs, the connects in the background and the permissions.
    ///
    /// # Errors
    ///
    /// If a URL cannot be parsed, if two URLs name the same node, if there is no URL or more than [`MAX_NODES`](crate::MAX_NODES), if
    /// TLS cannot be set up for a `rediss://` URL, or if the thread or its runtime cannot be started.
    pub fn connect<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        Self::on_a_thread(|| crate::Redlock::connect(urls, options))
    }

    /// Like [`connect`](Self::connect), but with the TLS configuration `tls`, as in [`crate::Redlock::connect_with_tls`].
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    #[cfg(feature = "tls-rustls")]
    pub fn connect_with_tls<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConnectError> {
        Self::on_a_thread(|| crate::Redlock::connect_with_tls(urls, options, tls))
    }

    /// Returns a handle for locks over `nodes` in memory, for tests of your own code. See [`crate::Redlock::in_memory`].
    ///
    /// Its clock is the real one: it runs on its own runtime. A `tokio::time::pause` in the runtime of the caller does not pause it,
    /// and [`Guard::remaining`] is wrong there.
    ///
    /// # Errors
    ///
    /// If there are no nodes or more than [`MAX_NODES`](crate::MAX_NODES), if a node is given twice, if the options are not valid, or
    /// if the thread or its runtime cannot be started.
    #[cfg(feature = "mock")]
    pub fn in_memory(nodes: &[MemoryNode], options: Options) -> Result<Self, ConnectError> {
        Self::on_a_thread(|| crate::Redlock::in_memory(nodes, options))
    }

    fn on_a_thread(
        connect: impl FnOnce() -> Result<crate::Redlock, ConnectError>,
    ) -> Result<Self, ConnectError> {
        let thread = RuntimeThread::start()?;
        let redlock = thread.enter(connect)?;
        Ok(Self {
            redlock,
            thread: Arc::new(thread),
        })
    }

    /// Returns a handle with other options. It shares the thread, the connections and the queues for keys with this one. See
    /// [`crate::Redlock::with_options`].
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Self {
            redlock: self.redlock.with_options(options),
            thread: Arc::clone(&self.thread),
        }
    }

    /// Returns a handle that puts `prefix` before each key.
    #[must_use]
    pub fn with_prefix(&self, prefix: impl AsRef<[u8]>) -> Self {
        Self {
            redlock: self.redlock.with_prefix(prefix),
            thread: Arc::clone(&self.thread),
        }
    }

    /// Returns a handle whose metrics and spans have an attribute `lock` with the label of the key. See
    /// [`crate::Redlock::with_label`].
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    #[must_use]
    pub fn with_label(
        &self,
        label: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        Self {
            redlock: self.redlock.with_label(label),
            thread: Arc::clone(&self.thread),
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        self.redlock.options()
    }

    /// Returns the status of each node, for a readiness check or a log. Sends nothing, and does not block. See
    /// [`crate::Redlock::status`].
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        self.redlock.status()
    }

    /// Returns the problems of nodes that do not cost them their vote. Does not block. See [`crate::Redlock::warnings`].
    #[must_use]
    pub fn warnings(&self) -> Vec<NodeError> {
        self.redlock.warnings()
    }

    /// Acquires the lock if it is free. It does not wait for a holder, and blocks for at most fifteen node timeouts. See
    /// [`crate::Redlock::try_acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] distinguishes a lock that is held ([`is_held`](AcquireError::is_held)), too few nodes that gave a vote
    /// ([`is_unreachable`](AcquireError::is_unreachable)), and a round that could not begin ([`AcquireError::NotAsked`]).
    pub fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        let redlock = self.redlock.clone();
        let key = key.as_ref().to_vec();
        let acquired = self
            .thread
            .run(async move { redlock.try_acquire(key).await });
        Ok(self.guard(acquired?))
    }

    /// Acquires the lock, and blocks until [`Options::wait`] is over. See [`crate::Redlock::acquire`]: the order, and what else limits
    /// the wait.
    ///
    /// The call cannot be cancelled from another thread, except by [`close`](Self::close): so choose the wait that the caller can
    /// afford. The lock is not re-entrant: a thread that holds the lock and acquires its key again waits for itself.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Redlock::acquire`].
    pub fn acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        if self.thread.has_ended() {
            // Every attempt would fail in the same way.
            return self.try_acquire(key);
        }
        let redlock = self.redlock.clone();
        let key = key.as_ref().to_vec();
        let acquired = self.thread.run(async move { redlock.acquire(key).await });
        Ok(self.guard(acquired?))
    }

    /// Acquires the lock, runs `work` on this thread and releases the lock.
    ///
    /// The lease is extended in the background while the work runs, each time a third of its validity has passed. Code that blocks
    /// cannot be stopped from outside: if the lock is lost, the work runs on. So before each step that matters, check
    /// [`Guard::is_valid`] or [`Guard::remaining`], or send [`Guard::fence`] to a resource that compares fences. The async
    /// [`hold`](crate::Redlock::hold) drops the work instead.
    ///
    /// If the work panics, the lock is released, and the panic goes on.
    ///
    /// # Errors
    ///
    /// [`HoldError::NotAcquired`] if the lock was not acquired: the work did not begin. [`HoldError::Lost`] if the lock was found lost before
    /// the work was done. The result of the work is dropped then. The work has run to its end, partly without the lock.
    pub fn hold<R>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl FnOnce(&Guard) -> R,
    ) -> Result<R, HoldError> {
        let mut guard = self.acquire(key).map_err(HoldError::NotAcquired)?;
        guard.keep_alive();
        let result = work(&guard);
        let is_held = guard.is_valid();
        let cause = guard.loss().unwrap_or(LossCause::Expired);
        guard.release();
        if is_held {
            Ok(result)
        } else {
            Err(HoldError::Lost(Box::new(cause)))
        }
    }

    /// Closes this handle and its clones: no acquire begins any more, those that wait in other threads end with
    /// [`AcquireError::Closed`], and the queued releases are sent. Returns how many releases are still unanswered, or were dropped
    /// because too many waited: their keys may be left until they expire. [`warnings`](Self::warnings) tells of releases that were
    /// dropped or refused.
    ///
    /// Call it before the process ends, when the threads that hold guards have ended. It blocks until the nodes that can be reached
    /// have answered, at most for four node timeouts or a second, whichever is longer. Guards that still exist are not released by it. Their
    /// extensions and releases work as before.
    pub fn close(&self) -> usize {
        let redlock = self.redlock.clone();
        self.thread.run(async move { redlock.close().await })
    }

    /// Takes over a lease that another process has [handed over](Guard::hand_over). See [`crate::Redlock::adopt`]. It blocks for at most
    /// a few node timeouts.
    ///
    /// # Errors
    ///
    /// [`AdoptError`] tells whether the lease is lost, or a later attempt may succeed.
    pub fn adopt(&self, handover: &Handover) -> Result<Guard, AdoptError> {
        let redlock = self.redlock.clone();
        let handover = handover.clone();
        let adopted = self
            .thread
            .run(async move { redlock.adopt(&handover).await });
        Ok(self.guard(adopted?))
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard::new(guard, Arc::clone(&self.thread))
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redlock.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn when_the_thread_has_ended_every_call_says_so_and_does_not_wait() {
        let runtime = runtime_thread::new_runtime().unwrap();
        let options = Options::new(Duration::from_secs(3_600)).unwrap();
        let options = options.wait(Duration::from_secs(3_600));
        let context = runtime.enter();
        // Without a server: a connection is refused.
        let redlock = crate::Redlock::connect(["redis://127.0.0.1:1"], options).unwrap();
        drop(context);
        let redlock = Redlock {
            redlock,
            thread: Arc::new(RuntimeThread::ended(runtime)),
        };
        let begun_at = std::time::Instant::now();
        let errors = [
            redlock.acquire("dock-7").unwrap_err(),
            redlock.try_acquire("dock-7").unwrap_err(),
        ];
        for error in errors {
            let words = "the tokio runtime of the connection has shut down";
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(redlock.close(), 0);
        assert!(begun_at.elapsed() < Duration::from_secs(600));
    }
}
