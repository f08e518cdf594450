//! What went wrong with a node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::Denial;

/// What went wrong, on which node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeError {
    node: Arc<str>,
    kind: NodeErrorKind,
}

impl NodeError {
    pub(crate) const fn new(node: Arc<str>, kind: NodeErrorKind) -> Self {
        Self { node, kind }
    }

    /// Where the node is: `host:port`, or the path of its socket.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What went wrong.
    #[must_use]
    pub const fn kind(&self) -> &NodeErrorKind {
        &self.kind
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.kind)
    }
}

impl core::error::Error for NodeError {}

/// What can go wrong with a node. It counts as unknown, never as a no.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeErrorKind {
    /// The round stopped waiting after this time.
    TimedOut(Duration),
    /// The round stopped waiting after its node timeout, and the node's last answer took longer than that.
    TooFar {
        /// How long the round waits.
        node_timeout: Duration,
        /// How long the last answer took.
        round_trip: Duration,
    },
    /// The round stopped waiting after this time, and the node was still being connected to. Nothing was sent to it.
    NotConnected(Duration),
    /// No connection could be made: the network, the name, the password.
    Unreachable(Arc<str>),
    /// The connection broke; a new one is being made.
    Disconnected,
    /// The node sent more than the answers to what it was asked can take. The connection was ended: what follows would have
    /// to be kept.
    Flooded,
    /// The node has not answered for so long that it is left out until it does.
    Silent(Duration),
    /// The tokio runtime on which the node was connected has shut down, so no task sends commands to the node.
    /// Connect again on a runtime that lives.
    RuntimeGone,
    /// More commands are waiting for this node than there is room for.
    Overloaded,
    /// So many releases were given up, since more than a million waited. Their keys expire.
    ReleasesGivenUp(u64),
    /// The node answered with an error.
    Rejected(Arc<str>),
    /// The node's answer is none to the command that was sent.
    Unexpected,
    /// The node can be reached and has no vote.
    Denied(Denial),
    /// It is the same server as this other node of the lock, whose vote is counted already.
    DuplicateOf(Arc<str>),
}

impl fmt::Display for NodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(after) => write!(f, "timed out after {} ms", after.as_millis()),
            Self::TooFar {
                node_timeout,
                round_trip,
            } => write!(
                f,
                "timed out after {} ms, and its last answer took {} ms: raise node_timeout if it is that far away",
                node_timeout.as_millis(),
                round_trip.as_millis()
            ),
            Self::NotConnected(after) => write!(
                f,
                "not connected yet after {} ms: see whether it answers, or raise node_timeout if it is that far away",
                after.as_millis()
            ),
            Self::Unreachable(why) => f.write_str(why),
            Self::Disconnected => f.write_str("the connection broke"),
            Self::Flooded => f.write_str("sent more than was asked for; is it a Redis?"),
            Self::Silent(since) => write!(f, "no answer for {} ms", since.as_millis()),
            Self::RuntimeGone => f.write_str(
                "the tokio runtime of the connect has shut down; connect again on one that lives",
            ),
            Self::Overloaded => f.write_str("too many commands are waiting for it"),
            Self::ReleasesGivenUp(count) => {
                write!(
                    f,
                    "{count} releases were given up, too many waited; their keys expire"
                )
            }
            Self::Rejected(error) => f.write_str(error),
            Self::Unexpected => f.write_str("answered what no Redis answers; is it one?"),
            Self::Denied(denial) => denial.fmt(f),
            Self::DuplicateOf(first) => {
                write!(f, "the same server as {first}; name each server once")
            }
        }
    }
}
