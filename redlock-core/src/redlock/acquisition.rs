//! The operations that acquire the lock: one attempt, or attempts until one succeeds. What an attempt does is in `attempt.rs`.

use core::future::Future;

use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::lease::Lease;
use crate::observer::Observer;
use crate::options::part_of;
use crate::redlock::Redlock;
use crate::redlock::attempt::Learned;
use crate::redlock::observation::Observation;
use crate::redlock::waiting::Waiting;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

/// How many times an acquire retries at once after its first attempt, if the votes were split.
///
/// In 20,000 simulated trials with 3 to 8 clients on 3 and 5 nodes, a client won in 96.5 % with one retry, in 99.965 % with two
/// and in 99.98 % with three.
const SPLIT_RETRIES: u32 = 3;

/// No retry for a split vote starts later than this number of node timeouts after the beginning of the acquire.
const SPLIT_TIMEOUTS: u64 = 8;

/// The state of an acquire that has begun, for an adapter that decides itself when each attempt starts.
///
/// [`Redlock::acquire`] does the same as this loop:
///
/// ```
/// # use redlock_core::{AcquireError, Clock, Entropy, Lease, NodeErrorOf, Redlock, Transport};
/// # async fn acquire<T: Transport, C: Clock, E: Entropy, const N: usize>(
/// #     redlock: &mut Redlock<T, C, E, N>,
/// #     key: &'static str,
/// # ) -> Result<Lease<&'static str>, AcquireError<NodeErrorOf<T>, N>> {
/// let mut acquisition = redlock.begin();
/// loop {
///     let error = match redlock.attempt(&mut acquisition, key).await {
///         Ok(lease) => return Ok(lease),
///         Err(error) => error,
///     };
///     let Some(again_at) = redlock.again_at(&mut acquisition, &error) else {
///         return Err(error);
///     };
///     redlock.wait_for_turn(&mut acquisition, key, again_at).await;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Acquisition {
    begun_at: Instant,
    give_up_at: Instant,
    split_retries: u32,
    failed_attempts: u32,
    learned: Learned,
}

impl Acquisition {
    /// The same acquire, but with a wait that has begun earlier: at `since`, an instant of the same clock. Its place in the line
    /// of the lock is by this time. Changes neither the end of the wait nor its timeouts. Call it before the first attempt.
    #[must_use]
    pub const fn since(mut self, since: Instant) -> Self {
        self.learned.waiting.set_since(since);
        self
    }

    /// The same acquire, but it never stands in the waiting line of the lock: it retries after random delays. For an adapter that
    /// does other operations with the same client between the attempts, and so never calls [`Redlock::wait_for_turn`]. Call it
    /// before the first attempt.
    #[must_use]
    pub const fn outside_line(mut self) -> Self {
        self.learned.waiting.stay_outside();
        self
    }

    /// Whether the client stands in the waiting line of the lock, or will from its next attempt on.
    #[must_use]
    pub const fn is_in_line(&self) -> bool {
        self.learned.waiting.is_in_line()
    }

    /// Whether the nodes have called the client in this acquire, because it was the first in the waiting line of the lock.
    #[must_use]
    pub const fn was_called(&self) -> bool {
        self.learned.waiting.was_called()
    }
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Acquires the lock if it is free.
    ///
    /// Takes one round: all nodes get the command at once, and the round ends as soon as the missing votes cannot change its
    /// result, at the latest after the node timeout. A fenced lock takes up to two more rounds if a round is lost because of
    /// the proposed fence, or to restore guard records. A fenced round that is lost may also wait for more answers, up to its
    /// node timeout.
    ///
    /// Several clients that try at the same time may split the votes, so that none gets a quorum. So if some node granted the
    /// lock, but the round was lost because other nodes refused, this tries again, up to three times, after random delays.
    /// The longer the lost round took, the longer a delay can be. No retry starts later than eight node timeouts after the call.
    ///
    /// If an attempt fails, this cleans up before it returns or tries again: it tells every node that may have granted the lock
    /// to delete the key. It waits for the nodes that did grant it, for one node timeout at most.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] distinguishes a lock that another client holds from a quorum that was not reached. It has the outcome
    /// of each node in the last round.
    // No `async fn`, nor is `acquire`: a future in another takes more flash.
    pub fn try_acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> impl Future<Output = Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>>> {
        self.acquire_once_or_more(key, false)
    }

    /// Acquires the lock. If an attempt fails, retries after a random delay, until [`Options::wait`](crate::Options::wait) is
    /// over. If the votes of the first attempt were split, retries like [`try_acquire`](Self::try_acquire).
    ///
    /// With the feature `queue`, and transports that have a [mailbox](crate::Transport::mailbox), a client that is refused stands
    /// in the waiting line of the lock instead: who has waited longest is called when the lock is released. `docs/line.md`
    /// explains the line. Dropping the future leaves the line with the next operation.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last attempt.
    pub fn acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> impl Future<Output = Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>>> {
        self.acquire_once_or_more(key, true)
    }

    async fn acquire_once_or_more<K: AsRef<[u8]>>(
        &mut self,
        key: K,
        waits: bool,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        let mut acquisition = if waits {
            self.begin()
        } else {
            self.begin_once()
        };
        let mut observation =
            Observation::begin(&self.observer, key.as_ref(), acquisition.begun_at);
        self.send_abandoned_release().await;
        let last_error = loop {
            observation.tried();
            // In a block, so that the future has no room for the error during the wait and the next attempt.
            let again_at = {
                let attempt = self.attempt_once(key.as_ref(), &mut acquisition.learned);
                let error = match attempt.await {
                    Ok(grant) => {
                        observation.end::<MAX>(key.as_ref(), None, &self.clock);
                        return Ok(self.lease(key, grant));
                    }
                    Err(error) => error,
                };
                match self.again_at(&mut acquisition, &error) {
                    Some(again_at) => again_at,
                    None => break error,
                }
            };
            self.wait_until(&mut acquisition.learned.waiting, key.as_ref(), again_at)
                .await;
            observation.waited(acquisition.was_called(), &self.clock);
        };
        // An attempt that was cleaned up after the end of the wait, or could not begin, has not left the line.
        // Left out without lines: a wait that is never reached would still be in flash.
        #[cfg(any(feature = "queue", feature = "mock"))]
        if acquisition.is_in_line() {
            self.send_abandoned_release().await;
        }
        observation.end(key.as_ref(), Some(&last_error), &self.clock);
        Err(last_error)
    }

    /// Begins an acquire: [`Options::wait`](crate::Options::wait) is counted from this call on. Sends nothing.
    pub fn begin(&self) -> Acquisition {
        let once = self.begin_once();
        let give_up_at = once.begun_at.plus_micros(self.options.wait_micros());
        Acquisition {
            give_up_at,
            learned: Learned::nothing(Waiting::new(once.begun_at, give_up_at)),
            ..once
        }
    }

    /// Begins an acquire that does not wait, whatever [`Options::wait`](crate::Options::wait) is: that of
    /// [`try_acquire`](Self::try_acquire). Sends nothing.
    pub fn begin_once(&self) -> Acquisition {
        let begun_at = self.clock.now();
        Acquisition {
            begun_at,
            give_up_at: begun_at,
            split_retries: 0,
            failed_attempts: 0,
            learned: Learned::nothing(Waiting::new(begun_at, begun_at)),
        }
    }

    /// Makes the next attempt of an acquire: what [`try_acquire`](Self::try_acquire) does before it tries again. Uses what the
    /// earlier attempts have learned. All attempts of an acquire must be for the same key.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    pub async fn attempt<K: AsRef<[u8]>>(
        &mut self,
        acquisition: &mut Acquisition,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        // What the last attempt of this acquire has left keeps its place in the line.
        if !acquisition.is_in_line() {
            self.send_abandoned_release().await;
        }
        let grant = self
            .attempt_once(key.as_ref(), &mut acquisition.learned)
            .await?;
        Ok(self.lease(key, grant))
    }

    /// Makes the next attempt of `acquisition` stand in the waiting line of the lock, also if the lock is free. For an adapter
    /// that knows that other clients wait for the lock. Returns `false` if the client cannot stand in a line: without the
    /// feature `queue`, with [`Options::queue`](crate::Options) off, or if one of the transports has no
    /// [mailbox](crate::Transport::mailbox).
    pub fn join_line(&self, acquisition: &mut Acquisition) -> bool {
        self.join(&mut acquisition.learned.waiting)
    }

    /// Waits until it is time for the next attempt: until `again_at`, or until the nodes call this client. `again_at` is from
    /// [`again_at`](Self::again_at), or earlier.
    ///
    /// If the future is dropped, it may be called again. If the acquire ends then, the adapter sends
    /// [`abandoned_release`](Self::abandoned_release), or leaves it to the next operation.
    pub async fn wait_for_turn<K: AsRef<[u8]>>(
        &mut self,
        acquisition: &mut Acquisition,
        key: K,
        again_at: Instant,
    ) {
        self.wait_until(&mut acquisition.learned.waiting, key.as_ref(), again_at)
            .await;
    }

    /// Returns when to start the next attempt, if the last one failed with `error`: after a random delay, but no later than the
    /// end of the wait. `None` if there must be no further attempt: the wait is over, or a retry would fail too.
    ///
    /// If the last attempt was refused and the client can stand in the line of the lock, the next attempt stands in it and starts
    /// at once. From then on, this is when to look at the lock if the nodes do not call the client before: wait with
    /// [`wait_for_turn`](Self::wait_for_turn).
    ///
    /// If the votes of the first attempt were split, up to three retries follow also after the wait is over, see
    /// [`try_acquire`](Self::try_acquire).
    pub fn again_at(
        &mut self,
        acquisition: &mut Acquisition,
        error: &AcquireError<NodeErrorOf<T>, MAX>,
    ) -> Option<Instant> {
        // Without a report (no entropy, a reserved key), a retry would fail too.
        error.report()?;
        let now = self.clock.now();
        if let Some(again_at) = self.again_in_line(&mut acquisition.learned.waiting, error, now) {
            return again_at;
        }
        let is_first = acquisition.failed_attempts == 0;
        if is_first && acquisition.split_retries < SPLIT_RETRIES && error.is_split() {
            let again_at = now.plus_micros(self.split_delay_micros(acquisition));
            let latest = self.options.round_micros().saturating_mul(SPLIT_TIMEOUTS);
            if again_at <= acquisition.begun_at.plus_micros(latest) {
                acquisition.split_retries += 1;
                return Some(again_at);
            }
        }
        if now >= acquisition.give_up_at {
            return None;
        }
        acquisition.failed_attempts = acquisition.failed_attempts.saturating_add(1);
        let delay = self.retry_delay_micros(acquisition.failed_attempts);
        Some(now.plus_micros(delay).min(acquisition.give_up_at))
    }

    /// A random delay of up to four times the time of the lost round, doubled with each retry. By then, the rounds of the
    /// other clients are over too, and the clients start so far apart that one of them gets a quorum.
    fn split_delay_micros(&mut self, acquisition: &Acquisition) -> u64 {
        // Of 32 bits, so that the product fits in 64: a round of more than an hour is no reason to wait longer.
        let round = u32::try_from(acquisition.learned.round_micros).unwrap_or(u32::MAX);
        let longest = u64::from(round.max(1_000)) << (2 + acquisition.split_retries);
        part_of(longest, self.random())
    }
}
