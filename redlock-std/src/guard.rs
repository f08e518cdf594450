//! The guard of a held lock.

mod keeper;

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Fence, HoldEnd, Instant, Lease, Token, Transport};
use tokio::runtime::Handle;

use crate::core::Core;
use crate::entropy::SystemEntropy;
use crate::error::{ExtendError, LossCause, Released, Report};
use crate::handover::Handover;
use crate::key_queues::Turn;
use crate::lines::Lines;
use crate::lock_clock::LockClock;
use crate::node::Stop;
use crate::rounds::{Round, Rounds};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::telemetry::HoldScope;
use keeper::Keeper;

/// A held lock, valid until [`valid_until`](Self::valid_until).
///
/// Dropping the guard releases the lock in the background: `drop` queues the release for every node before it returns,
/// and the task of each node sends it. `drop` does not block, spawn or panic, even while the runtime shuts down. If a
/// release is not sent because of the shutdown, the key expires. To know that the lock is free, call
/// [`release`](Self::release).
///
/// A guard whose validity is over no longer keeps other tasks of this process waiting, even if it still exists.
#[must_use = "the lock is released when the guard is dropped: bind it with `let _guard = ..`, because `let _ = ..` drops it at once"]
pub struct Guard {
    /// `None` once the lock has been released.
    held: Option<Held>,
    validity: Arc<Validity>,
    keeper: Option<Keeper>,
    effort: Effort,
    lines: Arc<Lines>,
    runtime: Handle,
}

/// What it took to acquire the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) since: Instant,
    pub(crate) waited: Duration,
    pub(crate) attempts: u32,
}

/// What a guard shares with its handle.
pub(crate) struct Shared {
    pub(crate) rounds: Rounds,
    pub(crate) lines: Arc<Lines>,
    pub(crate) runtime: Handle,
}

/// The lease, and the state machine for its operations.
pub(crate) struct Held {
    /// Boxed, because it is large, and a guard is moved from future to future.
    core: Box<Core>,
    lease: Lease<Arc<[u8]>>,
}

/// The validity of the lease, shared by the guard, its extensions and the keeper.
struct Validity {
    key: Arc<[u8]>,
    token: Token,
    fence: Option<Fence>,
    /// The turn ends with the validity.
    turn: Turn,
    /// Whether the lease was adopted, and so may be adopted once more when its validity is over.
    is_adopted: AtomicBool,
    rounds: Rounds,
    scope: HoldScope,
    ending: Mutex<Ending>,
    lost: Notify,
}

/// Why the lock is lost, or the data from which the cause follows if the validity ends now. Boxed where it is large and rare.
#[derive(Default)]
struct Ending {
    /// `Some` once the lock is lost.
    cause: Option<Box<LossCause>>,
    /// The last failure of the keeper since the last extension.
    failed: Option<Box<Report>>,
    /// Whether the keeper has no extensions left.
    is_spent: bool,
    /// Whether the keeper waits for its round.
    is_in_line: bool,
}

impl Guard {
    pub(crate) fn new(
        core: Box<Core>,
        lease: Lease<Arc<[u8]>>,
        turn: Turn,
        effort: Effort,
        scope: HoldScope,
        shared: Shared,
    ) -> Self {
        let Shared {
            rounds,
            lines,
            runtime,
        } = shared;
        turn.hold(lease.valid_until());
        let validity = Arc::new(Validity {
            key: Arc::clone(lease.key()),
            token: *lease.token(),
            fence: lease.fence(),
            turn,
            is_adopted: AtomicBool::new(false),
            rounds,
            scope,
            ending: Mutex::default(),
            lost: Notify::new(),
        });
        Self {
            held: Some(Held { core, lease }),
            validity,
            keeper: None,
            effort,
            lines,
            runtime,
        }
    }

    /// The same guard, of a lease that was adopted.
    pub(crate) fn adopted(self) -> Self {
        self.validity.is_adopted.store(true, Ordering::Relaxed);
        self
    }

    /// Whether a release could be that of another guard with the same token, which has adopted the lease since. If not, no other
    /// guard adopts it before this one ends its turn.
    fn may_be_of_another(&self) -> bool {
        self.validity.is_adopted.load(Ordering::Relaxed) && !self.validity.turn.outlast()
    }

    /// Returns the locked key, with the prefix if there is one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.validity.key
    }

    /// Returns the token: the value of the key on every node. Any client that knows the token can release the lock.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.validity.token
    }

    /// Returns how long the acquire of this lock took: in the queue, in the line and in its rounds.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.effort.waited
    }

    /// Returns how many times this acquire has asked the nodes: 1 if the lock was free. One attempt of a fenced lock takes up to three
    /// rounds.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.effort.attempts
    }

    /// Returns the names of the nodes that had granted the lock when its acquire returned: at least a quorum. The acquire does not wait
    /// for the others, which may have granted it a moment later. Empty if the lease was adopted.
    #[must_use]
    pub fn granted_by(&self) -> Vec<Arc<str>> {
        let nodes = self.held.iter().flat_map(|held| held.core.nodes());
        nodes
            .filter(|node| node.has_granted(&self.validity.token))
            .map(Transport::name)
            .collect()
    }

    /// Returns the fencing token, which is higher than that of every earlier lease on the key, or `None` if the lock is
    /// plain. See [`Options::fenced`](crate::Options::fenced).
    ///
    /// Send the fence to the resource with every action. The resource must refuse an action with a lower fence than the
    /// highest that it has seen: see [`FenceGate`](crate::FenceGate).
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.validity.fence
    }

    /// Returns the end of the validity on [`SystemClock`](crate::SystemClock). From then on another client may hold the lock. Extensions
    /// move this end.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.validity.until()
    }

    /// Returns whether the lock is held now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns the rest of the validity, or zero if it is over or the lock is known to be lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.valid_until()
            .saturating_duration_since(self.validity.clock().now())
    }

    /// Extends the lease: its keys expire one TTL from now. This takes one round, or up to two for a fenced lock.
    ///
    /// If very many leases are extended at the moment, the round begins a little later: the lease that ends soonest is
    /// extended first. Extensions do not wait for acquires.
    ///
    /// You can call this while [`keep_alive`](Self::keep_alive) is on: both move the end of the same validity. An
    /// extension by this method does not count towards [`Options::max_extensions`](crate::Options::max_extensions).
    ///
    /// Dropping the future leaves the guard unchanged. The extension may have taken effect on the nodes.
    ///
    /// # Errors
    ///
    /// After [`ExtendError::Unreachable`] the lease is unchanged: retry while it is valid. After every other error the
    /// lock is lost: [`is_valid`](Self::is_valid) is false, [`lost`](Self::lost) returns at once, and the extensions of
    /// [`keep_alive`](Self::keep_alive) have ended. [`ExtendError::NotAsked`] means that the round could not begin while
    /// the lease was valid.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        let Some(held) = &mut self.held else {
            return Err(self.validity.not_extended(ExtendError::Expired));
        };
        let extended = self.validity.extend(held).await;
        self.stop_keeping_if_lost();
        extended
    }

    /// Like [`extend`](Self::extend), as a future that another thread can poll. Until [`end_extension`](Self::end_extension), the
    /// guard has no lease to release: if the future is dropped before its end, the keys expire.
    #[cfg(feature = "blocking")]
    pub(crate) fn begin_extension(
        &mut self,
    ) -> Option<impl Future<Output = (Held, Result<(), ExtendError>)> + Send + use<>> {
        let mut held = self.held.take()?;
        let validity = Arc::clone(&self.validity);
        Some(async move {
            let extended = validity.extend(&mut held).await;
            (held, extended)
        })
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn end_extension(&mut self, held: Held) {
        self.held = Some(held);
        self.stop_keeping_if_lost();
    }

    fn stop_keeping_if_lost(&mut self) {
        if self.validity.is_lost() {
            self.stop_keeping();
        }
    }

    /// Extends the lease in the background from now on, each time a third of its validity has passed.
    ///
    /// The extensions end when the guard is dropped or released, when the lock is lost, or when
    /// [`Options::max_extensions`](crate::Options::max_extensions) are spent. Await [`lost`](Self::lost) beside the work
    /// to learn that the lock is lost. The task that extends runs on the runtime of
    /// [`Redlock::connect`](crate::Redlock::connect).
    ///
    /// Any number of guards can be kept alive, even if all their extensions are due at the same moment. The number of
    /// extensions in flight is limited to what the nodes answer in time. The lease that ends soonest is extended first,
    /// and extensions go ahead of acquires. If the nodes cannot extend all leases within two thirds of the TTL, the
    /// leases that are not extended by then are lost, with [`LossCause::NotAsked`]. An [`extend`](Self::extend) that
    /// has begun but is not polled counts as in flight for two node timeouts.
    pub fn keep_alive(&mut self) {
        if self.keeper.is_none() {
            let stop = Stop::new();
            if let Some(keeping) = self.keeping(Some(&stop)) {
                self.keeper = Some(Keeper::spawn(&self.runtime, keeping, stop));
            }
        }
    }

    /// Waits until the lock is lost, and returns the cause.
    ///
    /// This returns as soon as an extension finds that the lock is lost, because no quorum of nodes can have the token
    /// any more. If the lease is not extended, a timer ends one millisecond before [`valid_until`](Self::valid_until); the runtime may
    /// wake the task a few milliseconds late, and later if its threads are busy, but [`is_valid`](Self::is_valid) is exact. The lock
    /// stays lost: `is_valid` is false from then on, and a later extension does not count. Dropping the future has no effect.
    pub async fn lost(&self) -> LossCause {
        self.validity.lost().await
    }

    /// Releases the lock, and waits for a quorum of answers, at most for the node timeout, or for two if the lock is fenced and has a
    /// [`min_hold`](crate::Options::min_hold). If no quorum can answer, for example because nodes are down, it waits for those that can.
    ///
    /// It is no error if the lease has expired or a key carries another token: the result tells the outcome of each
    /// node. If a node cannot delete the key now, because it is busy or temporarily a replica, the release is retried
    /// until it succeeds or the key must have expired. A node that hangs gets it when it is back, within a quarter of an hour. Dropping the future does not cancel the release.
    ///
    /// If the lease was [adopted](crate::Redlock::adopt) and its validity is over, no node is asked: the keys expire.
    pub async fn release(mut self) -> Released {
        self.stop_keeping();
        self.end_lease(HoldEnd::Released);
        let Some(Held { mut core, lease }) = self.held.take() else {
            // An extension of the blocking API has taken it, and its thread has ended: the keys expire.
            return Released::without_asking(&self.validity.key, 0);
        };
        if self.may_be_of_another() {
            return Released::without_asking(lease.key(), core.nodes().count());
        }
        let farewell = core.release_command(&lease);
        if !farewell.is_release() {
            // With `min_hold`. A release is sent until it succeeds; an extension of the core is not.
            for node in core.nodes() {
                node.release_unattended(&farewell);
            }
        }
        let trace = self.validity.scope.trace_release();
        let mut release = pin!(trace.run(core.release(lease)));
        // The first poll queues the release for every node. So the next task in the queue may send now: its acquire is
        // sent after the release.
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(release.as_mut().poll(context)))
                .await;
        self.validity.turn.end();
        match first {
            std::task::Poll::Ready(released) => released,
            std::task::Poll::Pending => release.await,
        }
    }

    /// Like [`release`](Self::release), but frees the lock even if [`Options::min_hold`](crate::Options::min_hold) is not over: for a
    /// job that has failed and should be tried again.
    pub async fn release_now(mut self) -> Released {
        self.end_min_hold();
        self.release().await
    }

    /// Lets a release free the lock even if [`Options::min_hold`](crate::Options::min_hold) is not over.
    pub(crate) fn end_min_hold(&mut self) {
        if let Some(held) = &mut self.held {
            held.lease.end_min_hold();
        }
    }

    /// What another process needs to [adopt](crate::Redlock::adopt) the lease, once this guard [is handed over](Self::hand_over). Until
    /// then, the guard can still release the lock.
    #[cfg(feature = "probe")]
    #[must_use]
    pub fn handover(&self) -> Handover {
        self.of_lease()
    }

    fn of_lease(&self) -> Handover {
        let ttl = self.held.as_ref().map(|held| held.core.options().ttl());
        Handover {
            key: Arc::clone(&self.validity.key),
            token: self.validity.token,
            fence: self.validity.fence,
            ttl: ttl.unwrap_or_default(),
        }
    }

    /// Leaves the lock on the nodes, for another process to [adopt](crate::Redlock::adopt). Nothing more is sent: the keys expire one
    /// TTL after the grant or the last extension that was sent before. What is on its way to a slow node still arrives: it may set
    /// the key there after the other process has released the lock. This node then refuses the lock for one TTL.
    /// [`Options::min_hold`](crate::Options::min_hold) does not go with the lease.
    #[must_use = "the lock stays held until its TTL is over"]
    pub fn hand_over(mut self) -> Handover {
        self.stop_keeping();
        let handover = self.of_lease();
        // Without it, the drop releases nothing.
        drop(self.held.take());
        self.end_lease(HoldEnd::HandedOver);
        self.validity.turn.end();
        handover
    }

    /// Extends the lease until it is lost, and updates the shared validity. Another task can stop it.
    pub(crate) fn keeping(
        &self,
        stop: Option<&Stop>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let held = self.held.as_ref()?;
        let mut core = held.core.fork(SystemEntropy);
        for node in core.nodes_mut() {
            node.set_stop(stop);
        }
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
                        validity.scope.extended();
                    }
                    Err(report) => {
                        validity.failed(report);
                        validity.scope.unreachable();
                    }
                }
            };
            tokio::select! {
                biased;
                // This ends before the core can end: the timer of the core may be a tick late.
                _cause = validity.lost() => {}
                cause = core.keep_shared(&mut lease, update, admit, tried) => {
                    validity.scope.kept_in_vain(&cause);
                    validity.lose(cause);
                }
            }
        })
    }

    pub(crate) fn loss(&self) -> Option<LossCause> {
        self.validity.cause()
    }

    /// Like [`lost`](Self::lost), as a future that another thread can poll.
    #[cfg(feature = "blocking")]
    pub(crate) fn losing(&self) -> impl Future<Output = LossCause> + Send + use<> {
        let validity = Arc::clone(&self.validity);
        async move { validity.lost().await }
    }

    fn stop_keeping(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop();
        }
    }

    /// Records that the lease ends like this, before the turn ends.
    fn end_lease(&self, end: HoldEnd) {
        self.validity.leave(end);
        self.lines.lease_ends(&self.validity.key, self.effort.since);
    }
}

/// An extension in progress. If it is dropped before its end, its round counts until its commands have left the queues
/// of a majority of the nodes.
struct Extension<'a, 'r> {
    core: &'a mut Core,
    /// `None` when the extension is over.
    round: Option<Round<'r>>,
}

impl Drop for Extension<'_, '_> {
    fn drop(&mut self) {
        if let Some(mut round) = self.round.take() {
            let nodes = self.core.nodes().cloned();
            let sent: Vec<_> = nodes.map(|node| (node.last_extend(), node)).collect();
            round.leave_behind(move || {
                let have_sent = sent
                    .iter()
                    .filter(|(last, node)| node.has_sent_extend(*last));
                have_sent.count() > sent.len() / 2
            });
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop_keeping();
        if let Some(Held { core, lease }) = self.held.take() {
            self.end_lease(HoldEnd::Dropped);
            if !self.may_be_of_another() {
                let farewell = core.release_command(&lease);
                for node in core.nodes() {
                    node.release_unattended(&farewell);
                }
            }
        }
        // After the releases. The keeper may still have the validity for a moment.
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
    fn clock(&self) -> LockClock {
        self.turn.clock()
    }

    fn until(&self) -> Instant {
        self.turn.until()
    }

    /// Extends the lease, and moves the end of the validity or ends it.
    async fn extend(&self, held: &mut Held) -> Result<(), ExtendError> {
        let extended = self.extend_once(held).await;
        extended.map_err(|error| self.not_extended(error))
    }

    /// Records this error of an extension.
    fn not_extended(&self, error: ExtendError) -> ExtendError {
        self.scope.not_extended(&error);
        error
    }

    async fn extend_once(&self, Held { core, lease }: &mut Held) -> Result<(), ExtendError> {
        loop {
            let until = self.until();
            if self.clock().now() >= until {
                self.expire(until);
            }
            if self.is_lost() {
                return Err(ExtendError::Expired);
            }
            lease.extended_elsewhere(self.until());
            let node_timeout = core.options().round_time();
            let extended = match self.admit(node_timeout).await {
                Some(round) => {
                    let mut extension = Extension {
                        core,
                        round: Some(round),
                    };
                    let trace = self.scope.trace_extension();
                    let extended = trace.run(extension.core.extend(lease)).await;
                    let Some(round) = extension.round.take() else {
                        continue;
                    };
                    match &extended {
                        Ok(()) => round.end(true, node_timeout),
                        Err(ExtendError::Unreachable(_)) => round.end(false, node_timeout),
                        Err(_) => {}
                    }
                    extended
                }
                None => Err(ExtendError::NotAsked {
                    nodes_answer: self.rounds.nodes_answer(),
                }),
            };
            let (error, cause) = match extended {
                Ok(()) if self.extended_until(lease.valid_until()) => return Ok(()),
                Ok(()) => return Err(ExtendError::Expired),
                Err(ExtendError::Lost(report)) => {
                    let cause = LossCause::Lost(report.clone());
                    (ExtendError::Lost(report), cause)
                }
                Err(error) if error.is_retryable() => {
                    if let ExtendError::Unreachable(report) = &error {
                        self.failed(report);
                    }
                    return Err(error);
                }
                // The keeper has extended the lease meanwhile.
                Err(_) if self.clock().now() < self.until() => continue,
                Err(ExtendError::NotAsked { nodes_answer }) => (
                    ExtendError::NotAsked { nodes_answer },
                    LossCause::NotAsked { nodes_answer },
                ),
                Err(error) => (error, LossCause::Expired),
            };
            self.lose(cause);
            return Err(error);
        }
    }

    /// Waits until an extension may begin. Returns `None` if the validity ends before that.
    async fn admit(&self, node_timeout: Duration) -> Option<Round<'_>> {
        // A fenced lock may need a second round.
        let longest = node_timeout * 2;
        self.rounds.admit_extension(self.until(), longest).await
    }

    /// Moves the end later. Returns `false` if the lock is already lost, or if another task may have adopted the lease since.
    fn extended_until(&self, until: Instant) -> bool {
        let mut ending = self.lock();
        if ending.cause.is_some() {
            return false;
        }
        if !self.is_adopted.load(Ordering::Relaxed) {
            self.turn.extend(until);
        } else if !self.turn.extend_if_not_passed_on(until) {
            // Another task has the turn. It may have adopted the lease: then the extension is that of its guard.
            self.end(ending, LossCause::Expired);
            return false;
        }
        ending.failed = None;
        true
    }

    /// Records how many extensions the keeper has left.
    fn kept(&self, left: Option<u32>) {
        self.lock().is_spent = left == Some(0);
    }

    /// Records that the lease could not be extended.
    fn failed(&self, report: &Report) {
        self.lock().failed = Some(Box::new(report.clone()));
    }

    fn is_lost(&self) -> bool {
        self.lock().cause.is_some()
    }

    fn cause(&self) -> Option<LossCause> {
        self.lock().cause.as_deref().cloned()
    }

    /// Waits until the lock is lost. If the validity ends, this ends it a tick early, because a timer may be a tick late.
    async fn lost(&self) -> LossCause {
        loop {
            // Registers before the check, so that a loss between check and wait is not missed.
            let mut lost = std::pin::pin!(self.lost.notified());
            lost.as_mut().enable();
            if let Some(cause) = self.cause() {
                return cause;
            }
            let until = self.until();
            let over = until.saturating_sub(self.clock().resolution());
            if self.clock().now() >= over {
                self.expire(until);
                continue;
            }
            let clock = self.clock();
            tokio::select! {
                biased;
                () = &mut lost => {}
                () = clock.sleep_until(over) => {}
            }
        }
    }

    /// Ends the validity, unless it has been extended beyond `until`.
    fn expire(&self, until: Instant) {
        let ending = self.lock();
        if self.until() <= until {
            let cause = match &ending.failed {
                Some(report) => LossCause::Unreachable(Report::clone(report)),
                None if ending.is_spent => LossCause::ExtensionsSpent,
                None if ending.is_in_line => LossCause::NotAsked {
                    nodes_answer: self.rounds.nodes_answer(),
                },
                None => LossCause::Expired,
            };
            self.end(ending, cause);
        }
    }

    /// Reports that the guard ends like this, unless the validity was over before.
    fn leave(&self, end: HoldEnd) {
        let is_over = self.clock().now() >= self.until();
        self.scope.end(if is_over { HoldEnd::Expired } else { end });
    }

    /// Ends the validity for this cause.
    fn lose(&self, cause: LossCause) {
        self.end(self.lock(), cause);
    }

    /// Ends the validity now, for the guard, the keeper and the tasks that wait for the turn. If there is a cause already,
    /// it stays.
    fn end(&self, mut ending: MutexGuard<'_, Ending>, cause: LossCause) {
        let cause = ending.cause.get_or_insert_with(|| Box::new(cause)).clone();
        self.turn.expire();
        drop(ending);
        self.turn.end_unless_outlasting();
        self.lost.notify_waiters();
        self.scope.lose(&cause);
    }

    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[cfg(redlock_loom)]
mod interleavings;
