//! The options of fenced locks.

#[cfg(feature = "fence")]
use core::time::Duration;

#[cfg(feature = "fence")]
use crate::fence::Fences;
use crate::fence::Fleet;
#[cfg(feature = "fence")]
use crate::options::{Options, OptionsError};

/// The options that only fenced locks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct Fencing {
    pub(super) fleet: Fleet,
    /// By how much clocks that do not jump may differ: by the window, if it was not said.
    pub(super) clock_skew_ms: Option<u32>,
    pub(super) tolerates_clock_jumps: Option<bool>,
}

impl Fencing {
    /// The part of the validity that a lease of `ttl_ms` loses, in microseconds, so that it stays exclusive if the
    /// clocks of a minority of nodes jump.
    pub(super) const fn jump_micros(self, ttl_ms: u32) -> u64 {
        let window_ms = self.fleet.window_ms as u64;
        let is_on = match self.tolerates_clock_jumps {
            Some(is_on) => is_on,
            // The margin would take most of a shorter lease.
            None => ttl_ms as u64 >= 40 * window_ms,
        };
        if is_on {
            let skew_ms = match self.clock_skew_ms {
                Some(skew_ms) => skew_ms as u64,
                None => window_ms,
            };
            (4 * window_ms + skew_ms) * 1_000
        } else {
            0
        }
    }
}

#[cfg(feature = "fence")]
impl Options {
    /// A window for nodes whose clocks are kept by NTP: 250 ms.
    pub const WINDOW: Duration = Duration::from_millis(250);

    /// Gives every lease a [fencing token](crate::Fence): [`Lease::fence`](crate::Lease::fence). Default: off.
    ///
    /// The clocks of the nodes must agree within `window`, less the time of a message; use NTP, for instance. A node
    /// whose clock is further off has no vote. The client needs no wall clock. All clients of a fleet of nodes must use
    /// the same `window`, [`max_ttl`](Self::max_ttl) and [`step_back`](Self::step_back). The nodes store these values
    /// and refuse a client with others. The window is truncated to whole milliseconds.
    ///
    /// A plain client, of this or any other library, and a fenced one exclude each other on one key.
    ///
    /// A second call changes only the window.
    ///
    /// # What it guarantees
    ///
    /// No two leases on a key have the same fence. A lease that was requested after another was reported has the higher
    /// fence. Both hold even if leases expire, messages are delayed or duplicated, processes are paused, and nodes, even
    /// all of them, lose their data. This assumes that no node's clock ever shows more than `step_back` less than the
    /// most it has shown; over a crash, more than the longer of `max_ttl` and `step_back`, and `2 window + 1 s`.
    ///
    /// # Errors
    ///
    /// Fails if the window is shorter than a millisecond or longer than an hour, if the TTL is longer than
    /// [`max_ttl`](Self::max_ttl), or if nothing of the validity is left.
    pub const fn fenced(mut self, window: Duration) -> Result<Self, OptionsError> {
        const MINUTE_MS: u32 = 60_000;

        let before = self;
        if window.as_millis() > 3_600_000 {
            return Err(OptionsError::Window);
        }
        // Rules belong to the fleet: a default computed from this TTL would differ from client to client.
        let max_ttl_ms = if self.max_ttl_ms > 0 {
            self.max_ttl_ms
        } else {
            MINUTE_MS
        };
        let mut fencing = match self.fencing {
            Some(fencing) => fencing,
            None => Fencing {
                fleet: Fleet {
                    max_ttl_ms,
                    window_ms: 0,
                    step_back_ms: MINUTE_MS,
                    on: Fences,
                },
                clock_skew_ms: None,
                tolerates_clock_jumps: None,
            },
        };
        fencing.fleet.window_ms = whole_millis(window);
        self.fencing = Some(fencing);
        self.with_defaults_of(&before).checked()
    }

    /// Sets by how much the clock of a node may be stepped back while the node runs. Default: one minute. A node keeps
    /// the fence of a key for that much longer. Truncated to whole milliseconds.
    ///
    /// # Errors
    ///
    /// Fails if the lock is not fenced, or if `step_back` is longer than [`MAX_TTL`](Self::MAX_TTL).
    pub const fn step_back(mut self, step_back: Duration) -> Result<Self, OptionsError> {
        if step_back.as_millis() > u32::MAX as u128 {
            return Err(OptionsError::TtlTooLong);
        }
        let Some(fencing) = &mut self.fencing else {
            return Err(OptionsError::NotFenced);
        };
        fencing.fleet.step_back_ms = whole_millis(step_back);
        self.checked()
    }

    /// Sets whether fenced leases exclude each other if the clocks of a minority of nodes jump, in any direction
    /// and back again. Default: on if the TTL is at least 40 windows, with a `clock_skew` of one window.
    ///
    /// All clients of a key must have it on: a lease that was granted without it has no margin for such a jump. If it
    /// is on, the validity is shorter by `4 window` and `clock_skew`. The clocks that do not jump must agree
    /// within `clock_skew`. It is rounded up to whole milliseconds.
    ///
    /// No clock may be stepped back by more than [`step_back`](Self::step_back), as for fences, nor forward while
    /// its node is in quarantine because it has lost data. A plain lock may find the key free if a jump made the node
    /// expire it. If the clocks of a majority jump together, leases may overlap; fences still grow.
    ///
    /// # Errors
    ///
    /// Fails if the lock is not fenced, or if nothing of the validity is left.
    pub const fn tolerate_clock_jumps(
        mut self,
        is_on: bool,
        clock_skew: Duration,
    ) -> Result<Self, OptionsError> {
        if clock_skew.as_millis() > u32::MAX as u128 {
            return Err(OptionsError::TtlTooShort);
        }
        let before = self;
        let Some(fencing) = &mut self.fencing else {
            return Err(OptionsError::NotFenced);
        };
        fencing.tolerates_clock_jumps = Some(is_on);
        // Rounded up, against the lease.
        let is_cut = !clock_skew.subsec_nanos().is_multiple_of(1_000_000);
        fencing.clock_skew_ms = Some(whole_millis(clock_skew).saturating_add(is_cut as u32));
        self.with_defaults_of(&before).checked()
    }
}

#[cfg(feature = "fence")]
#[expect(
    clippy::cast_possible_truncation,
    reason = "callers compare with u32::MAX before"
)]
const fn whole_millis(time: Duration) -> u32 {
    time.as_millis() as u32
}
