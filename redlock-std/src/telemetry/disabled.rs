//! The telemetry without the features `metrics` and `tracing`: there is none.
//!
//! The items in `enabled.rs` must have the same signatures.

use redlock_core::{Fence, HoldEnd, Instant};

use crate::error::{AcquireError, ExtendError, LossCause};
use crate::lock_clock::LockClock;

#[derive(Debug, Clone)]
pub(crate) struct Telemetry;

impl Telemetry {
    pub(crate) const fn new(_clock: LockClock) -> Self {
        Self
    }

    pub(crate) const fn acquire(&self, _key: &[u8], _since: Instant) -> AcquireScope {
        AcquireScope
    }

    pub(crate) const fn acquire_unlabelled(&self, _since: Instant) -> AcquireScope {
        AcquireScope
    }

    pub(crate) const fn adoption(&self, _key: &[u8]) -> AdoptionScope {
        AdoptionScope
    }
}

#[derive(Debug)]
pub(crate) struct AdoptionScope;

impl AdoptionScope {
    pub(crate) const fn hold(self) -> HoldScope {
        HoldScope
    }
}

#[derive(Debug)]
pub(crate) struct Trace;

impl Trace {
    pub(crate) fn run<F: Future>(self, future: F) -> F {
        future
    }
}

#[derive(Debug)]
pub(crate) struct AcquireScope;

impl AcquireScope {
    pub(crate) const fn trace(&self) -> Trace {
        Trace
    }

    pub(crate) const fn trace_round(&self) -> Trace {
        Trace
    }

    pub(crate) const fn got_its_turn(&mut self) {}

    pub(crate) const fn tried(&mut self, _was_called: bool) {}

    pub(crate) const fn waits(&self, _error: &AcquireError) {}

    pub(crate) const fn hold(&self) -> HoldScope {
        HoldScope
    }

    pub(crate) const fn end(self, _acquired: Result<Option<Fence>, &AcquireError>) {}
}

#[derive(Debug)]
pub(crate) struct HoldScope;

impl HoldScope {
    pub(crate) const fn trace_extension(&self) -> Trace {
        Trace
    }

    pub(crate) const fn trace_release(&self) -> Trace {
        Trace
    }

    pub(crate) const fn extended(&self) {}

    pub(crate) const fn not_extended(&self, _error: &ExtendError) {}

    pub(crate) const fn unreachable(&self) {}

    pub(crate) const fn kept_in_vain(&self, _cause: &LossCause) {}

    pub(crate) const fn end(&self, _end: HoldEnd) {}

    pub(crate) const fn lose(&self, _cause: &LossCause) {}
}
