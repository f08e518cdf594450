//! The errors of acquire, extend, hold and build.

use crate::report::{NodesText, Report};
use crate::text;
use crate::time::Span;

/// Why the lock was not acquired. The nodes that can be reached are told at once to delete the key of a failed attempt.
/// No node keeps the key for longer than its TTL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError<E, const MAX: usize> {
    /// Another client holds the lock, several clients tried at once and none got a quorum (see
    /// [`is_split`](Self::is_split)), or keys of a client that is gone have not expired yet. Retry later.
    Held(Report<E, MAX>),
    /// So many nodes failed or had no vote that the others are no quorum. It is unknown whether another client holds the
    /// lock.
    Unreachable(Report<E, MAX>),
    /// A quorum granted the lock, but only when the validity was already over: the TTL is too short for these nodes or
    /// this machine.
    TooLate(Report<E, MAX>),
    /// The source of randomness returned the last token again, or only zeros. Nothing was sent.
    Entropy,
    /// The key begins with [`RESERVED_PREFIX`](crate::RESERVED_PREFIX). Nothing was sent.
    ReservedKey,
}

impl<E, const MAX: usize> AcquireError<E, MAX> {
    /// The outcome of each node in the last round. `None` if there was no round.
    #[must_use]
    pub const fn report(&self) -> Option<&Report<E, MAX>> {
        match self {
            Self::Held(report) | Self::Unreachable(report) | Self::TooLate(report) => Some(report),
            Self::Entropy | Self::ReservedKey => None,
        }
    }

    /// Whether some node granted the lock in the last round, but too many others refused. Then several clients have probably
    /// tried at once and split the votes. It is also possible that a client holds the lock on other nodes.
    #[must_use]
    pub fn is_split(&self) -> bool {
        matches!(self, Self::Held(report) if report.tally().granted > 0)
    }
}

text! {
    impl [E, const MAX: usize] for AcquireError<E, MAX> [E] {
        Self::Held(report) => "{} is held by another client{}{}{}{}", report.key(), Split(report.tally().granted),
            report.nodes_text(report.tally().refused, " refused"), FreeIn(report.free_in_ms()), Ahead(report.ahead());
        Self::Unreachable(report) => "no quorum for {}: {}", report.key(), voters(report);
        Self::TooLate(report) => "{} was granted too late, its validity was over: {}; use a longer TTL", report.key(),
            report.nodes_text(report.tally().granted, " granted it");
        Self::Entropy =>
            "the source of randomness gave the same token twice or only zeros; no lock is safe with it";
        Self::ReservedKey =>
            "keys that begin with redlock: are reserved for the records of this library; use another key";
    }
}

impl<E: core::error::Error, const MAX: usize> core::error::Error for AcquireError<E, MAX> {}

/// Why the lease was not extended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtendError<E, const MAX: usize> {
    /// So many nodes no longer carry the token that no quorum can have it. Stop the work now.
    Lost(Report<E, MAX>),
    /// Neither a quorum of grants nor enough refusals to conclude that the lease is lost. The lease is
    /// unchanged: retry until its validity is over.
    Unreachable(Report<E, MAX>),
    /// A quorum extended the lease, but only after its validity was over. Stop the work now.
    TooLate(Report<E, MAX>),
    /// The validity was over before anything was sent. Stop the work now.
    Expired,
    /// The validity was over before anything was sent, because extensions of other leases of this process were ahead.
    /// Stop the work now. Only adapters that delay extensions return this, such as `redlock-std`.
    NotAsked {
        /// Whether a quorum of nodes answered the round that ended last. If so, this process extends too many leases. If
        /// not, the nodes do not answer.
        nodes_answer: bool,
    },
}

impl<E, const MAX: usize> ExtendError<E, MAX> {
    /// Whether a retry may still extend the lease.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

text! {
    impl [E, const MAX: usize] for ExtendError<E, MAX> [E] {
        Self::Lost(report) => "the lock {} is lost: {}", report.key(), losers(report);
        Self::Unreachable(report) => "no quorum for {}: {}{}", report.key(), Gone(report.tally().refused), extenders(report);
        Self::TooLate(report) => "{} was extended only after its validity was over: {}", report.key(),
            report.nodes_text(report.tally().granted, " extended it");
        Self::Expired => "the validity of the lease is over";
        Self::NotAsked { nodes_answer } => "{}", NotAsked(*nodes_answer);
    }
}

impl<E: core::error::Error, const MAX: usize> core::error::Error for ExtendError<E, MAX> {}

/// Why [`keep`](crate::Redlock::keep) and [`hold`](crate::Redlock::hold) lost a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause<E, const MAX: usize> {
    /// So many nodes no longer carry the token that no quorum can have it.
    Lost(Report<E, MAX>),
    /// The validity is over, and the last attempt to extend it reached no quorum. The report is that of this attempt.
    Unreachable(Report<E, MAX>),
    /// The validity is over although no extension failed: this task was not polled in time.
    Expired,
    /// The validity is over, after as many extensions as
    /// [`Options::max_extensions`](crate::Options::max_extensions) allows.
    ExtensionsSpent,
    /// The validity is over, and no node was asked to extend it, because extensions of other leases of this process were
    /// ahead. Only adapters that delay extensions return this, such as `redlock-std`.
    NotAsked {
        /// Whether a quorum of nodes answered the round that ended last. If so, this process extends too many leases. If
        /// not, the nodes do not answer.
        nodes_answer: bool,
    },
}

text! {
    impl [E, const MAX: usize] for LossCause<E, MAX> [E] {
        Self::Lost(report) => "the lock {} is lost: {}", report.key(), losers(report);
        Self::Unreachable(report) => "the lease could not be extended: no quorum for {}: {}{}", report.key(),
            Gone(report.tally().refused), extenders(report);
        Self::Expired => "the validity of the lease is over: it was not extended in time";
        Self::ExtensionsSpent =>
            "the validity of the lease is over: max_extensions allows no further extension; raise it, or set unlimited_extensions";
        Self::NotAsked { nodes_answer } => "{}", NotAsked(*nodes_answer);
    }
}

impl<E: core::error::Error, const MAX: usize> core::error::Error for LossCause<E, MAX> {}

/// Why the work was not completed under the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldError<E, const MAX: usize> {
    /// The lock was not acquired. The work did not start.
    NotAcquired(AcquireError<E, MAX>),
    /// The lock was lost while the work ran. The work was dropped at that moment, unless it kept the task busy:
    /// then it ran past that moment. This does not undo what the work did.
    Lost(LossCause<E, MAX>),
}

text! {
    impl [E, const MAX: usize] for HoldError<E, MAX> [E] {
        Self::NotAcquired(error) => "{}", error;
        Self::Lost(cause) => "the work was stopped: {}", cause;
    }
}

impl<E: core::error::Error, const MAX: usize> core::error::Error for HoldError<E, MAX> {}

/// Why a lock over these nodes cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no node.
    NoNode,
    /// There are more nodes than the lock has room for.
    TooManyNodes {
        /// The most nodes that the lock has room for.
        max: usize,
    },
    /// A tick of the clock is at least as long as the validity of a lease.
    ClockTooCoarse,
}

text! {
    impl [] for BuildError [] {
        Self::NoNode => "no node: name at least one";
        Self::TooManyNodes { max } => "too many nodes: at most {}", max;
        Self::ClockTooCoarse =>
            "a tick of the clock is as long as the validity of the lease: use a longer TTL";
    }
}

impl core::error::Error for BuildError {}

/// The nodes of a round without a quorum. If all nodes without a vote have failed, the message counts the nodes that voted: a
/// node that answers that it has no vote yet is not one of them. Otherwise the round was decided before some nodes answered, and
/// the message counts the nodes that failed.
fn voters<E, const MAX: usize>(report: &Report<E, MAX>) -> NodesText<'_, E, MAX> {
    let tally = report.tally();
    counted(report, tally.granted + tally.refused, " voted")
}

/// The same of an extension: a node that refuses it has no longer the key.
fn extenders<E, const MAX: usize>(report: &Report<E, MAX>) -> NodesText<'_, E, MAX> {
    counted(report, report.tally().granted, " extended it")
}

fn counted<'r, E, const MAX: usize>(
    report: &'r Report<E, MAX>,
    count: usize,
    what: &'static str,
) -> NodesText<'r, E, MAX> {
    let failed = report.failures().count();
    if failed == report.tally().unknown {
        report.nodes_text(count, what)
    } else {
        report.nodes_text(failed, " failed")
    }
}

/// How many nodes have lost the key of a lease that may still be held.
struct Gone(usize);

text! {
    impl [] for Gone [] {
        Self(0) => "";
        Self(refused) => "{} no longer carry its token, ", refused;
    }
}

fn losers<E, const MAX: usize>(report: &Report<E, MAX>) -> NodesText<'_, E, MAX> {
    report.nodes_text(report.tally().refused, " no longer carry its token")
}

/// How many nodes granted a lock that is held.
struct Split(usize);

text! {
    impl [] for Split [] {
        Self(0) => ": ";
        Self(granted) => ", or split with others: {} granted, ", granted;
    }
}

/// When a lock is free at the latest, in milliseconds.
struct FreeIn(Option<u32>);

text! {
    impl [] for FreeIn [] {
        Self(None) => "";
        Self(Some(ms)) => "; free in at most {}", Span(*ms);
    }
}

/// How many clients wait ahead.
struct Ahead(Option<u32>);

text! {
    impl [] for Ahead [] {
        Self(None) => "";
        Self(Some(0)) => "; no client waits ahead";
        Self(Some(1)) => "; 1 client waits ahead";
        Self(Some(1_000..)) => "; 1000 clients wait ahead, or more";
        Self(Some(ahead)) => "; {} clients wait ahead", ahead;
    }
}

/// Whether nodes answer the extensions that were ahead.
struct NotAsked(bool);

text! {
    impl [] for NotAsked [] {
        Self(true) =>
            "the validity of the lease is over: too many extensions of this process were ahead; keep fewer locks at once, \
             or use a longer TTL";
        Self(false) =>
            "the validity of the lease is over: no quorum of nodes answers the extensions that were ahead";
    }
}
