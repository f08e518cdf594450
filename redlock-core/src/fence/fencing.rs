//! The rules of a fleet of nodes that grant fenced locks.

use core::time::Duration;

use crate::fence::FencesEnabled;
#[cfg(feature = "fence")]
use crate::options_error::OptionsError;
#[cfg(feature = "fence")]
use crate::time::whole_millis;

/// The rules that all fenced clients of a fleet of nodes share. Every node stores them in its guard record, and gives no
/// vote to a fenced client with other rules.
///
/// | rule | default | meaning |
/// |---|---|---|
/// | `Fencing::new(window)` | `Fencing::WINDOW` is 250 ms | how far a fence may be from a node's clock; the nodes' clocks may differ by this time minus that of a message |
/// | `with_max_ttl` | one minute | the longest TTL of any fenced lease |
/// | `with_step_back` | one minute | by how much the clock of a running node may be stepped back |
///
/// All are truncated to whole milliseconds. Pass the value to `Options::fenced`.
#[cfg_attr(
    feature = "fence",
    doc = r"
```
use core::time::Duration;
use redlock_core::{Fencing, Options, OptionsError};

# fn main() -> Result<(), OptionsError> {
let hour = Duration::from_secs(3_600);
let fencing = Fencing::default().with_max_ttl(hour)?;
let options = Options::new(Duration::from_secs(600))?.fenced(fencing)?;
assert_eq!(options.fencing(), Some(fencing));
# Ok(())
# }
```"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fencing {
    pub(crate) max_ttl_ms: u32,
    pub(crate) window_ms: u32,
    pub(crate) step_back_ms: u32,
    pub(crate) on: FencesEnabled,
}

#[cfg(feature = "fence")]
const MINUTE_MS: u32 = 60_000;

#[cfg(feature = "fence")]
const WINDOW_MS: u32 = 250;

#[cfg(feature = "fence")]
impl Fencing {
    /// A window for nodes whose clocks are kept by NTP: 250 ms.
    pub const WINDOW: Duration = Duration::from_millis(WINDOW_MS as u64);

    /// Creates the rules of a fleet whose clocks agree within `window` minus the time that a message takes. The other rules
    /// have the defaults of the [table](Self) above.
    ///
    /// A node accepts a fence only if it is within `window` of its own clock. So a node whose clock is further off has no
    /// vote.
    ///
    /// # Errors
    ///
    /// Fails if the window is shorter than a millisecond or longer than an hour.
    pub const fn new(window: Duration) -> Result<Self, OptionsError> {
        const HOUR_MS: u32 = 60 * MINUTE_MS;

        match whole_millis(window) {
            Some(window_ms @ 1..=HOUR_MS) => Ok(Self {
                max_ttl_ms: MINUTE_MS,
                window_ms,
                step_back_ms: MINUTE_MS,
                on: FencesEnabled,
            }),
            _ => Err(OptionsError::Window),
        }
    }

    /// Sets the longest TTL of any fenced lease on the nodes. Default: one minute. The [quarantine](Self::quarantine) of a
    /// node depends on it.
    ///
    /// The default is the same for all clients: if it were computed from their TTLs, their rules would differ.
    ///
    /// # Errors
    ///
    /// Fails if it, or the quarantine, is longer than [`Options::MAX_TTL`](crate::Options::MAX_TTL).
    pub const fn with_max_ttl(mut self, max_ttl: Duration) -> Result<Self, OptionsError> {
        let Some(max_ttl_ms) = whole_millis(max_ttl) else {
            return Err(OptionsError::TtlTooLong);
        };
        self.max_ttl_ms = max_ttl_ms;
        self.checked()
    }

    /// Sets by how much the clock of a node may be stepped back while the node runs. Default: one minute. A node keeps
    /// the fence of a key for that much longer, and its [quarantine](Self::quarantine) is longer than that time.
    ///
    /// # Errors
    ///
    /// Fails if it, or the quarantine, is longer than [`Options::MAX_TTL`](crate::Options::MAX_TTL).
    pub const fn with_step_back(mut self, step_back: Duration) -> Result<Self, OptionsError> {
        let Some(step_back_ms) = whole_millis(step_back) else {
            return Err(OptionsError::StepBack);
        };
        self.step_back_ms = step_back_ms;
        self.checked()
    }

    /// Refuses a quarantine that 32 bits cannot count: a client that counts to their end would wait for less.
    const fn checked(self) -> Result<Self, OptionsError> {
        match whole_millis(self.quarantine()) {
            Some(_) => Ok(self),
            None => Err(OptionsError::Quarantine),
        }
    }
}

#[cfg(feature = "fence")]
impl Default for Fencing {
    /// The rules with a window of [`WINDOW`](Self::WINDOW), and the other defaults of the [table](Self).
    fn default() -> Self {
        Self {
            max_ttl_ms: MINUTE_MS,
            window_ms: WINDOW_MS,
            step_back_ms: MINUTE_MS,
            on: FencesEnabled,
        }
    }
}

impl Fencing {
    /// How far a proposed fence may be from the clock of a node.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms as u64)
    }

    /// The longest TTL of any fenced lease on the nodes.
    #[must_use]
    pub const fn max_ttl(&self) -> Duration {
        Duration::from_millis(self.max_ttl_ms as u64)
    }

    /// By how much the clock of a node may be stepped back while the node runs.
    #[must_use]
    pub const fn step_back(&self) -> Duration {
        Duration::from_millis(self.step_back_ms as u64)
    }

    /// How long a node that may have lost data has no vote: `max(max_ttl, step_back) + 4 window + 1 s`.
    ///
    /// By then, every lease that it may have lost is over. Every fence that it accepted before its clock was stepped back
    /// by `step_back` is out of the window.
    #[must_use]
    pub const fn quarantine(&self) -> Duration {
        let longest_ms = self.longest_ms();
        Duration::from_millis(longest_ms as u64 + 4 * self.window_ms as u64 + 1_000)
    }

    /// The quarantine in milliseconds. It fits in 32 bits, see `checked`.
    #[cfg(any(feature = "fence", feature = "mock"))]
    pub(crate) const fn quarantine_ms(&self) -> u32 {
        let windows_ms = self.window_ms.saturating_mul(4);
        self.longest_ms()
            .saturating_add(windows_ms)
            .saturating_add(1_000)
    }

    const fn longest_ms(&self) -> u32 {
        if self.max_ttl_ms > self.step_back_ms {
            self.max_ttl_ms
        } else {
            self.step_back_ms
        }
    }
}
