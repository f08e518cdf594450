//! Fencing tokens: numbers that grow from holder to holder, and the resource that checks them.

// The test kit reads them, also without the feature.
#[cfg(not(any(feature = "fence", feature = "mock")))]
#[path = "fence/disabled.rs"]
mod terms;
#[cfg(any(feature = "fence", feature = "mock"))]
#[path = "fence/enabled.rs"]
mod terms;

use core::fmt;
use core::time::Duration;

pub use terms::{Proposal, Reading};

/// A fencing token: larger for every later holder of a key, over all nodes and for all time.
///
/// Hand it to the resource with everything you do there, and let the resource refuse what carries a lower
/// one than it has seen, as a [`FenceGate`] does: then a holder that was paused past the end of its lease
/// can do no harm. Fences of two keys say nothing about each other.
///
/// It is a time in microseconds that the nodes have agreed to, below 2^53: it fits a number of Lua, of
/// JavaScript and a `BIGINT` of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fence(u64);

impl Fence {
    /// Lower than the fence of any lease.
    pub const ZERO: Self = Self(0);

    /// The fence with this number, for instance one that came over a wire.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The resource's side: lets in whoever carries the highest fence so far, and nobody with a lower one.
///
/// A new holder must show its fence *before it reads*: until then the one before it is let in.
///
/// ```
/// use redlock_core::{Fence, FenceGate};
///
/// let mut gate = FenceGate::new();
/// assert!(gate.admit(Fence::from_u64(7)));
/// assert!(gate.admit(Fence::from_u64(9)));
/// // The holder of 7 was paused, and wakes up.
/// assert!(!gate.admit(Fence::from_u64(7)));
/// assert!(gate.admit(Fence::from_u64(9)));
/// ```
///
/// What it has seen must outlive the resource's own restart: keep [`highest`](Self::highest) with the data,
/// and begin with [`above`](Self::above).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FenceGate {
    highest: Fence,
}

impl FenceGate {
    /// A gate that has seen nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self::above(Fence::ZERO)
    }

    /// A gate that has seen `highest` before.
    #[must_use]
    pub const fn above(highest: Fence) -> Self {
        Self { highest }
    }

    /// Whether the holder of `fence` may act. From now on nobody with a lower one may.
    #[must_use = "a resource that acts without looking at the answer checks nothing"]
    pub const fn admit(&mut self, fence: Fence) -> bool {
        if fence.0 < self.highest.0 {
            return false;
        }
        self.highest = fence;
        true
    }

    /// The highest fence that was let in.
    #[must_use]
    pub const fn highest(&self) -> Fence {
        self.highest
    }
}

impl Default for FenceGate {
    fn default() -> Self {
        Self::new()
    }
}

/// What all clients of a fleet of nodes must agree on to get fences. It stands on every node, and a client
/// that says otherwise is refused there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fleet {
    pub(crate) max_ttl_ms: u32,
    pub(crate) window_ms: u32,
    pub(crate) step_back_ms: u32,
    pub(crate) on: Fences,
}

/// Needed for whatever has to do with fences. Without the feature `fence` there is no value of it, and the
/// compiler leaves out all code that would need one: who wants no fences pays for none.
///
/// With the test kit alone nobody makes one.
#[cfg(any(feature = "fence", feature = "mock"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Fences;

#[cfg(not(any(feature = "fence", feature = "mock")))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum Fences {}

impl Fleet {
    /// The longest TTL of any lease, and with it how long a node's vote does not count after a restart.
    #[must_use]
    pub const fn max_ttl(&self) -> Duration {
        Duration::from_millis(self.max_ttl_ms as u64)
    }

    /// How far a proposed fence may be from the clock of a node.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms as u64)
    }

    /// By how much the clock of a node may be set back while it lives.
    #[must_use]
    pub const fn step_back(&self) -> Duration {
        Duration::from_millis(self.step_back_ms as u64)
    }

    /// For how long the vote of a node that may have forgotten does not count: the longer of `max_ttl` and
    /// `step_back`, and `4 window + 1 s`.
    ///
    /// No lease lasts longer than `max_ttl`, and a fence that was accepted before the clock was set back by `step_back`
    /// is out of the window by then.
    #[must_use]
    pub const fn quarantine(&self) -> Duration {
        let longest_ms = if self.max_ttl_ms > self.step_back_ms {
            self.max_ttl_ms
        } else {
            self.step_back_ms
        };
        Duration::from_millis(longest_ms as u64 + 4 * self.window_ms as u64 + 1_000)
    }
}
