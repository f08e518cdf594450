//! The reports to the observer with the feature `observe`.
//!
//! The items in `disabled.rs` must have the same signatures.

use crate::entropy::Entropy;
use crate::error::{AcquireError, LossCause};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::observer::{AcquireOutcome, HoldEnd, Observer, Wait};
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

/// What an acquire reports at its end.
pub(in crate::redlock) struct Observation<E, O: Observer<E>> {
    wait: Wait<E, O>,
    begun_at: Instant,
    tries: u32,
    /// When the nodes have called the client.
    called_at: Option<Instant>,
}

impl<E, O: Observer<E>> Observation<E, O> {
    pub(in crate::redlock) fn begin(observer: &O, key: &[u8], begun_at: Instant) -> Self {
        Self {
            wait: Wait::begin(observer.clone(), key),
            begun_at,
            tries: 0,
            called_at: None,
        }
    }

    pub(in crate::redlock) const fn tried(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    /// Records that the acquire tries again, maybe because the nodes have called it.
    pub(in crate::redlock) fn waited(&mut self, was_called: bool, clock: &impl Clock) {
        if O::OBSERVES && self.called_at.is_none() && was_called {
            self.called_at = Some(clock.now());
        }
    }

    /// Reports the end of the acquire: without an `error`, the lock was acquired.
    pub(in crate::redlock) fn end<const MAX: usize>(
        &self,
        key: &[u8],
        error: Option<&AcquireError<E, MAX>>,
        clock: &impl Clock,
    ) {
        if !O::OBSERVES {
            return;
        }
        let (observer, now) = (self.wait.observer(), clock.now());
        let outcome = error.map_or(AcquireOutcome::Acquired, AcquireOutcome::from);
        let took = now.saturating_duration_since(self.begun_at);
        observer.acquire_ended(key, outcome, took, self.tries);
        if let Some(called_at) = self.called_at.filter(|_| error.is_none()) {
            observer.handed_off(key, now.saturating_duration_since(called_at));
        }
    }
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Reports what the nodes have answered in a round.
    pub(in crate::redlock) fn observe_nodes(&self, report: &Report<NodeErrorOf<T>, MAX>) {
        if !O::OBSERVES {
            return;
        }
        for (node, outcome) in report.outcomes().iter().enumerate() {
            match outcome {
                Outcome::Granted | Outcome::Refused => self.observer.node_answered(node),
                Outcome::Unanswered => {}
                Outcome::Failed(error) if matches!(error.failure(), Failure::NothingToRelease) => {}
                Outcome::Failed(error) => self.observer.node_failed(node, error),
            }
        }
    }

    /// Reports the end of a lease, ahead of its release. If it was not `lost`, its validity tells how it ends.
    pub(crate) fn observe_end<K: AsRef<[u8]>>(
        &self,
        lease: &Lease<K>,
        lost: Option<&LossCause<NodeErrorOf<T>, MAX>>,
    ) {
        if !O::OBSERVES {
            return;
        }
        let now = self.clock.now();
        let end = match lost {
            None if lease.is_valid(now) => HoldEnd::Released,
            None | Some(LossCause::Expired) => HoldEnd::Expired,
            Some(_) => HoldEnd::Lost,
        };
        if let Some(held) = lease.held_for(now) {
            self.observer.hold_ended(lease.key().as_ref(), end, held);
        }
    }
}
