//! The wait in a line without the features `queue` and `mock`: no client waits in a line.
//!
//! The items in `enabled.rs` must have the same signatures.

use core::future::Future;

use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::line::Place;
use crate::observer::Observer;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::round::NodeSet;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

#[derive(Debug)]
pub(in crate::redlock) struct Waiting;

impl Waiting {
    pub(in crate::redlock) const fn new(_since: Instant, _give_up_at: Instant) -> Self {
        Self
    }

    pub(in crate::redlock) const fn set_since(&mut self, _since: Instant) {}

    pub(in crate::redlock) const fn stay_outside(&mut self) {}

    pub(in crate::redlock) const fn place(&self) -> Option<Place> {
        None
    }

    pub(in crate::redlock) const fn is_in_line(&self) -> bool {
        false
    }

    pub(in crate::redlock) const fn was_called(&self) -> bool {
        false
    }

    pub(in crate::redlock) const fn is_over(&self) -> bool {
        false
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::redlock) struct Contention;

impl Contention {
    pub(in crate::redlock) const NONE: Self = Self;

    pub(in crate::redlock) const fn record(&mut self, _key: &[u8], _is_wanted: bool) {}
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    pub(in crate::redlock) const fn departure(&self, _waiting: &Waiting) -> Option<Place> {
        None
    }

    pub(in crate::redlock) const fn outside(&self) -> Option<Place> {
        None
    }

    pub(in crate::redlock) const fn join(&self, _waiting: &mut Waiting) -> bool {
        false
    }

    pub(in crate::redlock) const fn join_if_wanted(&self, _waiting: &mut Waiting, _key: &[u8]) {}

    pub(in crate::redlock) const fn learn_ticket(
        &mut self,
        _waiting: &mut Waiting,
        _ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
    ) {
    }

    pub(in crate::redlock) const fn departing(
        &mut self,
        _waiting: &mut Waiting,
        _ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
        carriers: NodeSet,
    ) -> (NodeSet, Option<Place>) {
        (carriers, None)
    }

    pub(in crate::redlock) const fn again_in_line(
        &self,
        _waiting: &mut Waiting,
        _error: &AcquireError<NodeErrorOf<T>, MAX>,
        _now: Instant,
    ) -> Option<Option<Instant>> {
        None
    }

    pub(in crate::redlock) const fn plan_look(
        &mut self,
        _waiting: &mut Waiting,
        _ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
        _round_micros: u64,
    ) {
    }

    // No `async fn`: a future in another takes more flash.
    pub(in crate::redlock) fn wait_until(
        &mut self,
        _waiting: &mut Waiting,
        _key: &[u8],
        until: Instant,
    ) -> impl Future<Output = ()> {
        self.clock.sleep_until(until)
    }
}
