//! Why a node has no vote.

use core::fmt;

use crate::fence::Reading;
use crate::time::Span;

/// Why a node that can be reached has no vote. It does not tell whether the lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Denial {
    /// It has restarted, and may have forgotten keys that it granted before: it is another process than the one this
    /// client knows, or has other data.
    Restarted {
        /// How long ago at least, in milliseconds, counted from when the client saw it. If the client had no connection
        /// meanwhile, that is later than the restart.
        ago_ms: u32,
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// It is a replica: its master does not know what it grants.
    Replica,
    /// It may evict keys.
    MayEvict,
    /// It could evict keys when it was asked before, and may have done so.
    Evicted {
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// The ACL user lacks permission for INFO or TIME.
    InfoForbidden,
    /// To a fenced acquire: by its guard record, the node may have forgotten keys or fences that it granted.
    Quarantined {
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
        /// The rest of its answer.
        reading: Reading,
    },
    /// To a fenced acquire: the node has accepted this fence or a higher one before.
    Stale(Reading),
    /// To a fenced acquire: the fence is too far behind the node's clock.
    TooOld(Reading),
    /// To a fenced acquire: the fence is too far ahead of the node's clock.
    TooNew(Reading),
    /// To a fenced acquire: this client and the clients before it have different rules for the fleet.
    FencingMismatch(Reading),
    /// To a fenced acquire: the guard record of this node, with these rules, is missing. Clients write it again once a
    /// quorum of nodes has confirmed their rules; this starts a quarantine.
    Unguarded {
        /// Whether there is a record with these rules, of another process or other data.
        has_record: bool,
        /// The rest of its answer.
        reading: Reading,
    },
    /// To a plain acquire: the TTL is longer than fenced clients of these nodes wait after a restart.
    TtlTooLong {
        /// The longest TTL of the fleet by the guard record, in milliseconds.
        max_ttl_ms: u32,
    },
}

impl Denial {
    /// The rest of the node's answer.
    pub(crate) const fn reading(&self) -> Option<Reading> {
        match self {
            Self::Quarantined { reading, .. }
            | Self::Unguarded { reading, .. }
            | Self::Stale(reading)
            | Self::TooOld(reading)
            | Self::TooNew(reading)
            | Self::FencingMismatch(reading) => Some(*reading),
            _ => None,
        }
    }

    /// Whether the node refused only because of the fence.
    pub(crate) const fn is_misfit(&self) -> bool {
        matches!(self, Self::Stale(_) | Self::TooOld(_) | Self::TooNew(_))
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted { ago_ms, left_ms } => {
                write!(f, "restarted at least {} ago, its vote counts again in {}", Span(*ago_ms), Span(*left_ms))
            }
            Self::Evicted { left_ms } => {
                write!(f, "may have evicted locks, its vote counts again in {}", Span(*left_ms))
            }
            Self::Quarantined { left_ms, .. } => {
                write!(f, "may have forgotten locks, its vote counts again in {}", Span(*left_ms))
            }
            Self::Replica => f.write_str("a replica, which has no vote; name its master"),
            Self::MayEvict => f.write_str(
                "may evict locks when memory is short; set its maxmemory-policy to noeviction",
            ),
            Self::InfoForbidden => f.write_str(
                "the ACL user lacks permission for INFO or TIME; grant +info +time ~redlock:guard, or disable the \
                 restart guard",
            ),
            Self::Stale(_) => f.write_str("has accepted a higher fence"),
            Self::TooOld(_) => f.write_str("its clock is ahead of the nodes' time as this client knows it"),
            Self::TooNew(_) => f.write_str("its clock is behind the nodes' time as this client knows it"),
            Self::FencingMismatch(_) => f.write_str(
                "other clients have other rules: max_ttl, window and step_back must be the same for all",
            ),
            Self::Unguarded { .. } => f.write_str(
                "lost its guard record, which is restored once a quorum of nodes has confirmed the rules",
            ),
            Self::TtlTooLong { max_ttl_ms } => write!(
                f,
                "its guard record allows TTLs up to {max_ttl_ms} ms; use a shorter TTL, or raise max_ttl for all clients"
            ),
        }
    }
}
