//! The reports to the observer without the feature `observe`: there are none.
//!
//! The items in `enabled.rs` must have the same signatures.

use core::marker::PhantomData;

use crate::entropy::Entropy;
use crate::error::{AcquireError, LossCause};
use crate::lease::Lease;
use crate::observer::Observer;
use crate::redlock::Redlock;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

pub(in crate::redlock) struct Observation<E, O>(PhantomData<fn() -> (E, O)>);

impl<E, O: Observer<E>> Observation<E, O> {
    pub(in crate::redlock) const fn begin(_observer: &O, _key: &[u8], _begun_at: Instant) -> Self {
        Self(PhantomData)
    }

    pub(in crate::redlock) const fn tried(&mut self) {}

    pub(in crate::redlock) const fn waited(&mut self, _was_called: bool, _clock: &impl Clock) {}

    pub(in crate::redlock) const fn end<const MAX: usize>(
        &self,
        _key: &[u8],
        _error: Option<&AcquireError<E, MAX>>,
        _clock: &impl Clock,
    ) {
    }
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    pub(crate) const fn observe_end<K: AsRef<[u8]>>(
        &self,
        _lease: &Lease<K>,
        _lost: Option<&LossCause<NodeErrorOf<T>, MAX>>,
    ) {
    }
}
