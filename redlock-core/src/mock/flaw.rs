//! What a server can do wrong on purpose.

/// A rule that a [`Server`](crate::mock::Server) breaks. A proof that does not find it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerFlaw {
    /// A release deletes the key, whatever its token.
    ReleasesAnyToken,
    /// It always says that it is a master that does not evict keys, and executes commands as a replica.
    HidesItsRole,
    /// It counts its grants, and the count is the fence.
    CountsGrants,
    /// It records the highest fence and accepts every fence: the first round of an attempt asks, the second writes back.
    AcceptsAnyFence,
    /// It accepts a fence that it has accepted before.
    AcceptsFenceAgain,
    /// It accepts fences however far behind its clock, and keeps fence records for one window only.
    AcceptsOldFence,
    /// It accepts fences however far ahead of its clock.
    AcceptsNewFence,
    /// Its quarantine ends a millisecond before the last fence that it may have forgotten is too old.
    QuarantineTooShort,
    /// Its quarantine is long enough for leases, but not for a clock that is stepped back.
    QuarantineWithoutStepBack,
    /// A release leaves its fence acceptable.
    BurnsNoFence,
    /// A key that is gone is free, even if a clock that was ahead has expired it.
    ForgetsHeldUntil,
    /// An extend sets a key again although another fence was accepted since.
    RestoresAnyKey,
    /// It takes an attempt that proposes the fence of another for the other.
    ConfusesEqualFences,
    /// Without a guard record, it takes the rules of the first client.
    TakesAnyRules,
    /// It does not compare the replication ID of its guard record.
    MissesFailback,
    /// A release by a client with other rules shortens the life of the fence record.
    ShortensFenceRecord,
}
