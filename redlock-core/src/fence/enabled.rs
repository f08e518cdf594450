//! What a client and a node say to each other of fences.

use crate::fence::{Fence, Fences, Fleet};

/// The fence that an attempt proposes or a lease has, and the fleet whose rules it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Proposal {
    /// The fence.
    pub fence: Fence,
    /// The rules.
    pub fleet: Fleet,
    /// The nodes' time as the client knows it, in microseconds. A node whose clock is elsewhere has no vote
    /// for an extension either: its key may end at any time.
    pub time: u64,
    /// Whether the client may write the guard record of a node that has lost it: a quorum has confirmed its rules.
    pub vouches: bool,
}

impl Proposal {
    pub(crate) const fn new(fence: Fence, fleet: Fleet, time: u64, vouches: bool) -> Self {
        Self {
            fence,
            fleet,
            time,
            vouches,
        }
    }

    pub(crate) const fn vouches(&self) -> bool {
        self.vouches
    }

    /// The same, from a client whose rules are confirmed by now.
    pub(crate) const fn vouching(mut self) -> Self {
        self.vouches = true;
        self
    }

    pub(crate) const fn fence(&self) -> Fence {
        self.fence
    }

    /// The numbers of the fleet: the longest TTL, the window, and how far a clock may be set back.
    pub(crate) const fn fleet_ms(&self) -> [u32; 3] {
        let fleet = &self.fleet;
        [fleet.max_ttl_ms, fleet.window_ms, fleet.step_back_ms]
    }

    pub(crate) const fn time(&self) -> u64 {
        self.time
    }

    /// The same at another time.
    pub(crate) const fn at(self, time: u64) -> Self {
        Self { time, ..self }
    }
}

/// What a node's answer to a fenced acquire tells besides yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Reading {
    /// The node's clock, in microseconds.
    pub time: u64,
    /// The highest fence that the node has accepted for the key, as far as it remembers.
    pub fence: Fence,
    /// For how long the key lives on, in milliseconds, where it is another's.
    pub held_ms: u32,
    pub(crate) on: Fences,
}

impl Reading {
    /// A reading, for a transport of one's own.
    #[cfg(feature = "fence")]
    #[must_use]
    pub const fn new(time: u64, fence: Fence) -> Self {
        Self {
            time,
            fence,
            held_ms: 0,
            on: Fences,
        }
    }

    /// The answer to `proposal`.
    pub(crate) const fn of(proposal: &Proposal, time: u64, fence: Fence, held_ms: u32) -> Self {
        Self {
            time,
            fence,
            held_ms,
            on: proposal.fleet.on,
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
}
