//! What a server can do wrong on purpose.

/// A rule that a [`Server`](crate::mock::Server) breaks on purpose. Each proof must find the flaws that it looks for: a proof
/// that misses one proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerFlaw {
    /// A release deletes the key, whatever its token.
    ReleasesAnyToken,
    /// It always reports that it is a master that evicts no keys, and executes commands although it is a replica.
    HidesItsRole,
    /// It counts its grants, and the count is the fence, whatever fence was proposed.
    CountsGrants,
    /// It records the highest fence, and accepts every fence above 1. The first round of an attempt proposes 1 and only reads
    /// the highest fence. The second round writes back one more.
    AcceptsAnyFence,
    /// It accepts a fence that it has accepted before, even from another attempt.
    AcceptsFenceAgain,
    /// It accepts fences however far they are behind its clock, and keeps fence records for only one window.
    AcceptsOldFence,
    /// It accepts fences however far they are ahead of its clock.
    AcceptsNewFence,
    /// Its quarantine ends one millisecond too early: a fence that it may have forgotten is not too old yet.
    QuarantineTooShort,
    /// Its quarantine is long enough for leases, but not for a clock that is stepped back.
    QuarantineWithoutStepBack,
    /// A release does not burn its fence. To burn a fence is to raise the highest fence above it, so that the node
    /// accepts it no more.
    BurnsNoFence,
    /// If a key is gone, the lock is free, even if the key has expired because the clock was ahead.
    ForgetsHeldUntil,
    /// An extend sets a missing key again, even if another attempt was accepted since.
    RestoresAnyKey,
    /// It takes two attempts that propose the same fence for one attempt.
    ConfusesEqualFences,
    /// If it has no guard record, it takes the rules of the first client.
    TakesAnyRules,
    /// It does not compare the replication ID of its guard record.
    MissesFailback,
    /// A release by a client with other rules shortens the life of the fence record.
    ShortensFenceRecord,
    /// The key of a plain lock keeps its token for the rest of `min_hold`.
    KeepsToken,
    /// A client that has not come in its turn stays in its place.
    KeepsHead,
    /// A turn ends only when a client takes the lock or its owner leaves.
    TurnNeverEnds,
    /// The ticket of a client is the time of its last try.
    TakesLastTicket,
    /// A release calls the first client although the lock is still held.
    CallsWhileHeld,
    /// It gives turns to clients that have disconnected.
    TakesGoneForAlive,
    /// If it cannot call a client, it removes the client from the line.
    TakesErrorForGone,
    /// A client that leaves stays in the line.
    KeepsLeaver,
    /// A client whose lost round was granted here loses its place.
    LosesPlace,
}
