#![doc = include_str!("../README.md")]
#![no_std]

// Read from the top down: each module needs only those below it.
mod hold;
mod redlock;

mod race;

mod round;

mod error;
mod lease;
mod options;
mod report;

mod transport;

mod command;
mod entropy;
mod time;

#[cfg(feature = "mock")]
pub mod mock;

#[cfg(test)]
extern crate std;

pub use command::{Answer, Argument, Arguments, Command, Reply, Script, ScriptCall, Token};
pub use entropy::Entropy;
pub use error::{AcquireError, BuildError, ExtendError, HoldError, LossCause};
pub use lease::Lease;
pub use options::{Options, OptionsError};
pub use redlock::{Redlock, Released};
pub use report::{KeyName, Outcome, Report, Tally};
pub use time::{Clock, Instant};
pub use transport::Transport;
