//! What the lock promises.

/// A promise of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// No two hold one lock at once.
    Exclusion,
    /// A lease is valid when it is handed out, and when it is extended.
    Validity,
    /// While a lease is valid a quorum of nodes carries its token.
    Quorum,
    /// A lease is not said to be lost while it is not, nor work to be done under a lease that is lost.
    Loss,
    /// What is not wanted any more is deleted on every node whose connection has lived since.
    Cleanup,
    /// A release that is said to be done was executed by a quorum of nodes.
    Release,
    /// A token is never used twice.
    Token,
    /// A plain client that knows the `max_ttl` of a node has no vote there for a longer lease.
    Ttl,
    /// Every call ends in time.
    Time,
    /// When nothing goes wrong whoever waits gets the lock.
    Progress,
    /// No two leases have one fence, and one that is asked for after another was reported has the higher one.
    Fence,
    /// Another process takes a lease over only if no other client has had the lock since it was granted.
    Adoption,
    /// A lock that is released before its `min_hold` is over stays held until then, if a quorum of nodes has said so.
    MinHold,
    /// What checks fences admits nobody after somebody with a higher one.
    Gate,
    /// What was released on a node does not come back there.
    Burn,
    /// A lease is won and extended by a quorum of distinct servers, by whatever names.
    Votes,
    /// A node that has restarted has no vote until every lease that it may have forgotten is over.
    Restart,
    /// A replica has no vote.
    Replica,
    /// A lease that is said to be lost is not valid any more.
    Over,
    /// A minority of clocks does not move a client's idea of the time beyond the clocks that are right.
    NodesTime,
    /// A lock that is free and wanted is taken soon.
    Idle,
    /// Of two clients in a line the one that came first gets the lock.
    Fairness,
    /// A client that waits seldom tries.
    Restraint,
    /// Who has left a line does not stand in it.
    Line,
    /// What a device sends are the commands of the lock, byte by byte.
    Protocol,
}

/// Which promises are given in a world, by the conditions that the README states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promised {
    /// That a quorum carries the token of a lease: not where keys expire early, nor where plain clients are about and
    /// nodes lose keys without a sign.
    pub(crate) quorum: bool,
    /// That a plain lock excludes others, and others a plain lock: not where clocks are stepped.
    pub(crate) plain: bool,
    /// That fenced locks exclude each other: not where a majority of clocks is stepped.
    pub(crate) fenced: bool,
}

impl Promised {
    #[cfg(test)]
    pub(crate) const ALL: Self = Self {
        quorum: true,
        plain: true,
        fenced: true,
    };

    pub(super) const fn has(self, promise: Promise) -> bool {
        match promise {
            Promise::Quorum | Promise::Loss => self.quorum,
            Promise::Exclusion => self.plain || self.fenced,
            _ => true,
        }
    }
}
