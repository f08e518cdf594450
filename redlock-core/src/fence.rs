//! Fencing tokens: numbers that grow from holder to holder, the gate that checks them, and the rules of a fleet.

// The test kit needs these types also without the feature `fence`.
#[cfg(not(any(feature = "fence", feature = "mock")))]
#[path = "fence/disabled.rs"]
mod proposal;
#[cfg(any(feature = "fence", feature = "mock"))]
#[path = "fence/enabled.rs"]
mod proposal;

mod fencing;

use core::fmt;

pub use fencing::Fencing;
pub(crate) use proposal::Fenced;
pub use proposal::{Proposal, Reading};

/// A fencing token: larger for every later holder of a key, over all nodes and for all time.
///
/// Pass it to the resource with every action, and let the resource refuse actions with a fence lower than the
/// highest that it has seen, as a [`FenceGate`] does. Then a holder that was paused past the end of its lease can
/// do no harm. Fences of different keys cannot be compared.
///
/// It is a time in microseconds that the nodes have agreed on, below 2^53. So it fits in a number of Lua or
/// JavaScript, and in a `BIGINT` of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fence(u64);

impl Fence {
    /// Lower than the fence of any lease.
    pub const ZERO: Self = Self(0);

    /// The fence with this number, for instance one that was received over a network.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number for a `BIGINT` of SQL, which drivers pass as `i64`. The fence of a lease always fits. A number above `i64::MAX`,
    /// from [`from_u64`](Self::from_u64), becomes `i64::MAX`.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX as u64 {
            i64::MAX
        } else {
            self.0.cast_signed()
        }
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

/// The check that a resource makes: admits the highest fence so far, and refuses every lower one.
///
/// A new holder must show its fence *before it reads*: until then, the gate still admits the holder before it.
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
/// The highest fence must survive a restart of the resource: store [`highest`](Self::highest) with the data,
/// and start with [`above`](Self::above).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FenceGate {
    highest: Fence,
}

impl FenceGate {
    /// A gate that has seen no fence.
    #[must_use]
    pub const fn new() -> Self {
        Self::above(Fence::ZERO)
    }

    /// A gate that has already seen `highest`.
    #[must_use]
    pub const fn above(highest: Fence) -> Self {
        Self { highest }
    }

    /// Returns whether the holder of `fence` may act. From then on, a lower fence is refused.
    #[must_use = "a resource that ignores the result checks nothing"]
    pub const fn admit(&mut self, fence: Fence) -> bool {
        if fence.0 < self.highest.0 {
            return false;
        }
        self.highest = fence;
        true
    }

    /// The highest fence that was admitted.
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

/// A marker that all fenced code needs. Without the feature `fence` it has no value, so the compiler leaves out
/// all fenced code: plain locks do not pay for fences.
///
/// With the feature `mock` alone, no code creates a value.
#[cfg(any(feature = "fence", feature = "mock"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct FencesEnabled;

#[cfg(not(any(feature = "fence", feature = "mock")))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) enum FencesEnabled {}

/// Whether fenced locks exist. If not, a device saves the flash for code that no marker leaves out.
pub(crate) const FENCES: bool = cfg!(any(feature = "fence", feature = "mock"));
