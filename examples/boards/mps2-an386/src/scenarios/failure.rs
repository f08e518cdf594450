//! Why a scenario was not played to its end.

use core::fmt;

use redlock_embassy::{AcquireError, NodeError};
use semihosting::println;

use crate::network::NODES;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The argument of this name is missing or not understood.
    Argument(&'static str),
    /// There is an argument that nobody knows, or one without a value.
    UnknownArgument,
    /// The control server is gone or says what is not understood.
    Control(&'static str),
    /// The lock was not acquired where it had to be.
    NotAcquired,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(name) => write!(f, "the argument {name} is missing or wrong"),
            Self::UnknownArgument => {
                f.write_str("there is an argument that README.md does not name")
            }
            Self::Control(what) => write!(f, "control server: {what}"),
            Self::NotAcquired => f.write_str("the lock was not acquired"),
        }
    }
}

impl From<AcquireError<NodeError, NODES>> for Failure {
    /// Writes the error at once: it has room for the outcome of every node, and is not carried around.
    fn from(error: AcquireError<NodeError, NODES>) -> Self {
        println!("error={error}");
        Self::NotAcquired
    }
}
