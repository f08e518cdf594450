//! The name of a node in memory, and its errors.

use core::fmt;

use crate::failure::Failure;

/// The name of a [`MockNode`](crate::mock::MockNode) in messages: `node 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MockName(pub(super) usize);

impl MockName {
    /// The number of the node.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0
    }
}

impl fmt::Display for MockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Why a [`MockNode`](crate::mock::MockNode) has no vote.
pub type MockFailure = Failure<MockName, MockError>;

/// The error of the transport to a [`MockNode`](crate::mock::MockNode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MockError {
    /// The node is stopped.
    Refused,
    /// The node was stopped while the command was on its way.
    Reset,
    /// Too many commands are on their way. There is room for 64.
    Full,
    /// Too many keys. There is room for 64.
    OutOfMemory,
    /// The key has more than 64 bytes.
    KeyTooLong,
}

impl fmt::Display for MockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::Reset => "connection reset",
            Self::Full => "too many commands on their way",
            Self::OutOfMemory => "out of memory",
            Self::KeyTooLong => "the key is too long for a node in memory",
        })
    }
}

impl core::error::Error for MockError {}
