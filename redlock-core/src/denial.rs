//! Why a node has no vote.

use core::fmt;

use crate::fence::Reading;
use crate::time::Span;

/// Why a node that can be reached has no vote. It is no word about who holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Denial {
    /// It has restarted, and may have forgotten keys that were granted before: it is another process than the one this
    /// client knows, or has other data.
    Restarted {
        /// How long ago at the least, in milliseconds: when the client has seen it. Without a connection meanwhile that is
        /// later than the restart.
        ago_ms: u32,
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// It is a replica: what it grants, its master does not know.
    Replica,
    /// It may delete keys for want of memory.
    MayEvict,
    /// It could delete keys for want of memory when it was asked before, and may have done so.
    Evicted {
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// The user may not ask it who it is.
    InfoForbidden,
    /// To a fenced acquire: it may have forgotten keys or fences that it granted, by its guard record.
    Quarantined {
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
        /// What it told besides.
        reading: Reading,
    },
    /// To a fenced acquire: it has accepted this fence or a higher one before.
    Stale(Reading),
    /// To a fenced acquire: the fence is too far behind the node's clock.
    TooOld(Reading),
    /// To a fenced acquire: the fence is too far ahead of the node's clock.
    TooNew(Reading),
    /// To a fenced acquire: this client and those before it do not agree on the rules of the fleet.
    FencingMismatch(Reading),
    /// To a fenced acquire: the guard record of this node, with these rules, is missing. Clients write it again, and a
    /// quarantine begins with it, when a quorum of nodes has confirmed their rules.
    Unguarded {
        /// Whether there is a record with these rules, of another process or other data.
        has_record: bool,
        /// What it told besides.
        reading: Reading,
    },
    /// To a plain acquire: the TTL is longer than fenced clients of these nodes wait after a restart.
    TtlTooLong {
        /// The longest TTL of the fleet by the guard record, in milliseconds.
        max_ttl_ms: u32,
    },
}

impl Denial {
    /// What the node told besides.
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

    /// Whether another fence would have done.
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
                "may evict locks for want of memory; set its maxmemory-policy to noeviction",
            ),
            Self::InfoForbidden => f.write_str(
                "the user may not ask it who it is; grant +info +time ~redlock:guard, or switch the restart \
                 guard off",
            ),
            Self::Stale(_) => f.write_str("has accepted a higher fence"),
            Self::TooOld(_) => f.write_str("its clock is ahead of the other nodes"),
            Self::TooNew(_) => f.write_str("its clock is behind the other nodes"),
            Self::FencingMismatch(_) => f.write_str(
                "other clients follow other rules: max_ttl, window and step_back must be the same for all",
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
