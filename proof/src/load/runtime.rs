//! The runtime of a trial.

use std::fmt;
use std::io;

/// On which runtime of tokio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runtime {
    CurrentThread,
    MultiThread,
}

impl Runtime {
    pub(super) fn build(self) -> io::Result<tokio::runtime::Runtime> {
        let mut builder = match self {
            Self::CurrentThread => tokio::runtime::Builder::new_current_thread(),
            Self::MultiThread => tokio::runtime::Builder::new_multi_thread(),
        };
        builder.enable_all().build()
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CurrentThread => "current-thread",
            Self::MultiThread => "multi-thread",
        })
    }
}
