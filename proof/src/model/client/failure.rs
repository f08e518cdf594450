//! Why a node has given no answer that counts.

use core::fmt;

use redlock_core::Denial;

#[derive(Debug)]
pub(super) enum Failure {
    Silent(usize),
    Denied(Denial),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(node) => write!(f, "node {node} did not answer"),
            Self::Denied(denial) => write!(f, "{denial}"),
        }
    }
}

impl core::error::Error for Failure {}
