//! Holds the lock during some work: extends the lease while the work runs, and drops the work if the lease is lost.

use core::future::{Future, ready};
use core::time::Duration;

use embassy_futures::select::{Either, select};

use crate::entropy::Entropy;
use crate::error::{ExtendError, HoldError, LossCause};
use crate::lease::Lease;
use crate::observer::Observer;
use crate::redlock::Redlock;
use crate::report::Report;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Acquires the lock, runs `work` and releases the lock.
    ///
    /// While the work runs, the same task extends the lease each time a third of its validity has passed. On a coarse clock,
    /// it does so at the first tick after that. If a tick is about half of the validity or longer, that is too late, so the work ends with
    /// its first lease.
    ///
    /// If an extension finds that the lease is lost, the work is dropped at once. If the lease is lost in any
    /// other way, the work is not polled any more once the validity is over, and dropped. Dropping the work does not undo
    /// what it has done.
    ///
    /// The work sees the lease as it was granted: `valid_until` does not include the extensions.
    ///
    /// # Errors
    ///
    /// - [`HoldError::NotAcquired`] if the lock was not acquired. The work has not started.
    /// - [`HoldError::Lost`] if the lock was found lost before the work was done. This includes work that kept the task busy past
    ///   the end of the validity, so that it could not be dropped in time.
    pub async fn hold<K: AsRef<[u8]>, R>(
        &mut self,
        key: K,
        work: impl AsyncFnOnce(&Lease<K>) -> R,
    ) -> Result<R, HoldError<NodeErrorOf<T>, MAX>> {
        let lease = self.acquire(key).await.map_err(HoldError::NotAcquired)?;
        let mut kept = lease.with_key(lease.key().as_ref());
        // If this future is dropped during the work, the next operation releases the lock.
        self.set_abandoned(
            lease.key().as_ref(),
            lease.token(),
            lease.proposal(),
            lease.place(),
        );
        // `keep` is polled before the work: if the lease has expired during a long pause, the work does not run any more.
        let keep = self.keep_on(&mut kept, |_| (), |_| ready(()), |(), _| ());
        let done = match select(keep, work(&lease)).await {
            Either::First(cause) => Err(HoldError::Lost(cause)),
            Either::Second(_) if !kept.is_valid(self.clock.now()) => {
                Err(HoldError::Lost(LossCause::Expired))
            }
            Either::Second(result) => Ok(result),
        };
        let lost = match &done {
            Err(HoldError::Lost(cause)) => Some(cause),
            _ => None,
        };
        self.observe_end(&kept, lost);
        self.release_lease(&kept).await;
        done
    }

    /// Extends `lease` each time a third of its validity has passed, until it is lost. Returns the cause.
    ///
    /// Calls `extended` after each extension. Retries an extension that reaches no quorum until the validity ends. Returns no
    /// later than the validity ends. Dropping the future stops the extensions and leaves the lease as it is.
    pub async fn keep<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
        mut extended: impl FnMut(&Lease<K>),
    ) -> LossCause<NodeErrorOf<T>, MAX> {
        self.send_abandoned_release().await;
        let tried = |(), result: Result<&Lease<K>, &Report<_, MAX>>| {
            if let Ok(lease) = result {
                extended(lease);
            }
        };
        self.keep_on(lease, |_| (), |_| ready(()), tried).await
    }

    /// Like [`keep`](Self::keep), for a lease that other clients extend too, each with its own copy of the lease. The caller
    /// passes three functions:
    ///
    /// - `update` is called before each decision. In it, the caller records the extensions of other clients with
    ///   [`Lease::extended_elsewhere`]. Such an extension has the same effect as one of this client, but does not count for
    ///   [`Options::max_extensions`](crate::Options::max_extensions).
    /// - `admit` is called before each extension. Its argument is the end of the validity. The extension starts when the future
    ///   that `admit` returns is ready. So a caller with many leases decides when each extension starts. The future must be
    ///   ready by the end of the validity.
    /// - `tried` is called after an extension that succeeded or that reached no quorum, with the output of `admit`. Without a
    ///   quorum, it gets the report, so a caller with its own check of the validity knows why the validity ends. `tried` is
    ///   not called after an extension that found the lease lost or expired, or that was too late.
    pub async fn keep_shared<K: AsRef<[u8]>, A: Future>(
        &mut self,
        lease: &mut Lease<K>,
        update: impl FnMut(&mut Lease<K>),
        admit: impl FnMut(Instant) -> A,
        tried: impl FnMut(A::Output, Result<&Lease<K>, &Report<NodeErrorOf<T>, MAX>>),
    ) -> LossCause<NodeErrorOf<T>, MAX> {
        self.send_abandoned_release().await;
        self.keep_on(lease, update, admit, tried).await
    }

    /// [`keep_shared`](Self::keep_shared), without the release of an abandoned token.
    async fn keep_on<K: AsRef<[u8]>, A: Future>(
        &mut self,
        lease: &mut Lease<K>,
        mut update: impl FnMut(&mut Lease<K>),
        mut admit: impl FnMut(Instant) -> A,
        mut tried: impl FnMut(A::Output, Result<&Lease<K>, &Report<NodeErrorOf<T>, MAX>>),
    ) -> LossCause<NodeErrorOf<T>, MAX> {
        let mut extensions_left = self.options.extensions();
        let mut failed = None;
        let mut failed_rounds = 0_u32;
        let mut due = lease.extension_due(self.clock.resolution());
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
                due = lease.extension_due(self.clock.resolution());
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
                    due = lease.extension_due(self.clock.resolution());
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
                    // This extension was too late. Another client may have extended the lease in time.
                    update(lease);
                    if !lease.is_valid(self.clock.now()) {
                        return LossCause::Expired;
                    }
                    due = lease.extension_due(self.clock.resolution());
                }
            }
        }
    }
}

impl<K> Lease<K> {
    /// Records that another client has extended this lease until `valid_until`. The other client has a copy of the lease, and
    /// the same clock. See [`Redlock::keep_shared`].
    ///
    /// `valid_until` must come from [`Lease::valid_until`] of that copy. Has no effect if it is earlier than the known end.
    pub fn extended_elsewhere(&mut self, valid_until: Instant) {
        self.set_valid_until(valid_until.max(self.valid_until()));
    }

    /// When the next extension is due: a third of the validity after the start of the round that granted or extended the lease, on a
    /// clock with this [`resolution`](Clock::resolution).
    ///
    /// `valid_until` is one tick earlier than this start plus the validity. So one tick is added: otherwise, if a tick is long,
    /// an extension could be due at once, and extensions would follow each other without a pause.
    #[must_use]
    pub fn extension_due(&self, resolution: Duration) -> Instant {
        let validity = Duration::from_micros(self.terms().validity_micros);
        self.valid_until()
            .saturating_add(resolution)
            .saturating_sub(validity / 3 * 2)
    }
}
