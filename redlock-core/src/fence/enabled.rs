//! Proposals and readings with the feature `fence` or `mock`: the fence data that a client and a node exchange.
//!
//! The types in `disabled.rs` must have the same methods, but those that only fenced locks call.

use crate::fence::{Fence, FencesEnabled, Fencing};

/// The fence that an attempt proposes or a lease has, and the rules of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Proposal {
    /// The fence.
    pub fence: Fence,
    /// The rules of the fleet.
    pub fencing: Fencing,
    /// The nodes' time as the client knows it, in microseconds. A node whose clock is not near it has no vote
    /// for an extension, because its key may expire at any time.
    pub time: u64,
    /// Whether the client may write the guard record of a node that has lost it: the last round has confirmed its rules.
    pub vouches: bool,
}

impl Proposal {
    /// Creates a proposal, for the tests of your own transport. The parameters are the fields.
    #[must_use]
    pub const fn new(fence: Fence, fencing: Fencing, time: u64, vouches: bool) -> Self {
        Self {
            fence,
            fencing,
            time,
            vouches,
        }
    }

    pub(crate) const fn vouches(&self) -> bool {
        self.vouches
    }

    /// The same proposal, from a client whose rules are now confirmed.
    pub(crate) const fn vouching(mut self) -> Self {
        self.vouches = true;
        self
    }

    pub(crate) const fn fence(&self) -> Fence {
        self.fence
    }

    /// The rules of the fleet in milliseconds: `max_ttl`, `window` and `step_back`.
    pub(crate) const fn fencing_ms(&self) -> [u32; 3] {
        let fencing = &self.fencing;
        [fencing.max_ttl_ms, fencing.window_ms, fencing.step_back_ms]
    }

    pub(crate) const fn time(&self) -> u64 {
        self.time
    }

    /// The same proposal with another `time`.
    pub(crate) const fn at(self, time: u64) -> Self {
        Self { time, ..self }
    }
}

/// The details of a node's answer to a fenced acquire or extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Reading {
    /// The node's clock, in microseconds.
    pub time: u64,
    /// The highest fence that the node has accepted for the key, as far as it remembers.
    pub fence: Fence,
    /// How long the key still lives, in milliseconds, if another client holds it.
    pub held_ms: u32,
    pub(crate) on: FencesEnabled,
}

impl Reading {
    /// Creates a reading, for your own transport.
    #[cfg(feature = "fence")]
    #[must_use]
    pub const fn new(time: u64, fence: Fence) -> Self {
        Self {
            time,
            fence,
            held_ms: 0,
            on: FencesEnabled,
        }
    }

    /// The reading of an answer to `proposal`.
    pub(crate) const fn of(proposal: &Proposal, time: u64, fence: Fence, held_ms: u32) -> Self {
        Self {
            time,
            fence,
            held_ms,
            on: proposal.fencing.on,
        }
    }

    pub(crate) const fn time(&self) -> u64 {
        self.time
    }

    pub(crate) const fn fence(&self) -> Fence {
        self.fence
    }

    pub(crate) const fn held_ms(&self) -> u32 {
        self.held_ms
    }

    pub(crate) const fn with<T>(&self, value: T) -> Fenced<T> {
        Fenced(value)
    }
}

/// A value that comes from a reading. Without readings, it takes no space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fenced<T>(T);

impl<T> Fenced<T> {
    pub(crate) const fn get(&self) -> &T {
        &self.0
    }
}
