//! A lock that is held.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Fence, Instant, Lease, Token};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::clock::SystemClock;
use crate::core::Core;
use crate::entropy::SystemEntropy;
use crate::error::{ExtendError, LossCause, Released, Report};
use crate::key_queues::Turn;
use crate::rounds::{Round, Rounds};

/// The lock is held until [`valid_until`](Self::valid_until).
///
/// Dropping the guard gives the lock back in the background: the release is put into the queue of
/// every node before `drop` returns, and their task sends it. Nothing blocks, nothing is spawned and
/// nothing panics, also when the runtime is going down; what is not sent then expires. To know that
/// the lock is free, call [`release`](Self::release).
///
/// A guard whose validity is over no longer keeps other tasks of this process waiting, even if it still exists.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    /// `None` once the lock has been released.
    held: Option<Held>,
    validity: Arc<Validity>,
    keeper: Option<AbortHandle>,
    runtime: Handle,
}

struct Held {
    core: Core,
    lease: Lease<Arc<[u8]>>,
}

/// The one validity of the lease: the guard, its extensions and the task that keeps it alive share it.
struct Validity {
    key: Arc<[u8]>,
    token: Token,
    fence: Option<Fence>,
    /// Its end is the end of the validity.
    turn: Turn,
    rounds: Rounds,
    ending: Mutex<Ending>,
    lost: Notify,
}

/// Why the lock is lost, or would be if the validity ended now.
#[derive(Default)]
struct Ending {
    /// Known once the lock is lost.
    cause: Option<LossCause>,
    /// Why the keeper could not extend the lease since it was extended the last time.
    failed: Option<Report>,
    /// Whether the keeper extends it no more.
    is_spent: bool,
    /// Whether the keeper waits for others to be extended.
    is_in_line: bool,
}

impl Guard {
    pub(crate) fn new(
        core: Core,
        lease: Lease<Arc<[u8]>>,
        turn: Turn,
        rounds: Rounds,
        runtime: Handle,
    ) -> Self {
        turn.hold(lease.valid_until());
        let validity = Arc::new(Validity {
            key: Arc::clone(lease.key()),
            token: *lease.token(),
            fence: lease.fence(),
            turn,
            rounds,
            ending: Mutex::default(),
            lost: Notify::new(),
        });
        Self {
            held: Some(Held { core, lease }),
            validity,
            keeper: None,
            runtime,
        }
    }

    /// The key that is locked, with the prefix if there is one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.validity.key
    }

    /// The token under the key, the same on every node. Who knows it can release the lock.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.validity.token
    }

    /// The fencing token, higher than that of every lease on the key before; none for a plain lock, see
    /// [`Options::fenced`](crate::Options::fenced).
    ///
    /// Hand it to the resource with everything you do there, and let the resource refuse what carries a
    /// lower one than it has seen: see [`FenceGate`](crate::FenceGate).
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.validity.fence
    }

    /// The instant of [`SystemClock`] from which on the lock may be another's. Extensions move it.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.validity.until()
    }

    /// Whether the lock is held now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// What is left of the validity; zero if it is over or the lock is known to be lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.valid_until()
            .saturating_duration_since(SystemClock.now())
    }

    /// Lets the keys live for the TTL from now, and the lease with them. One round.
    ///
    /// If very many leases are extended at the moment, the round begins a little later: the lease that ends soonest is
    /// extended first. No acquire is waited for.
    ///
    /// May be called beside [`keep_alive`](Self::keep_alive): both move the same validity. An extension that is
    /// asked for here does not count for [`Options::max_extensions`](crate::Options::max_extensions).
    ///
    /// Dropping the future leaves the guard as it was; the extension may have taken effect on the
    /// nodes.
    ///
    /// # Errors
    ///
    /// After [`ExtendError::Unreachable`] the lease is as it was: try again while it is valid. After
    /// every other error the lock is lost: [`is_valid`](Self::is_valid) is false, [`lost`](Self::lost) returns at
    /// once, and the background extension has ended. [`ExtendError::NotAsked`] says that the round could not begin while
    /// the lease was valid.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        let Some(Held { core, lease }) = &mut self.held else {
            return Err(ExtendError::Expired);
        };
        loop {
            let until = self.validity.until();
            if SystemClock.now() >= until {
                self.validity.expire(until);
            }
            if self.validity.is_lost() {
                return Err(ExtendError::Expired);
            }
            lease.extended_elsewhere(self.validity.until());
            let node_timeout = core.options().round_time();
            let extended = match self.validity.admit(node_timeout).await {
                Some(round) => {
                    let extended = core.extend(lease).await;
                    match &extended {
                        Ok(()) => round.end(true, node_timeout),
                        Err(ExtendError::Unreachable(_)) => round.end(false, node_timeout),
                        Err(_) => {}
                    }
                    extended
                }
                None => Err(ExtendError::NotAsked {
                    nodes_answer: self.validity.rounds.nodes_answer(),
                }),
            };
            let (error, cause) = match extended {
                Ok(()) if self.validity.extended_until(lease.valid_until()) => return Ok(()),
                Ok(()) => return Err(ExtendError::Expired),
                Err(ExtendError::Lost(report)) => {
                    let cause = LossCause::Lost(report.clone());
                    (ExtendError::Lost(report), cause)
                }
                Err(error) if error.is_retryable() => return Err(error),
                // The extension in the background was in time.
                Err(_) if SystemClock.now() < self.validity.until() => continue,
                Err(ExtendError::NotAsked { nodes_answer }) => (
                    ExtendError::NotAsked { nodes_answer },
                    LossCause::NotAsked { nodes_answer },
                ),
                Err(error) => (error, LossCause::Expired),
            };
            self.validity.lose(cause);
            self.stop_keeping();
            return Err(error);
        }
    }

    /// Extends the lease in the background from now on, each time a third of its validity has passed,
    /// until the guard is dropped or released, the lock is lost, or
    /// [`Options::max_extensions`](crate::Options::max_extensions) are spent. Wait for
    /// [`lost`](Self::lost) beside the work to hear of it. The task runs on the runtime of
    /// [`Redlock::connect`](crate::Redlock::connect).
    ///
    /// Any number of guards may be kept, also if their extensions are due at one moment: as many are extended at once as
    /// the nodes answer in time, the lease that ends soonest first, and ahead of acquires. If there are more than the nodes
    /// extend within two thirds of the TTL, the others are lost, with [`LossCause::NotAsked`].
    pub fn keep_alive(&mut self) {
        if self.keeper.is_none()
            && let Some(keeping) = self.keeping()
        {
            self.keeper = Some(self.runtime.spawn(keeping).abort_handle());
        }
    }

    /// Waits until the lock is lost and returns the cause: as soon as an extension finds that a quorum of nodes no longer
    /// carries the token, and no later than the moment [`valid_until`](Self::valid_until) passes.
    ///
    /// Without [`keep_alive`](Self::keep_alive) that is the end of the validity, a millisecond early. The lock stays
    /// lost: [`is_valid`](Self::is_valid) is false from then on, and an extension that comes later does not count.
    /// Dropping the future does nothing.
    pub async fn lost(&self) -> LossCause {
        self.validity.lost().await
    }

    /// Gives the lock back, and waits for a quorum of answers, at the longest for the node timeout.
    ///
    /// An expired or stolen lock is an answer, not an error. A node that cannot delete the key now (it is busy, or
    /// a replica for the moment) is asked again until it can or the key must have expired. Dropping the future does
    /// not cancel the release.
    pub async fn release(mut self) -> Released {
        self.stop_keeping();
        let Some(Held { mut core, lease }) = self.held.take() else {
            unreachable!("a guard is released once, since release consumes it");
        };
        let mut release = std::pin::pin!(core.release(lease));
        // The first poll hands the release to every node. The next task in the queue may send now: its acquire
        // goes out right behind it.
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(release.as_mut().poll(context)))
                .await;
        self.validity.turn.end();
        match first {
            std::task::Poll::Ready(released) => released,
            std::task::Poll::Pending => release.await,
        }
    }

    /// Extends the lease until it is lost, and makes known what comes of it.
    pub(crate) fn keeping(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let held = self.held.as_ref()?;
        let mut core = held.core.fork(SystemEntropy);
        let mut lease = held.lease.clone();
        let validity = Arc::clone(&self.validity);
        Some(async move {
            let update = |lease: &mut Lease<_>| lease.extended_elsewhere(validity.until());
            let mut left = core.options().extensions();
            let node_timeout = core.options().round_time();
            validity.kept(left);
            let admit = |_| async {
                validity.lock().is_in_line = true;
                let round = validity.admit(node_timeout).await;
                validity.lock().is_in_line = false;
                round
            };
            let tried = |round: Option<Round<'_>>, result: Result<&Lease<_>, &Report>| {
                if let Some(round) = round {
                    round.end(result.is_ok(), node_timeout);
                }
                match result {
                    Ok(lease) => {
                        left = left.map(|left| left.saturating_sub(1));
                        validity.extended_until(lease.valid_until());
                        validity.kept(left);
                    }
                    Err(report) => validity.failed(report),
                }
            };
            tokio::select! {
                biased;
                // Before the core can know: its timer may be a tick late.
                _cause = validity.lost() => {}
                cause = core.keep_shared(&mut lease, update, admit, tried) => validity.lose(cause),
            }
        })
    }

    pub(crate) fn loss(&self) -> Option<LossCause> {
        self.validity.cause()
    }

    fn stop_keeping(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop_keeping();
        if let Some(Held { core, lease }) = self.held.take() {
            for node in core.nodes() {
                node.release_unattended(&lease.release_command());
            }
        }
        // Behind the releases. A task that keeps the lease alive may know the validity for a moment longer.
        self.validity.turn.end();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &redlock_core::KeyName::new(self.key()))
            .field("token", self.token())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Validity {
    fn until(&self) -> Instant {
        self.turn.until()
    }

    /// Waits until an extension may begin; `None` if it may not before the validity is over.
    async fn admit(&self, node_timeout: Duration) -> Option<Round<'_>> {
        // A fenced lock may need a second round.
        let longest = node_timeout * 2;
        self.rounds.admit_extension(self.until(), longest).await
    }

    /// Moves the end later; `false` if the lock is lost already.
    fn extended_until(&self, until: Instant) -> bool {
        let mut ending = self.lock();
        if ending.cause.is_some() {
            return false;
        }
        ending.failed = None;
        self.turn.extend(until);
        true
    }

    /// How many extensions the keeper has left.
    fn kept(&self, left: Option<u32>) {
        self.lock().is_spent = left == Some(0);
    }

    /// The keeper could not extend the lease.
    fn failed(&self, report: &Report) {
        self.lock().failed = Some(report.clone());
    }

    fn is_lost(&self) -> bool {
        self.lock().cause.is_some()
    }

    fn cause(&self) -> Option<LossCause> {
        self.lock().cause.clone()
    }

    /// Waits until the lock is lost, and ends the validity a tick early if that is why: a timer may be a tick late.
    async fn lost(&self) -> LossCause {
        loop {
            // Listens from here on, so that a loss between the look and the wait is not missed.
            let mut lost = std::pin::pin!(self.lost.notified());
            lost.as_mut().enable();
            if let Some(cause) = self.cause() {
                return cause;
            }
            let until = self.until();
            let over = until.saturating_sub(SystemClock.resolution());
            if SystemClock.now() >= over {
                self.expire(until);
                continue;
            }
            tokio::select! {
                () = &mut lost => {}
                () = SystemClock.sleep_until(over) => {}
            }
        }
    }

    /// Ends the validity, unless it has been extended beyond `until`.
    fn expire(&self, until: Instant) {
        let ending = self.lock();
        if self.until() <= until {
            let cause = match &ending.failed {
                Some(report) => LossCause::Unreachable(report.clone()),
                None if ending.is_spent => LossCause::ExtensionsSpent,
                None if ending.is_in_line => LossCause::NotAsked {
                    nodes_answer: self.rounds.nodes_answer(),
                },
                None => LossCause::Expired,
            };
            self.end(ending, cause);
        }
    }

    /// Ends the validity.
    fn lose(&self, cause: LossCause) {
        self.end(self.lock(), cause);
    }

    /// Ends the validity now, for the guard, the keeper and the tasks that wait for the turn. The first cause
    /// stays.
    fn end(&self, mut ending: MutexGuard<'_, Ending>, cause: LossCause) {
        ending.cause.get_or_insert(cause);
        self.turn.expire();
        drop(ending);
        self.turn.end();
        self.lost.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
