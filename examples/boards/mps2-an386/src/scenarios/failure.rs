//! Why a scenario did not run to its end.

use core::fmt;

use redlock_embassy::{AcquireError, HoldError, NodeError};
use semihosting::println;

use crate::network::NODES;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The argument with this name is missing or not valid.
    Argument(&'static str),
    /// An argument is unknown, or has no value.
    UnknownArgument,
    /// The control server is gone, or its reply is not valid.
    Control(&'static str),
    /// The lock was not acquired, although it had to be.
    NotAcquired,
    /// The lock was lost while it was held.
    Lost,
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
            Self::Lost => f.write_str("the lock was lost"),
        }
    }
}

impl From<AcquireError<NodeError, NODES>> for Failure {
    /// Prints the error at once, because it is large: it has the outcome of every node.
    fn from(error: AcquireError<NodeError, NODES>) -> Self {
        println!("error={error}");
        Self::NotAcquired
    }
}

impl From<HoldError<NodeError, NODES>> for Failure {
    fn from(error: HoldError<NodeError, NODES>) -> Self {
        match error {
            HoldError::NotAcquired(error) => error.into(),
            lost => {
                println!("error={lost}");
                Self::Lost
            }
        }
    }
}
