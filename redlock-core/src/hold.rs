//! The lock for the time of some work: extended while it runs, stopped when it is lost.

use core::future::{Future, ready};
use core::time::Duration;

use embassy_futures::select::{Either, select};

use crate::entropy::Entropy;
use crate::error::{ExtendError, HoldError, LossCause};
use crate::lease::Lease;
use crate::redlock::Redlock;
use crate::report::Report;
use crate::time::{Clock, Instant};
use crate::transport::Transport;

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Acquires the lock, runs `work` and releases the lock.
    ///
    /// The lease is extended while the work runs, in the same task, each time a third of its validity
    /// has passed, or the first tick of a coarse clock after that. When an extension finds it lost, the work is dropped at
    /// once, and no later than its validity
    /// ends. Dropping the work does not undo what it did.
    ///
    /// The lease that the work sees is the one that was granted: its `valid_until` is the earliest
    /// end, not the one after the extensions.
    ///
    /// # Errors
    ///
    /// [`HoldError::NotAcquired`] before the work, [`HoldError::Lost`] when the lock was lost before
    /// the work was done, also when the work kept the task busy past the end of the validity.
    pub async fn hold<K: AsRef<[u8]>, R>(
        &mut self,
        key: K,
        work: impl AsyncFnOnce(&Lease<K>) -> R,
    ) -> Result<R, HoldError<T::Error, MAX>> {
        let lease = self.acquire(key).await.map_err(HoldError::NotAcquired)?;
        let mut kept = Lease::new(
            lease.key().as_ref(),
            *lease.token(),
            lease.terms(),
            lease.valid_until(),
            lease.proposal(),
        );
        // If this future is dropped during the work, the next operation releases the lock.
        self.abandon(lease.key().as_ref(), lease.token(), lease.proposal());
        // The lease is looked at before the work: after a long pause the work does not run on.
        let keep = self.keep_on(&mut kept, |_| (), |_| ready(()), |(), _| ());
        let done = match select(keep, work(&lease)).await {
            Either::First(cause) => Err(HoldError::Lost(cause)),
            Either::Second(_) if !kept.is_valid(self.clock.now()) => {
                Err(HoldError::Lost(LossCause::Expired))
            }
            Either::Second(result) => Ok(result),
        };
        self.give_back(&kept).await;
        done
    }

    /// Extends `lease` each time a third of its validity has passed, until it is lost, and says why.
    ///
    /// Calls `extended` after each extension. Returns no later than the lease is valid; an extension
    /// that fails for want of a quorum is tried again until then. Dropping the future stops the
    /// extending and leaves the lease as it is.
    pub async fn keep<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
        mut extended: impl FnMut(&Lease<K>),
    ) -> LossCause<T::Error, MAX> {
        self.hand_over_abandoned().await;
        let tried = |(), result: Result<&Lease<K>, &Report<_, MAX>>| {
            if let Ok(lease) = result {
                extended(lease);
            }
        };
        self.keep_on(lease, |_| (), |_| ready(()), tried).await
    }

    /// Extends a lease that other clients extend too, each with a copy of it; otherwise as
    /// [`keep`](Self::keep).
    ///
    /// Calls `update` before each decision, so that it can tell the lease of the extensions of the others
    /// ([`Lease::extended_elsewhere`]). An extension of another client counts as one of this client, except that
    /// it does not count for [`Options::max_extensions`](crate::Options::max_extensions).
    ///
    /// Waits for `admit` before each extension: a caller with many leases decides when it begins, by the end of the
    /// validity at the latest.
    ///
    /// Calls `tried` after each extension that was tried, with what `admit` has returned, and with the report if no
    /// quorum was reached: a caller that watches the validity itself knows why it ends.
    pub async fn keep_shared<K: AsRef<[u8]>, A: Future>(
        &mut self,
        lease: &mut Lease<K>,
        update: impl FnMut(&mut Lease<K>),
        admit: impl FnMut(Instant) -> A,
        tried: impl FnMut(A::Output, Result<&Lease<K>, &Report<T::Error, MAX>>),
    ) -> LossCause<T::Error, MAX> {
        self.hand_over_abandoned().await;
        self.keep_on(lease, update, admit, tried).await
    }

    async fn keep_on<K: AsRef<[u8]>, A: Future>(
        &mut self,
        lease: &mut Lease<K>,
        mut update: impl FnMut(&mut Lease<K>),
        mut admit: impl FnMut(Instant) -> A,
        mut tried: impl FnMut(A::Output, Result<&Lease<K>, &Report<T::Error, MAX>>),
    ) -> LossCause<T::Error, MAX> {
        let mut extensions_left = self.options.extensions();
        let mut failed = None;
        let mut failed_rounds = 0_u32;
        let mut due = self.extension_due(lease);
        loop {
            if extensions_left == Some(0) {
                due = lease.valid_until();
            }
            self.clock.sleep_until(due.min(lease.valid_until())).await;
            let known = lease.valid_until();
            update(lease);
            if lease.valid_until() != known {
                failed = None;
                failed_rounds = 0;
                due = self.extension_due(lease);
                continue;
            }
            if !lease.is_valid(self.clock.now()) {
                return match failed {
                    Some(report) => LossCause::Unreachable(report),
                    None if extensions_left == Some(0) => LossCause::ExtensionsSpent,
                    None => LossCause::Expired,
                };
            }
            let admitted = admit(lease.valid_until()).await;
            match self.extension(lease).await {
                Ok(()) => {
                    extensions_left = extensions_left.map(|left| left.saturating_sub(1));
                    failed = None;
                    failed_rounds = 0;
                    due = self.extension_due(lease);
                    tried(admitted, Ok(lease));
                }
                Err(ExtendError::Unreachable(report)) => {
                    tried(admitted, Err(&report));
                    failed = Some(report);
                    failed_rounds = failed_rounds.saturating_add(1);
                    let delay = self.retry_delay_micros(failed_rounds);
                    due = self.clock.now().plus_micros(delay);
                }
                Err(ExtendError::Lost(report)) => return LossCause::Lost(report),
                Err(_) => {
                    // Unless another client was in time.
                    update(lease);
                    if !lease.is_valid(self.clock.now()) {
                        return LossCause::Expired;
                    }
                    due = self.extension_due(lease);
                }
            }
        }
    }

    /// A third of the validity after the round that granted it, however long a tick is: a lease that
    /// was due when it was granted would be extended without a pause.
    fn extension_due<K>(&self, lease: &Lease<K>) -> Instant {
        let validity = Duration::from_micros(lease.terms().validity);
        lease
            .valid_until()
            .saturating_add(self.clock.resolution())
            .saturating_sub(validity / 3 * 2)
    }
}

impl<K> Lease<K> {
    /// Another client with a copy of this lease, on the same clock, has extended it: it is valid until
    /// `valid_until`, if that is later than what is known.
    ///
    /// `valid_until` must be that of the other client's [`Lease::valid_until`]. See
    /// [`Redlock::keep_shared`].
    pub fn extended_elsewhere(&mut self, valid_until: Instant) {
        self.extended_until(valid_until.max(self.valid_until()));
    }
}
