//! The errors of a node in memory.

use core::fmt;
use core::time::Duration;

use crate::denial::Denial;

/// The error of a [`MockNode`](crate::mock::MockNode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MockError {
    pub(super) node: usize,
    pub(super) kind: MockErrorKind,
}

impl MockError {
    /// The number of the node.
    #[must_use]
    pub const fn node(&self) -> usize {
        self.node
    }

    /// What failed.
    #[must_use]
    pub const fn kind(&self) -> MockErrorKind {
        self.kind
    }
}

impl fmt::Display for MockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {}", self.node, self.kind)
    }
}

impl core::error::Error for MockError {}

/// What can fail on a [`MockNode`](crate::mock::MockNode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MockErrorKind {
    /// The node is stopped.
    Refused,
    /// The node was stopped while the command was on its way.
    Reset,
    /// The round stopped waiting after this time.
    TimedOut(Duration),
    /// Too many commands are on their way: there is room for 64.
    Full,
    /// There is no room for another key: there is room for 64.
    OutOfMemory,
    /// The key has more than 64 bytes.
    KeyTooLong,
    /// The node has no vote.
    Denied(Denial),
    /// The node is the same server as an earlier node of the lock.
    DuplicateOf {
        /// The number of the earlier node.
        node: usize,
    },
}

impl fmt::Display for MockErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::Reset => f.write_str("connection reset"),
            Self::TimedOut(after) => write!(f, "timed out after {} ms", after.as_millis()),
            Self::Full => f.write_str("too many commands on their way"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::KeyTooLong => f.write_str("the key is too long for a node in memory"),
            Self::Denied(denial) => write!(f, "{denial}"),
            Self::DuplicateOf { node } => {
                write!(f, "the same server as node {node}; name each server once")
            }
        }
    }
}
