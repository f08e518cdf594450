//! What a client asks of a node before it counts its vote.

/// What is asked of a node before its vote for an acquire counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rules {
    /// The longest TTL of any client of the node, in milliseconds.
    pub max_ttl_ms: u32,
    /// By how much the clocks of client and node may differ in rate, in millionths.
    pub drift_ppm: u32,
    /// Whether a node that has restarted has no vote until every lease that it may have forgotten is over:
    /// for `max_ttl_ms` and the drift. False if its data survives.
    pub restart_guard: bool,
    /// Whether a node that may evict keys has no vote. It is asked again when half of `max_ttl_ms` has passed, before
    /// the next acquire.
    pub refuse_eviction: bool,
    /// Whether the longest TTL of the node's guard record binds the client. Fenced acquires are judged by the node.
    pub obeys_record: bool,
}

impl Rules {
    /// Every master has a vote.
    pub const NONE: Self = Self {
        max_ttl_ms: 0,
        drift_ppm: 0,
        restart_guard: false,
        refuse_eviction: false,
        obeys_record: false,
    };
}
