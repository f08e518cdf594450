//! Why the vote of a node is unknown in a round.

use core::fmt;
use core::time::Duration;

use crate::denial::Denial;
use crate::text;

/// The error of one node: its name, and why its vote is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeError<N, E> {
    node: N,
    failure: Failure<N, E>,
}

impl<N, E> NodeError<N, E> {
    /// The error `failure` of `node`.
    pub const fn new(node: N, failure: Failure<N, E>) -> Self {
        Self { node, failure }
    }

    /// The name of the node.
    pub const fn node(&self) -> &N {
        &self.node
    }

    /// Why its vote is unknown.
    pub const fn failure(&self) -> &Failure<N, E> {
        &self.failure
    }

    /// Why the node has no vote although it can be reached. `None` if the failure is another one.
    pub const fn denial(&self) -> Option<Denial> {
        match &self.failure {
            Failure::Denied(denial) => Some(*denial),
            _ => None,
        }
    }
}

text! {
    impl [N, E] for NodeError<N, E> [N, E] {
        Self { node, failure } => "{}: {}", node, failure;
    }
}

impl<N: fmt::Debug + fmt::Display, E: core::error::Error> core::error::Error for NodeError<N, E> {}

/// Why the vote of a node is unknown in a round. A failure never counts as a refusal: the node may have executed the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure<N, E> {
    /// The round stopped waiting for the node after this time.
    TimedOut(Duration),
    /// The node is the same server as this other node of the lock. The vote of the other node counts.
    DuplicateOf(N),
    /// The node can be reached, but has no vote.
    Denied(Denial),
    /// To a release: the acquire was never sent to the node, so neither is its release. It does not count for the quorum of a
    /// release, which waits for nodes that may have the key.
    NothingToRelease,
    /// The transport has failed.
    Transport(E),
}

text! {
    impl [N, E] for Failure<N, E> [N, E] {
        Self::TimedOut(after) => "timed out after {} ms", after.as_millis();
        Self::DuplicateOf(first) => "the same server as {}; name each server once", first;
        Self::Denied(denial) => "{}", denial;
        Self::NothingToRelease => "has nothing to release";
        Self::Transport(error) => "{}", error;
    }
}
