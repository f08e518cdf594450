//! Why a node has no vote.

use crate::fence::Reading;
use crate::text;
use crate::time::{Past, Span};

/// Why a node that can be reached has no vote. A denial does not tell whether the lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denial {
    /// Denies a plain acquire: the node has restarted, and may have forgotten keys that it granted. It is another process
    /// than the one this client knew, it has other data, or its uptime is short.
    Restarted {
        /// At least this time has passed since the restart, in milliseconds. It is counted from when the client noticed
        /// the restart, which is later than the restart if the client had no connection. At the first contact, it is the
        /// uptime that the node reports.
        ago_ms: u32,
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
        /// Whether the node has a guard record, which does not vouch for it, or not for leases as long as those of this client.
        has_record: bool,
    },
    /// Denies an acquire: the node is a replica. Its master does not know which keys it grants.
    Replica,
    /// Denies an acquire with [`refuse_eviction`](crate::Options::refuse_eviction): the node may evict keys.
    MayEvict,
    /// Denies an acquire with [`refuse_eviction`](crate::Options::refuse_eviction): the node could evict keys at an earlier
    /// check, and may have done so.
    Evicted {
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// Denies an acquire: the node does not tell its identity, because scripts may not call INFO or TIME there, or the user may
    /// not use the key of the guard record. See [`Options::restart_guard`](crate::Options::restart_guard).
    InfoForbidden,
    /// Denies a fenced acquire: the node may have forgotten keys or fences, and its quarantine is not over.
    Quarantined {
        /// The time until its vote counts again, in milliseconds.
        left_ms: u32,
        /// The details of its answer: its clock, and what it keeps for the key.
        reading: Reading,
    },
    /// Denies a fenced acquire: the node has already accepted a higher fence, or this fence for another attempt.
    Stale(Reading),
    /// Denies a fenced command: what the client sent is behind the window around the node's clock. For an acquire, this is the
    /// fence. For an extend, it is the nodes' time that this client knows so far.
    TooOld(Reading),
    /// Denies a fenced command: what the client sent is ahead of the window around the node's clock. For an acquire, this is the
    /// fence. For an extend, it is the nodes' time that this client knows so far.
    TooNew(Reading),
    /// Denies a fenced acquire: the guard record of the node has other rules than this client.
    FencingMismatch(Reading),
    /// Denies a fenced acquire: the node has no guard record of its own process and data. Clients write it again once a
    /// quorum of nodes has confirmed their rules. This starts a quarantine.
    Unguarded {
        /// Whether the node has a record with the rules of this client, but of another process or of other data.
        has_record: bool,
        /// The details of its answer: its clock, and what it keeps for the key.
        reading: Reading,
    },
    /// Denies a plain acquire or an extend: the TTL is longer than the fleet's `max_ttl`. After a restart, fenced clients
    /// would not wait until such a lease is over.
    TtlTooLong {
        /// The fleet's `max_ttl` in the guard record, in milliseconds.
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

    /// Whether the node denied its vote only because of the fence or, for an extend, because of the client's time.
    pub(crate) const fn is_misfit(&self) -> bool {
        matches!(self, Self::Stale(_) | Self::TooOld(_) | Self::TooNew(_))
    }
}

text! {
    impl [] for Denial [] {
        Self::Restarted { ago_ms: 0, left_ms, .. } =>
            "restarted just now, its vote counts again in {}", Span(*left_ms);
        Self::Restarted { ago_ms, left_ms, .. } =>
            "restarted at least {} ago, its vote counts again in {}", Past(*ago_ms), Span(*left_ms);
        Self::Evicted { left_ms } =>
            "may have evicted locks, its vote counts again in {}", Span(*left_ms);
        Self::Quarantined { left_ms, .. } =>
            "may have forgotten locks, its vote counts again in {}", Span(*left_ms);
        Self::Replica => "a replica, which has no vote; name its master";
        Self::MayEvict =>
            "may evict locks when memory is short; set its maxmemory-policy to noeviction";
        Self::InfoForbidden =>
            "does not tell its identity; grant +eval +info +time ~redlock:guard, or disable the restart guard (plain locks)";
        Self::Stale(_) => "has accepted a higher fence";
        Self::TooOld(_) => "its clock is ahead of the nodes' time that this client knows so far";
        Self::TooNew(_) => "its clock is behind the nodes' time that this client knows so far";
        Self::FencingMismatch(_) =>
            "other clients have other rules: max_ttl, window and step_back must be the same for all";
        Self::Unguarded { .. } =>
            "lost its guard record, which is restored once a quorum of nodes has confirmed the rules";
        Self::TtlTooLong { max_ttl_ms } =>
            "its guard record allows a TTL or min_hold of up to {} ms; shorten it, or raise max_ttl for all clients", max_ttl_ms;
    }
}
