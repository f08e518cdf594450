//! One lock for several tasks.

mod turns;

use core::cell::RefCell;
use core::fmt;
use core::future::{pending, poll_fn};
use core::ops::{Deref, DerefMut};
use core::pin::pin;
use core::task::Poll;

use embassy_futures::select::{Either, select};
use embassy_sync::blocking_mutex::Mutex as BlockingMutex;
use embassy_sync::blocking_mutex::raw::RawMutex;
use embassy_sync::mutex::{Mutex, MutexGuard};
use heapless::Vec;
use redlock_core::{
    AcquireError, Acquisition, Clock, Entropy, ExtendError, HoldError, Lease, LossCause,
    NodeErrorOf, Observer, Redlock, Released, Transport,
};
#[cfg(feature = "observe")]
use redlock_core::{AcquireOutcome, HoldEnd, Wait};
use turns::Turns;

/// A [`Redlock`] for several tasks and several keys, over one set of sockets: each operation takes `&self`.
///
/// The operations take turns, one round or attempt at a time. No turn lasts while a task waits for a lock that is held, holds a
/// lease, or works. So two tasks hold two keys at once, and a task that waits keeps no other from anything.
///
/// A task waits for its turn for as long as the attempts of the tasks before it last: for each, usually a round trip, and at most a
/// few node timeouts. If many tasks share a lock, choose a node timeout that is short beside the validity of a lease.
///
/// # The order of turns
///
/// Tasks take turns in the order in which they asked, if at most eight wait at once. If more wait, the others look every 10 ms whether
/// one of the eight places is free. They get places about in the order in which they asked, and before tasks that ask later, so none
/// starves.
///
/// The tasks may run in executors of different priority, if the nodes are `Send` (see below). A task leaves a free turn to each task that asked earlier for 10 ms, then
/// passes those that have not taken it:
///
/// - A future that waits for its turn and is no longer polled delays the others by 10 ms, or by a tick if that is longer, once.
/// - A task whose executor is busy for longer than that may be passed. It goes first again when it is polled.
///
/// A task that has its turn keeps it until its attempt ends. So poll each future until it is ready, or drop it: if it is only kept, in
/// the middle of an attempt, the others wait until it is polled, and held leases expire.
///
/// A task of high priority waits for the turn of one of low priority. If the executor of high priority computes meanwhile, this turn
/// lasts longer.
///
/// `M` is `NoopRawMutex` if all tasks run in one executor, `CriticalSectionRawMutex` otherwise. The second needs nodes that are `Send`,
/// over a stream of your own: the sockets of embassy-net, `HostName` and the sessions of redlock-embassy-tls belong to one
/// executor, and with them the tasks of another one do not compile.
///
/// # Dropping a future
///
/// Every future may be dropped at any point. The next operation of any task releases what a dropped [`acquire`](Self::acquire),
/// [`try_acquire`](Self::try_acquire), [`hold`](Self::hold) or [`release`](Self::release) has left. To do this earlier, call
/// [`release_abandoned`](Self::release_abandoned). If several have left something, it waits for the releases of all but one, each for
/// a node timeout at most. If a key has more than 64 bytes, or more than four futures are dropped before the next operation, a key may
/// expire instead. On a node that has no connection, or does not answer within the node timeout, this is so for more than two futures.
///
/// A future that is dropped before its first poll has done nothing.
///
/// # The observer
///
/// The observer of the `Redlock` learns of the operations of all tasks. If a future is dropped that holds or releases a lease, it learns so at once
/// ([dropped](crate::HoldEnd::Dropped)).
///
/// # The waiting line
///
/// A shared lock stands in no waiting line: a client has one place per lock and must keep still in it. It retries after random
/// delays, and clients that stand in the line go first.
pub struct Shared<M: RawMutex, T, C, E, const MAX: usize, O = ()> {
    /// Only tried, never waited for: its queue has room for one task, and several would wake each other without end.
    redlock: Mutex<M, Redlock<T, C, E, MAX, O>>,
    turns: Turns<M>,
    orphans: BlockingMutex<M, RefCell<Vec<Lease<Key>, ORPHANS_MAX>>>,
    clock: C,
    #[cfg(feature = "observe")]
    observer: O,
}

/// A key, like those that `Redlock` still releases after a future was dropped.
type Key = Vec<u8, 64>;

/// How many leases of dropped futures are stored until the next turn.
const ORPHANS_MAX: usize = 4;

impl<M, T, C, E, const MAX: usize, O> Shared<M, T, C, E, MAX, O>
where
    M: RawMutex,
    T: Transport,
    C: Clock + Clone,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Creates a shared lock. Sends nothing.
    ///
    /// Call it in a function that is `#[inline(never)]`, and put the result into a static: it is as large as the `Redlock`.
    pub fn new(redlock: Redlock<T, C, E, MAX, O>) -> Self {
        let clock = redlock.clock().clone();
        Self {
            #[cfg(feature = "observe")]
            observer: redlock.observer().clone(),
            redlock: Mutex::new(redlock),
            turns: Turns::new(),
            orphans: BlockingMutex::new(RefCell::new(Vec::new())),
            clock,
        }
    }

    /// Acquires the lock if it is free, like [`Redlock::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::try_acquire`].
    pub async fn try_acquire<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        self.acquire_by(Redlock::begin_once, key).await
    }

    /// Acquires the lock. If an attempt fails, retries after a random delay, until
    /// [`Options::wait`](redlock_core::Options::wait) is over. The other tasks use the lock meanwhile.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last attempt.
    pub async fn acquire<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        self.acquire_by(Redlock::begin, key).await
    }

    async fn acquire_by<K: AsRef<[u8]>>(
        &self,
        begin: impl FnOnce(&Redlock<T, C, E, MAX, O>) -> Acquisition,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        #[cfg(feature = "observe")]
        let mut observation = Observation::begin(self, key.as_ref());
        let mut turn = self.turn().await;
        let mut acquisition = begin(&turn).outside_line();
        loop {
            #[cfg(feature = "observe")]
            observation.tried();
            let error = match turn.attempt(&mut acquisition, key.as_ref()).await {
                Ok(lease) => {
                    #[cfg(feature = "observe")]
                    observation.end(self, key.as_ref(), AcquireOutcome::Acquired);
                    return Ok(lease.with_key(()).with_key(key));
                }
                Err(error) => error,
            };
            let Some(again_at) = turn.again_at(&mut acquisition, &error) else {
                #[cfg(feature = "observe")]
                observation.end(self, key.as_ref(), AcquireOutcome::from(&error));
                return Err(error);
            };
            drop(turn);
            self.clock.sleep_until(again_at).await;
            turn = self.turn().await;
        }
    }

    /// Extends the lease, like [`Redlock::extend`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::extend`].
    pub async fn extend<K: AsRef<[u8]>>(
        &self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<NodeErrorOf<T>, MAX>> {
        self.turn().await.extend(lease).await
    }

    /// Releases the lock, like [`Redlock::release`].
    pub async fn release<K: AsRef<[u8]>>(&self, lease: Lease<K>) -> Released<NodeErrorOf<T>, MAX> {
        self.release_held(Held::new(self, &lease)).await
    }

    async fn release_held(
        &self,
        held: Held<'_, '_, M, T, C, E, MAX, O>,
    ) -> Released<NodeErrorOf<T>, MAX> {
        let mut turn = self.turn().await;
        // From its first poll on, the `Redlock` remembers the lease.
        let lease = held.into_lease();
        turn.release(lease).await
    }

    /// Acquires the lock, runs `work` and releases the lock, like [`Redlock::hold`]. The other tasks use the lock while the work
    /// runs. If one of them sets other options meanwhile, the limit of extensions does not change.
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::hold`].
    pub async fn hold<K: AsRef<[u8]>, R>(
        &self,
        key: K,
        work: impl AsyncFnOnce(&Lease<K>) -> R,
    ) -> Result<R, HoldError<NodeErrorOf<T>, MAX>> {
        let mut max_extensions = None;
        let begin = |redlock: &Redlock<T, C, E, MAX, O>| {
            max_extensions = redlock.options().extensions();
            redlock.begin()
        };
        let acquired = self.acquire_by(begin, key).await;
        let lease = acquired.map_err(HoldError::NotAcquired)?;
        let mut held = Held::new(self, &lease);
        held.is_working = true;
        // `keep` is polled before the work: if the lease has expired during a long pause, the work does not run any more.
        let keep = self.keep(&mut held.lease, max_extensions);
        let done = match select(keep, work(&lease)).await {
            Either::First(cause) => Err(HoldError::Lost(cause)),
            Either::Second(_) if !held.lease.is_valid(self.clock.now()) => {
                Err(HoldError::Lost(LossCause::Expired))
            }
            Either::Second(result) => Ok(result),
        };
        held.is_working = false;
        #[cfg(feature = "observe")]
        if let Err(HoldError::Lost(cause)) = &done {
            held.report(match cause {
                LossCause::Expired => HoldEnd::Expired,
                _ => HoldEnd::Lost,
            });
        }
        self.release_held(held).await;
        done
    }

    /// Extends the lease each time a third of its validity has passed, until it is lost. Returns the cause, no later than the
    /// validity ends. Like [`Redlock::keep`], but takes a turn for each extension. Whenever it waits for a turn, it also waits for the
    /// end of the validity: another task may keep its turn for longer.
    async fn keep(
        &self,
        lease: &mut Lease<&[u8]>,
        max_extensions: Option<u32>,
    ) -> LossCause<NodeErrorOf<T>, MAX> {
        let mut extensions_left = max_extensions;
        let mut failed = None;
        let mut failed_tries = 0_u32;
        let mut due = lease.extension_due(self.clock.resolution());
        loop {
            if extensions_left == Some(0) {
                due = lease.valid_until();
            }
            self.clock.sleep_until(due.min(lease.valid_until())).await;
            let expiry = self.clock.sleep_until(lease.valid_until());
            let mut turn = match select(expiry, self.turn()).await {
                Either::Second(turn) if lease.is_valid(self.clock.now()) => turn,
                _ => {
                    return match failed {
                        Some(report) => LossCause::Unreachable(report),
                        None if extensions_left == Some(0) => LossCause::ExtensionsSpent,
                        None => LossCause::Expired,
                    };
                }
            };
            match turn.extend(lease).await {
                Ok(()) => {
                    extensions_left = extensions_left.map(|left| left.saturating_sub(1));
                    failed = None;
                    failed_tries = 0;
                    due = lease.extension_due(self.clock.resolution());
                }
                Err(ExtendError::Unreachable(report)) => {
                    failed = Some(report);
                    failed_tries = failed_tries.saturating_add(1);
                    let delay = turn.retry_delay(failed_tries);
                    due = self.clock.now().saturating_add(delay);
                }
                Err(ExtendError::Lost(report)) => return LossCause::Lost(report),
                Err(_) => return LossCause::Expired,
            }
        }
    }

    /// Releases what dropped futures have left on the nodes, like [`Redlock::release_abandoned`].
    pub async fn release_abandoned(&self) {
        self.turn().await.release_abandoned().await;
    }

    /// Waits until no other task uses the lock, and keeps it from the others until the result is dropped. For what this type
    /// does not do itself: [`connect_all`](crate::connect_all), [`close_all`](crate::close_all), other options.
    ///
    /// Never hold it while you wait for a lock or hold a lease: no other task could release or extend meanwhile.
    pub async fn turn(&self) -> Turn<'_, M, T, C, E, MAX, O> {
        let mut turn = self.next_turn().await;
        while let Some(orphan) = change(&self.orphans, Vec::pop) {
            let mut release = pin!(turn.release(orphan));
            if change(&self.orphans, |orphans| !orphans.is_empty()) {
                // A node stores only two releases until they are answered.
                release.await;
            } else {
                // One poll sends the release to all nodes. The answers are not waited for.
                poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_ready())).await;
            }
        }
        turn
    }

    async fn next_turn(&self) -> Turn<'_, M, T, C, E, MAX, O> {
        let mut entrant = self.turns.enter();
        loop {
            let look_at = entrant.look_at();
            let asked = poll_fn(|cx| {
                let redlock = || self.redlock.try_lock().ok();
                match entrant.ask(cx.waker(), self.clock.now(), redlock) {
                    Some(redlock) => Poll::Ready(Some(redlock)),
                    None if entrant.look_at() == look_at => Poll::Pending,
                    // With another timer.
                    None => Poll::Ready(None),
                }
            });
            let timer = async {
                match look_at {
                    Some(look_at) => self.clock.sleep_until(look_at).await,
                    None => pending().await,
                }
            };
            if let Either::First(Some(redlock)) = select(asked, timer).await {
                return Turn {
                    redlock,
                    _wake: Wake(&self.turns),
                };
            }
        }
    }
}

/// The turn of a task. It ends when it is dropped.
pub struct Turn<'a, M: RawMutex, T, C, E, const MAX: usize, O = ()> {
    // Dropped first: who is woken finds the lock free.
    redlock: MutexGuard<'a, M, Redlock<T, C, E, MAX, O>>,
    _wake: Wake<'a, M>,
}

impl<M: RawMutex, T, C, E, const MAX: usize, O> Deref for Turn<'_, M, T, C, E, MAX, O> {
    type Target = Redlock<T, C, E, MAX, O>;

    fn deref(&self) -> &Self::Target {
        &self.redlock
    }
}

impl<M: RawMutex, T, C, E, const MAX: usize, O> DerefMut for Turn<'_, M, T, C, E, MAX, O> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.redlock
    }
}

/// What an acquire tells the observer. Its time includes the turns of other tasks.
#[cfg(feature = "observe")]
struct Observation<X, O: Observer<X>> {
    wait: Wait<X, O>,
    begun_at: redlock_core::Instant,
    tries: u32,
}

#[cfg(feature = "observe")]
impl<X, O: Observer<X>> Observation<X, O> {
    fn begin<M: RawMutex, T, C: Clock, E, const MAX: usize>(
        shared: &Shared<M, T, C, E, MAX, O>,
        key: &[u8],
    ) -> Self {
        Self {
            wait: Wait::begin(shared.observer.clone(), key),
            begun_at: shared.clock.now(),
            tries: 0,
        }
    }

    const fn tried(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    fn end<M: RawMutex, T, C: Clock, E, const MAX: usize>(
        &self,
        shared: &Shared<M, T, C, E, MAX, O>,
        key: &[u8],
        outcome: AcquireOutcome,
    ) {
        if O::OBSERVES {
            let took = shared.clock.now().saturating_duration_since(self.begun_at);
            let observer = self.wait.observer();
            observer.acquire_ended(key, outcome, took, self.tries);
        }
    }
}

/// Changes a value that tasks share. It is borrowed nowhere else while the mutex is locked, and so that the compiler need not know
/// this, there is no code for a panic.
fn change<M: RawMutex, V, R: Default>(
    shared: &BlockingMutex<M, RefCell<V>>,
    change: impl FnOnce(&mut V) -> R,
) -> R {
    shared.lock(|value| {
        let mut value = value.try_borrow_mut().ok();
        value.as_deref_mut().map(change).unwrap_or_default()
    })
}

/// Wakes the tasks that wait for their turn, when it is dropped.
struct Wake<'a, M: RawMutex>(&'a Turns<M>);

impl<M: RawMutex> Drop for Wake<'_, M> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// A lease that must be released. If it is dropped, the next turn does it.
struct Held<'s, 'k, M, T, C, E, const MAX: usize, O>
where
    M: RawMutex,
    T: Transport,
    C: Clock,
    O: Observer<NodeErrorOf<T>>,
{
    shared: &'s Shared<M, T, C, E, MAX, O>,
    lease: Lease<&'k [u8]>,
    /// If it is dropped now, its keys are deleted, even before `Options::min_hold` is over.
    is_working: bool,
    is_released: bool,
}

impl<'s, 'k, M, T, C, E, const MAX: usize, O> Held<'s, 'k, M, T, C, E, MAX, O>
where
    M: RawMutex,
    T: Transport,
    C: Clock,
    O: Observer<NodeErrorOf<T>>,
{
    fn new<K: AsRef<[u8]>>(shared: &'s Shared<M, T, C, E, MAX, O>, lease: &'k Lease<K>) -> Self {
        Self {
            shared,
            lease: lease.with_key(lease.key().as_ref()),
            is_working: false,
            is_released: false,
        }
    }

    /// The caller releases the lease.
    fn into_lease(mut self) -> Lease<&'k [u8]> {
        self.is_released = true;
        self.lease.with_key(*self.lease.key())
    }

    /// Reports how the lease ends, at its first end.
    #[cfg(feature = "observe")]
    fn report(&mut self, end: HoldEnd) {
        if O::OBSERVES
            && let Some(held) = self.lease.take_held_for(self.shared.clock.now())
        {
            self.shared.observer.hold_ended(self.lease.key(), end, held);
        }
    }
}

impl<M, T, C, E, const MAX: usize, O> Drop for Held<'_, '_, M, T, C, E, MAX, O>
where
    M: RawMutex,
    T: Transport,
    C: Clock,
    O: Observer<NodeErrorOf<T>>,
{
    fn drop(&mut self) {
        // Before the lease is stored: its release does not report it again.
        #[cfg(feature = "observe")]
        if O::OBSERVES && !self.is_released {
            let is_valid = self.lease.is_valid(self.shared.clock.now());
            self.report(match is_valid {
                true => HoldEnd::Dropped,
                false => HoldEnd::Expired,
            });
        }
        #[cfg(feature = "min-hold")]
        if self.is_working {
            self.lease.end_min_hold();
        }
        // A longer key, or one too many, expires.
        if !self.is_released
            && let Ok(key) = Key::from_slice(self.lease.key())
        {
            let orphan = self.lease.with_key(key);
            let _is_stored = change(&self.shared.orphans, |orphans| orphans.push(orphan).is_ok());
        }
    }
}

impl<M: RawMutex, T, C, E, const MAX: usize, O> fmt::Debug for Shared<M, T, C, E, MAX, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<M: RawMutex, T, C, E, const MAX: usize, O> fmt::Debug for Turn<'_, M, T, C, E, MAX, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}
