//! Why a node has given no answer.

use core::fmt;

/// The node did not answer.
#[derive(Debug)]
pub(super) struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("did not answer")
    }
}

impl core::error::Error for Silent {}

/// By the number of the node.
pub(super) type NodeError = redlock_core::NodeError<usize, Silent>;
