//! The operations that acquire the lock: one attempt, or attempts until one succeeds. What an attempt does is in `attempt.rs`.

use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::lease::Lease;
use crate::redlock::Redlock;
use crate::redlock::attempt::Learned;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

/// The state of an acquire that has begun, for an adapter that decides itself when each attempt starts.
///
/// [`Redlock::acquire`] does the same as this loop, which waits only for the delay between two attempts:
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
///     redlock.clock().sleep_until(again_at).await;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Acquisition {
    give_up_at: Instant,
    failed_attempts: u32,
    learned: Learned,
}

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Tries once to acquire the lock.
    ///
    /// Takes one round: all nodes get the command at once, and the round ends as soon as the missing votes cannot change its
    /// result, at the latest after the node timeout. A fenced lock takes up to two more rounds if a round is lost because of
    /// the proposed fence, or to restore guard records. A fenced round that is lost may also wait for more answers, up to its
    /// node timeout.
    ///
    /// If the lock is not acquired, this cleans up before it returns: it tells every node that may have granted the lock to
    /// delete the key. It waits for the nodes that did grant it, for one node timeout at most.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] distinguishes a lock that another client holds from a quorum that was not reached. It has the outcome
    /// of each node.
    pub async fn try_acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        self.send_abandoned_release().await;
        let mut learned = Learned::NOTHING;
        let grant = self.attempt_once(key.as_ref(), &mut learned).await?;
        Ok(self.lease(key, grant))
    }

    /// Acquires the lock. If an attempt fails, retries after a random delay, until [`Options::wait`](crate::Options::wait) is
    /// over.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last attempt.
    pub async fn acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        let mut acquisition = self.begin();
        self.send_abandoned_release().await;
        loop {
            let error = match self
                .attempt_once(key.as_ref(), &mut acquisition.learned)
                .await
            {
                Ok(grant) => return Ok(self.lease(key, grant)),
                Err(error) => error,
            };
            let Some(again_at) = self.again_at(&mut acquisition, &error) else {
                return Err(error);
            };
            self.clock.sleep_until(again_at).await;
        }
    }

    /// Begins an acquire: [`Options::wait`](crate::Options::wait) is counted from this call on. Sends nothing.
    pub fn begin(&self) -> Acquisition {
        Acquisition {
            give_up_at: self.clock.now().saturating_add(self.options.wait_time()),
            failed_attempts: 0,
            learned: Learned::NOTHING,
        }
    }

    /// Makes the next attempt of an acquire. Like [`try_acquire`](Self::try_acquire), but uses what the earlier attempts have
    /// learned. All attempts of an acquire must be for the same key.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    pub async fn attempt<K: AsRef<[u8]>>(
        &mut self,
        acquisition: &mut Acquisition,
        key: K,
    ) -> Result<Lease<K>, AcquireError<NodeErrorOf<T>, MAX>> {
        self.send_abandoned_release().await;
        let grant = self
            .attempt_once(key.as_ref(), &mut acquisition.learned)
            .await?;
        Ok(self.lease(key, grant))
    }

    /// Returns the instant at which the next attempt must start, after an attempt that failed with `error`: after a random
    /// delay, and at the latest when the wait is over. `None` if there must be no further attempt: the wait is over, or a retry
    /// would fail too.
    pub fn again_at(
        &mut self,
        acquisition: &mut Acquisition,
        error: &AcquireError<NodeErrorOf<T>, MAX>,
    ) -> Option<Instant> {
        let now = self.clock.now();
        // Without a report (no entropy, a reserved key), a retry would fail too.
        if now >= acquisition.give_up_at || error.report().is_none() {
            return None;
        }
        acquisition.failed_attempts = acquisition.failed_attempts.saturating_add(1);
        let delay = self.retry_delay_micros(acquisition.failed_attempts);
        Some(now.plus_micros(delay).min(acquisition.give_up_at))
    }
}
