//! By how much the clocks of a world differ in rate: often by all that the options allow for.

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::Dial;

/// The rates of a world's clocks. The slowest client and the fastest node differ by no more than the drift.
#[derive(Debug)]
pub(crate) struct Rates {
    /// In billionths, the part of the drift by which nodes are fast.
    node_gain: u64,
    /// The part by which clients are slow.
    client_loss: u64,
    /// The rate of the slowest client, if it is computed to the microsecond.
    tight: Option<Tight>,
    /// Everybody is at the limit, not somewhere below.
    is_extreme: bool,
}

/// Clocks that use up not only the drift but the fixed 2 ms as well, which cover Redis' precision and the drift
/// of a short TTL; so that nothing is left to hide an error of a microsecond.
#[derive(Debug, Clone, Copy)]
struct Tight {
    ttl: u64,
    allowance: u64,
}

/// The specification of this project: the drift, in millionths of the TTL and rounded up, and 2 ms.
const fn allowance(ttl_ms: u64, drift_ppm: u64) -> u64 {
    (ttl_ms * drift_ppm).div_ceil(1_000) + 2_000
}

impl Rates {
    pub(crate) fn draw(
        chance: &mut Chance,
        ttl_ms: u64,
        drift_ppm: u64,
        is_tight: bool,
        broken: Option<Assumption>,
    ) -> Self {
        let drift = match broken {
            Some(Assumption::Drift) => drift_ppm * 1_000 + 300_000_000,
            _ => drift_ppm * 1_000,
        };
        let node_gain = match chance.below(4) {
            0 => 0,
            1 => drift,
            _ => chance.below(drift + 1),
        };
        let ttl = ttl_ms * 1_000;
        Self {
            node_gain,
            client_loss: drift - node_gain,
            tight: is_tight.then_some(Tight {
                ttl,
                allowance: allowance(ttl_ms, drift_ppm),
            }),
            is_extreme: is_tight || broken == Some(Assumption::Drift) || chance.one_in(2),
        }
    }

    pub(crate) fn node(&self, chance: &mut Chance) -> u64 {
        let gain = if self.is_extreme || chance.one_in(2) {
            self.node_gain
        } else {
            chance.below(2 * self.node_gain + 1)
        };
        // Below the true rate as far as above it.
        if gain <= self.node_gain {
            Dial::TRUE_RATE + gain
        } else {
            Dial::TRUE_RATE + self.node_gain - gain
        }
    }

    pub(crate) fn client(&self, chance: &mut Chance, hertz: u64) -> u64 {
        if let Some(tight) = self.tight {
            return tight.slowest(Dial::TRUE_RATE + self.node_gain, hertz);
        }
        let loss = if self.is_extreme || chance.one_in(2) {
            self.client_loss
        } else {
            chance.below(2 * self.client_loss + 1)
        };
        if loss <= self.client_loss {
            Dial::TRUE_RATE - loss
        } else {
            Dial::TRUE_RATE + loss - self.client_loss
        }
    }

    /// The clocks with which there is something of a tight validity left.
    pub(crate) fn hertz(&self) -> &'static [u64] {
        match self.tight {
            Some(Tight { ttl, .. }) if ttl >= 100_000 => {
                &[1_000_000, 1_000_000, 1_000_000, 32_768, 1_000, 100]
            }
            _ => &[1_000_000, 1_000_000, 1_000_000, 32_768, 1_000],
        }
    }

    pub(crate) const fn is_at_the_limit(&self) -> bool {
        self.is_extreme
    }
}

impl Tight {
    /// The slowest client whose lease still ends before the key does, on nodes that run at `node_rate`.
    ///
    /// Each reading is truncated by less than a microsecond: a key stands for more than `(ttl - 1) / node_rate`
    /// of true time, and a lease for no more than `local / rate`, rounded up.
    fn slowest(self, node_rate: u64, hertz: u64) -> u64 {
        // A tick that is no whole number of microseconds is truncated once more.
        let truncated = u64::from(1_000_000 % hertz != 0);
        let local = self.ttl - self.allowance - 1 + truncated;
        let stands = (self.ttl - 1) * Dial::TRUE_RATE / node_rate + 1;
        (local * Dial::TRUE_RATE)
            .div_ceil(stands)
            .min(Dial::TRUE_RATE)
    }
}
