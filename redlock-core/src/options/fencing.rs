//! The options of fenced locks.

#[cfg(feature = "fence")]
use core::time::Duration;

#[cfg(feature = "fence")]
use crate::fence::Fences;
use crate::fence::Fleet;
#[cfg(feature = "fence")]
use crate::options::{Options, OptionsError};

/// How fences are got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(super) struct Fencing {
    pub(super) fleet: Fleet,
    /// By how much clocks that do not jump may differ: by the window, if it was not said.
    pub(super) clock_skew_ms: Option<u32>,
    pub(super) tolerates_clock_jumps: Option<bool>,
}

impl Fencing {
    /// What a lease of `ttl_ms` loses so that it is exclusive also where the clocks of a minority of nodes
    /// jump.
    pub(super) const fn jump_micros(self, ttl_ms: u32) -> u64 {
        let window_ms = self.fleet.window_ms as u64;
        let is_on = match self.tolerates_clock_jumps {
            Some(is_on) => is_on,
            // Else most of a short lease would be lost.
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
    /// The window that suits machines which keep time by NTP.
    pub const WINDOW: Duration = Duration::from_millis(250);

    /// Gives every lease a [fencing token](crate::Fence): [`Lease::fence`](crate::Lease::fence).
    ///
    /// The clocks of the nodes must agree within `window`, less the time of a message, by NTP for instance: a node whose
    /// clock is further off has no vote. The client needs no clock that knows the date. All clients of a fleet of
    /// nodes must agree on `window`, [`max_ttl`](Self::max_ttl) and [`step_back`](Self::step_back), which
    /// stand on the nodes; one that says otherwise is refused there. Parts of a millisecond are dropped.
    ///
    /// A plain client, of this or any other library, and a fenced one exclude each other on one key.
    ///
    /// Called again, it changes the window alone.
    ///
    /// # What it guarantees
    ///
    /// No two leases on a key have the same fence, and one that was asked for after another was reported
    /// has the higher one: whatever expires, is delayed, repeated or paused, and also when nodes, even all
    /// of them, lose their data. This assumes that no node's clock ever shows more than `step_back` less than the most it
    /// has shown; over a crash, more than the longer of `max_ttl` and `step_back`, and `2 window + 1 s`.
    ///
    /// # Errors
    ///
    /// When the window is shorter than a millisecond or longer than an hour, when the TTL is longer than
    /// [`max_ttl`](Self::max_ttl), or when nothing of the validity is left.
    pub const fn fenced(mut self, window: Duration) -> Result<Self, OptionsError> {
        const MINUTE_MS: u32 = 60_000;

        let before = self;
        if window.as_millis() > 3_600_000 {
            return Err(OptionsError::Window);
        }
        // Rules belong to the fleet: a default that followed from this TTL would differ from client to client.
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
        self.with_node_timeout_of(&before).checked()
    }

    /// By how much the clock of a node may be set back while it lives, a minute unless told. A node keeps
    /// the fence of a key for that much longer.
    ///
    /// # Errors
    ///
    /// When the lock is not fenced, or it is longer than [`MAX_TTL`](Self::MAX_TTL).
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

    /// Whether fenced leases exclude each other when the clocks of a minority of nodes jump, in any direction
    /// and back again. All clients of a key must have it on: a lease that was granted without it has no margin for
    /// such a jump. It takes `4 window` and `clock_skew` off the validity. The clocks that do not jump must agree within
    /// `clock_skew`. The default is the window. On by default if the TTL is at least 40 windows.
    ///
    /// No clock may be set back by more than [`step_back`](Self::step_back), as for fences, nor forward while
    /// its node is in quarantine, having forgotten what it knew. A plain lock may
    /// find the key free that a clock has taken away. When a majority jumps together, nothing helps; fences
    /// grow all the same.
    ///
    /// # Errors
    ///
    /// When the lock is not fenced, or nothing of the validity is left.
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
        self.with_node_timeout_of(&before).checked()
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
