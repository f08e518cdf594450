//! The guard of a held lock, whose calls block.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::{Fence, Instant, Token};

use super::runtime_thread::RuntimeThread;
use crate::error::{ExtendError, LossCause, Released};
use crate::handover::Handover;

/// A held lock, valid until [`valid_until`](Self::valid_until).
///
/// Dropping the guard releases the lock in the background, also if its thread panics: `drop` queues the release for every node before
/// it returns, and the thread of the handle sends it. `drop` does not block or panic. To know that the lock is free, call
/// [`release`](Self::release).
///
/// A guard whose validity is over no longer keeps other threads of this process waiting, even if it still exists.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    // Before the thread, which ends when the last of them is dropped.
    guard: crate::Guard,
    thread: Arc<RuntimeThread>,
}

impl Guard {
    pub(super) const fn new(guard: crate::Guard, thread: Arc<RuntimeThread>) -> Self {
        Self { guard, thread }
    }

    /// Returns the locked key, with the prefix if there is one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.guard.key()
    }

    /// Returns the token: the value of the key on every node. Any client that knows the token can release the lock.
    #[must_use]
    pub fn token(&self) -> &Token {
        self.guard.token()
    }

    /// Returns how long the acquire of this lock took: in the queue, in the line and in its rounds.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.guard.waited()
    }

    /// Returns how many times this acquire has asked the nodes. See [`crate::Guard::attempts`].
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.guard.attempts()
    }

    /// Returns the names of the nodes that had granted the lock when its acquire returned: at least a quorum. None if the lease was
    /// adopted.
    #[must_use]
    pub fn granted_by(&self) -> Vec<Arc<str>> {
        self.guard.granted_by()
    }

    /// Returns the fencing token, or `None` if the lock is plain. See [`crate::Guard::fence`].
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.guard.fence()
    }

    /// Returns the end of the validity on [`SystemClock`](crate::SystemClock). From then on another client may hold the lock. Extensions
    /// move this end.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.guard.valid_until()
    }

    /// Returns whether the lock is held now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Returns the rest of the validity, or zero if it is over or the lock is known to be lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Extends the lease: its keys expire one TTL from now. It blocks for one round, or up to two for a fenced lock. See
    /// [`crate::Guard::extend`].
    ///
    /// # Errors
    ///
    /// After [`ExtendError::Unreachable`] the lease is unchanged: retry while it is valid. After every other error the lock is lost.
    pub fn extend(&mut self) -> Result<(), Box<ExtendError>> {
        let Some(extension) = self.guard.begin_extension() else {
            return Err(Box::new(ExtendError::Expired));
        };
        let (held, extended) = self.thread.run(extension);
        self.guard.end_extension(held);
        extended.map_err(Box::new)
    }

    /// Extends the lease in the background from now on, each time a third of its validity has passed. Does not block. See
    /// [`crate::Guard::keep_alive`]. Check [`is_valid`](Self::is_valid) during the work, to learn that the lock is lost.
    pub fn keep_alive(&mut self) {
        self.guard.keep_alive();
    }

    /// Blocks until the lock is lost, and returns the cause: at the end of the validity at the latest, or a few milliseconds later if
    /// the machine is busy. The lock stays lost: [`is_valid`](Self::is_valid) is false from then on. Call it on a thread of its own, for example of `std::thread::scope`.
    pub fn lost(&self) -> LossCause {
        self.thread.run(self.guard.losing())
    }

    /// Releases the lock, and blocks until a quorum has answered, at most for the node timeout, or for two if the lock is fenced and has
    /// a [`min_hold`](crate::Options::min_hold). See [`crate::Guard::release`].
    pub fn release(self) -> Released {
        let guard = self.guard;
        self.thread.run(async move { guard.release().await })
    }

    /// Like [`release`](Self::release), but frees the lock even if [`Options::min_hold`](crate::Options::min_hold) is not over: for a
    /// job that has failed and should be tried again.
    pub fn release_now(self) -> Released {
        let guard = self.guard;
        self.thread.run(async move { guard.release_now().await })
    }

    /// Leaves the lock on the nodes, for another process to [adopt](super::Redlock::adopt). Does not block. See
    /// [`crate::Guard::hand_over`].
    #[must_use = "the lock stays held until its TTL is over"]
    pub fn hand_over(self) -> Handover {
        self.guard.hand_over()
    }

    pub(super) fn loss(&self) -> Option<LossCause> {
        self.guard.loss()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}
