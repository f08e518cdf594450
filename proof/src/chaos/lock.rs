//! Which lock a fleet of nodes is for, and by which rules its clients take it.

use std::time::Duration;

use redlock_core::{Fencing, Options, OptionsError};

use super::fault::Kind;

/// Each has nodes and clients of its own: what a fenced lock bears, a plain one does not promise to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lock {
    #[default]
    Plain,
    Fenced,
}

impl Lock {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fenced => "fenced",
        }
    }

    pub(super) const fn is_fenced(self) -> bool {
        matches!(self, Self::Fenced)
    }

    /// What its clients have to live with.
    pub(super) const fn faults(self) -> &'static [Kind] {
        match self {
            Self::Plain => &Kind::BEARABLE,
            Self::Fenced => &Kind::BEARABLE_FENCED,
        }
    }

    /// Of a lease of `ttl`, where no lease is longer than `longest`.
    pub(super) fn options(self, ttl: Duration, longest: Duration) -> Result<Options, OptionsError> {
        // All nodes are on this machine, and those whose clocks are not stepped agree.
        const SKEW: Duration = Duration::from_millis(2);

        let options = Options::new(ttl)?.node_timeout(node_timeout(longest))?;
        if self == Self::Plain {
            return Ok(options.max_ttl(longest)?.refuse_eviction(true));
        }
        let fencing = Fencing::new(window(longest))?
            .with_max_ttl(longest)?
            .with_step_back(step_back(longest))?;
        options.fenced(fencing)?.tolerate_clock_jumps(true, SKEW)
    }
}

/// The rules in the guard records of the nodes, of which plain clients obey the first one.
pub(super) fn rules(ttl: Duration) -> [Duration; 3] {
    [ttl, window(ttl), step_back(ttl)]
}

/// How long a client waits for the nodes, at a longest TTL of `ttl`: longer than a busy machine pauses a
/// process, and short enough for the shortest lease.
pub(super) fn node_timeout(ttl: Duration) -> Duration {
    ttl / 10
}

/// How far a fence may be from the clock of a node: a tenth of the longest TTL is lost to clocks that jump.
pub(super) fn window(ttl: Duration) -> Duration {
    ttl / 40
}

/// How far the clock of a node may be set back: past the end of every lease, and short, as quarantines last
/// for it.
pub(super) fn step_back(ttl: Duration) -> Duration {
    ttl * 5 / 4
}

/// For how long a node of a fenced lock that has forgotten has no vote. No plain client waits for longer.
pub(super) fn quarantine(ttl: Duration) -> Duration {
    ttl.max(step_back(ttl)) + 4 * window(ttl) + Duration::from_secs(1)
}
