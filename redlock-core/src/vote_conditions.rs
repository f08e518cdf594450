//! The conditions that a node must meet before a client counts its vote.

/// The conditions that a node must meet before its vote for an acquire counts.
///
/// [`Options::vote_conditions`](crate::Options::vote_conditions) returns those of a client. To create others, for instance in
/// the tests of your own transport, start with [`NONE`](Self::NONE) and set its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct VoteConditions {
    /// The longest TTL of any client of the node, in milliseconds.
    pub max_ttl_ms: u32,
    /// The `min_hold` of the client, in milliseconds: the guard record must allow it too.
    #[cfg(feature = "min-hold")]
    pub min_hold_ms: u32,
    /// How long a node that may have evicted keys, but has kept its guard record, has no vote, in milliseconds: the quarantine of
    /// the fleet. If it is less than `max_ttl_ms`, for example 0 for a plain lock, that counts.
    #[cfg(any(feature = "fence", feature = "mock"))]
    pub quarantine_ms: u32,
    /// By how much the client's clock may run faster or slower than the node's, in millionths of the node's rate.
    pub drift_ppm: u32,
    /// Whether a node that has restarted has no vote until every lease that it may have forgotten is over:
    /// for `max_ttl_ms` and the drift. `false` if the data survives a restart.
    pub restart_guard: bool,
    /// Whether a node that may evict keys has no vote. If half of `max_ttl_ms` has passed since the node was asked, it is
    /// asked again before the next acquire.
    pub refuse_eviction: bool,
    /// Whether the client obeys the longest TTL in the node's guard record. `false` for fenced locks: the node checks
    /// fenced acquires.
    pub obeys_record: bool,
}

impl VoteConditions {
    /// Every master has a vote.
    pub const NONE: Self = Self {
        max_ttl_ms: 0,
        #[cfg(feature = "min-hold")]
        min_hold_ms: 0,
        #[cfg(any(feature = "fence", feature = "mock"))]
        quarantine_ms: 0,
        drift_ppm: 0,
        restart_guard: false,
        refuse_eviction: false,
        obeys_record: false,
    };
}
