//! The options of fenced locks.

#[cfg(feature = "fence")]
use core::time::Duration;

#[cfg(feature = "fence")]
use crate::fence::Fencing;
use crate::options::Options;
#[cfg(feature = "fence")]
use crate::options_error::OptionsError;
#[cfg(feature = "fence")]
use crate::time::whole_millis;

/// Whether the leases of a fenced lock stay exclusive if clocks jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct ClockJumps {
    are_tolerated: bool,
    /// By how much clocks that do not jump may differ.
    clock_skew_ms: u32,
}

#[cfg(feature = "fence")]
impl Options {
    /// Gives every lease a [fencing token](crate::Fence), see [`Lease::fence`](crate::Lease::fence). Default: off.
    ///
    /// The clocks of the nodes must agree within the window of `fencing` minus the time that a message takes; use NTP, for
    /// instance. A node whose clock is further off has no vote. The client needs no wall clock.
    ///
    /// All fenced clients of a fleet of nodes must pass the same `fencing`. The nodes store it, and give no vote to a fenced
    /// client with other rules. A second call replaces the value of the first.
    ///
    /// A fenced lock excludes plain ones on the same key, of this or any other library, and they exclude it.
    ///
    /// # What it guarantees
    ///
    /// No two leases on a key have the same fence. If one acquire begins after another has returned, its lease has the
    /// higher fence. Both hold even if leases expire, messages are delayed or duplicated, processes are paused, and nodes, even
    /// all of them, lose their data.
    ///
    /// This assumes that no node's clock falls more than `step_back` below the highest time that it has shown. Across a
    /// crash, the limit is `max(max_ttl, step_back) + 2 window + 1 s`.
    ///
    /// # Errors
    ///
    /// Fails if the TTL is longer than the `max_ttl` of `fencing`, or if nothing of the validity is left. Fails if a node
    /// timeout is set that is not shorter than the validity.
    pub const fn fenced(mut self, fencing: Fencing) -> Result<Self, OptionsError> {
        self.fencing = Some(fencing);
        self.settled()
    }

    /// Sets whether fenced leases exclude each other if the clocks of a minority of nodes jump, in any direction
    /// and back again. Default: on if the TTL is at least 40 windows, with a `clock_skew` of one window. A plain lock
    /// ignores this option.
    ///
    /// All clients of a key must have it on: a lease that was granted without it has no margin for such a jump. If it
    /// is on, the validity is shorter by `4 window + clock_skew`. The clocks that do not jump must agree within
    /// `clock_skew`. It is rounded up to whole milliseconds.
    ///
    /// No clock may be stepped back by more than the [`step_back`](Fencing::step_back) of the fleet: fences assume this
    /// too. No clock may be stepped forward while its node is in quarantine because it has lost data. A plain lock may
    /// find the key free if a jump made the node expire it. If the clocks of a majority jump together, leases may
    /// overlap; fences still grow.
    ///
    /// # Errors
    ///
    /// For a fenced lock, fails if nothing of the validity is left, or if a node timeout is set that is not shorter
    /// than the validity.
    pub const fn tolerate_clock_jumps(
        mut self,
        is_on: bool,
        clock_skew: Duration,
    ) -> Result<Self, OptionsError> {
        let skew_ms = match whole_millis(clock_skew) {
            Some(skew_ms) => skew_ms,
            // Longer than any TTL.
            None => u32::MAX,
        };
        // Rounded up: this can only make the lease shorter.
        let is_cut = !clock_skew.subsec_nanos().is_multiple_of(1_000_000);
        self.clock_jumps = Some(ClockJumps {
            are_tolerated: is_on,
            clock_skew_ms: skew_ms.saturating_add(is_cut as u32),
        });
        self.settled()
    }
}

impl Options {
    /// The part of the validity that a fenced lease loses, in microseconds, so that it stays exclusive if the clocks of a
    /// minority of nodes jump. Zero for a plain lock.
    pub(super) const fn jump_micros(&self) -> u64 {
        let Some(fencing) = self.fencing else {
            return 0;
        };
        let window_ms = fencing.window_ms as u64;
        let skew_ms = match self.clock_jumps {
            Some(jumps) if jumps.are_tolerated => jumps.clock_skew_ms as u64,
            // The margin would take most of a shorter lease.
            None if self.ttl_ms as u64 >= 40 * window_ms => window_ms,
            _ => return 0,
        };
        (4 * window_ms + skew_ms) * 1_000
    }
}
